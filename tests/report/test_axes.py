import pytest
from hypothesis import given
from hypothesis import strategies as st

from arbiter.report.axes import Axis, Names, nice_ticks, plain, share


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 0.7, [0, 0.2, 0.4, 0.6]),
        (3, 97, [25, 50, 75]),
        (-0.02, 0.02, [-0.02, -0.01, 0, 0.01, 0.02]),
        (0, 2748, [0, 1000, 2000]),
    ],
)
def test_ticks_are_round_numbers_within_the_axis(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


@given(st.lists(st.floats(-1e9, 1e9).filter(lambda v: v == 0 or abs(v) > 1e-6), min_size=1))
def test_an_axis_holds_all_its_values_and_has_ticks(values):
    axis = Axis.over(values)
    assert all(-1e-6 <= axis.at(v) <= 1 + 1e-6 for v in values)
    assert 2 <= len(axis.ticks()) <= 12


def test_values_that_are_missing_or_infinite_do_not_stretch_an_axis():
    axis = Axis.over([0.0, None, float("inf"), float("nan"), 4.0])
    assert (axis.low, axis.high) == (0, 4)


def test_a_logarithmic_axis_puts_equal_ratios_at_equal_distances():
    axis = Axis(1e-4, 1e-2, log=True)
    assert axis.at(1e-3) == pytest.approx(0.5)
    assert next(text for _, text in axis.ticks()) == "0.0001"
    assert Axis.over([0.0, 1e-4, 1e-2], log=True).low > 0


def test_whole_numbers_only_where_epochs_are_counted():
    assert [t for t, _ in Axis.over([1, 2], whole=True, integer=True).ticks()] == [1, 2]
    assert all(float(t).is_integer() for t, _ in Axis(1, 12, integer=True).ticks())


def test_names_lie_in_the_middle_of_equal_parts():
    names = Names(["a", "b"])
    assert [names.at(0), names.at(1)] == [0.25, 0.75]
    assert names.ticks() == [(0, "a"), (1, "b")]


def test_ticks_as_text():
    assert [plain(v) for v in (0, 0.25, 1000, 20_000, 3e-4, 2.5e6)] == [
        "0", "0.25", "1,000", "20k", "0.0003", "2.5M",
    ]  # fmt: skip
    assert [share(v) for v in (0.1, 0.125, 1)] == ["10%", "12.5%", "100%"]
