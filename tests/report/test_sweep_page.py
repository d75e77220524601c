"""sweep.html: whatever runs are called, every one of them is there, and a click sorts."""

from pathlib import Path

import pytest

from arbiter.report.sweep import write_sweep
from arbiter.sweeps.ranking import SweepConfig, rank
from arbiter.sweeps.runs import Run
from tests.browser import CHROMIUM, Browser
from tests.report.parsed import Page

EVIL = "<script>alert('x')</script>"


def make_runs(folder: Path) -> list[Run]:
    """Five runs over a rate and two seeds: one failed, one was interrupted."""
    runs = []
    for number, (score, lr, seed) in enumerate(
        [(0.5, "0.001", 0), (0.7, "0.001", 1), (0.9, "0.01", 0), (None, EVIL, 0), (None, "0.1", 0)]
    ):
        path = folder / f"{number}_lr 'x' & <b>"
        path.mkdir()
        (path / ("report.html" if score else "train.log")).touch()
        status = "finished" if score else ("failed", "interrupted")[number == 4]
        runs.append(
            Run(
                path, status, f"lr={EVIL}: no number" if number == 3 else None,
                {"optimizer.lr": lr, "seed": str(seed), "architecture": "tiny" * (number % 2 + 1)},
                summary={"validation": {"accuracy": score}} if score else {},
                val_acc=(0.25, score) if score else (), seconds=9.0 - number, rss_mb=800.0,
                parameters=557_377,
            )
        )  # fmt: skip
    return runs


@pytest.fixture
def sweep(tmp_path) -> Path:
    return write_sweep(tmp_path, rank(make_runs(tmp_path), SweepConfig()))


def test_every_run_is_there_and_nothing_of_theirs_is_markup(sweep):
    page = Page(sweep)
    assert page.sections == ["ranking", "values", "curves", "failed"]
    assert page.scripts == 1  # the page's own
    assert "5 runs: 3 finished, 1 failed, 1 interrupted" in page.text
    assert page.text.count(f"lr={EVIL}: no number") == 1
    assert "557,377" in page.text_of["ranking"]
    links = [a for a in page.addresses if a.endswith((".html", ".log"))]
    targets = {sweep.parent / link.replace("%20", " ").replace("%27", "'").replace("%26", "&")
               .replace("%3C", "<").replace("%3E", ">") for link in links}  # fmt: skip
    assert len(targets) == 5 and all(target.is_file() for target in targets)
    assert (sweep.parent / "sweep.csv").read_text().count("\n") == 6


def test_runs_of_elsewhere_are_linked_and_may_have_nothing_in_common(tmp_path):
    (tmp_path / "runs").mkdir(), (tmp_path / "page").mkdir()
    runs = make_runs(tmp_path / "runs")
    page = Page(write_sweep(tmp_path / "page", rank(runs[:1], SweepConfig())))
    assert "Runs compared: page" in page.text
    assert page.sections == ["ranking", "curves"]
    assert any(a.startswith("../runs/0_lr") for a in page.addresses)
    nothing = Page(write_sweep(tmp_path / "page", rank(runs[3:], SweepConfig("no.such"))))
    assert "No run has finished with the figure to rank by" in nothing.text


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_click_sorts_by_value_and_missing_values_stay_last(sweep, tmp_path):
    with Browser(tmp_path / "profile") as browser:
        browser.show(390, 844, "dark")
        browser.open(sweep)

        def column(number: int) -> list[str]:
            cell = f"r => r.cells[{number}].textContent"
            return browser.run(f"[...document.querySelector('.sortable tbody').rows].map({cell})")

        title = "document.querySelectorAll('.sortable thead button')"
        ranked = column(1)
        assert ranked == ["0.9", "0.7", "0.5", "–", "–"]
        browser.run(f"{title}[1].click()")
        assert column(1) == ["0.5", "0.7", "0.9", "–", "–"]
        browser.run(f"{title}[1].click()")
        assert column(1) == ranked
        browser.run(f"[...{title}].find(b => b.textContent === 'time').click()")
        assert column(1) == ["–", "–", "0.9", "0.7", "0.5"]  # the later ones took less time
        fits = "document.documentElement.scrollWidth <= window.innerWidth"
        assert browser.run(fits)
        assert browser.problems == [] and browser.requests == [sweep.resolve().as_uri()]
