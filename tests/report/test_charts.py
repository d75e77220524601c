import re

from arbiter.report.axes import Axis, Names
from arbiter.report.charts import Chart, heatmap


def chart() -> Chart:
    """100 x 100 pixels of drawing, from (44, 9) on."""
    return Chart(Axis(0, 10), Axis(0, 1), "t", width=156, height=145)


def test_a_line_goes_through_its_points_and_breaks_where_one_is_missing():
    drawn = chart().line([0, 5, 10, 10, 0], [0, 1, None, 0.5, 0], "blue").render()
    assert 'd="M44.0 109.0L94.0 9.0M144.0 59.0L44.0 109.0"' in drawn


def test_a_single_point_is_still_seen():
    assert "<circle" in chart().line([None, 5], [1, 1], "blue").render()


def test_names_are_listed_from_the_top():
    named = Chart(Axis(0, 1), Names(["first", "second"]), "t", width=156, height=145)
    assert named.py(0) < named.py(1)


def test_texts_of_strangers_are_escaped_everywhere():
    evil = "<script>alert(1)</script>\"'"
    drawn = Chart(Axis(0, 1, evil), Names([evil]), evil, left=90)
    page = drawn.dots([0.5], [0], "blue", evil, hints=[evil]).render()
    assert "<script" not in page
    assert 'aria-label="&lt;script&gt;' in page


def test_a_heatmap_has_deeper_cells_for_larger_values():
    drawn = heatmap("load", [[0.0, 0.25], [0.5, 0.5]], 0.5, Axis(0, 2), ["1", "2"])
    cells = {
        float(opacity): path.count("M")
        for opacity, path in re.findall(r'fill-opacity="([\d.]+)" d="([^"]*)"', drawn)
    }
    assert cells == {0.0: 1, 0.5: 1, 1.0: 2}
