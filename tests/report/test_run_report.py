"""Pages of runs that have not ended, from files as experiments.train writes them."""

import json
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from arbiter.errors import RunError
from arbiter.evaluation.document import write_document
from arbiter.evaluation.figures import Evidence, evaluate
from arbiter.report import choose_gallery, write_gallery, write_report
from arbiter.report.wording import number
from tests.conftest import make_samples
from tests.evaluation.evidence import drawn, samples
from tests.report.parsed import SECTIONS, Page

EVIL = "<script>alert('x')</script>"


def write_run(path: Path, *events: dict, status: str = "running", **more: str) -> Path:
    """A run directory with these lines in metrics.jsonl."""
    path.mkdir(parents=True)
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (path / "metrics.jsonl").write_text(lines)
    said = {"status": status, "time": "2026-01-31T12:00:00+0000", **more}
    (path / "status.json").write_text(json.dumps(said))
    return path


BEGUN = {
    "event": "run",
    "seed": 3,
    "encoder": {"name": "raw", "random_weights": False},
    "parameters": {"trainable": 1_500_000, "active_per_token": 900_000, "frozen": 0},
    "samples": {"train": 900},
    "sources": {EVIL: {"splits": {"train": 900}, "modalities": {"image": 900}, "groups": 90}},
}
STEP = {"event": "step", "step": 5, "epoch": 1, "lr": 1e-3, "samples_per_sec": 100.0}
EPOCH = {"event": "epoch", "epoch": 1, "step": 9, "train_loss": 0.8, "val_loss": 0.9,
         "train_acc": 0.5, "val_acc": 0.625, "best_epoch": 1}  # fmt: skip


def test_a_run_that_goes_on_shows_what_there_is(tmp_path):
    run = write_run(tmp_path / "run", BEGUN, STEP, EPOCH)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "st')  # the line that is being written
    with FileLock(run / ".lock"):
        page = Page(write_report(run))
    assert page.sections == SECTIONS
    assert "Best validation accuracy so far: 62.50%" in page.text
    assert "This page shows the run so far" in page.text
    assert "no expert_load" in page.text


def test_skipped_steps_are_said_and_leave_gaps(tmp_path):
    events = [BEGUN, {**STEP, "cross_entropy": None, "train_acc": None}]
    for epoch, skipped in ((1, 0), (2, 1234)):
        figures = {"epoch": epoch, "skipped_steps": skipped, "train_loss": None, "train_acc": None}
        events.append({**EPOCH, **figures})
        text = Page(write_report(write_run(tmp_path / str(epoch), *events))).text_of["learning"]
        assert ("not finite: 1,234." in text) == (skipped > 0)


def test_an_older_runs_missing_fields_are_said_or_left_out(tmp_path):
    events = (
        {"event": "run", "seed": 1},
        {"event": "step", "step": 1},
        {"event": "epoch", "epoch": 1},
    )
    page = Page(write_report(write_run(tmp_path / "run", *events)))
    assert page.sections == SECTIONS
    assert "not recorded" in page.text_of["learning"]


def test_a_failed_run_says_why_and_an_interrupted_one_how_to_go_on(tmp_path):
    failed = write_run(tmp_path / "f", status="failed", error=f"dataset.path={EVIL}: no such file")
    page = Page(write_report(failed))
    assert page.sections == SECTIONS
    assert f"dataset.path={EVIL}: no such file" in page.text
    assert "cannot be gone on with" in page.text

    stopped = write_run(tmp_path / "i", BEGUN, STEP, EPOCH, status="interrupted")
    (stopped / "resume" / "state-00000009").mkdir(parents=True)
    text = Page(write_report(stopped)).text
    assert f"step 9; python -m experiments.train resume={stopped} goes on" in text


def test_a_killed_run_is_interrupted_and_says_how_to_go_on(tmp_path):
    run = write_run(tmp_path / "run", BEGUN, STEP, EPOCH)  # its lock is nobody's
    (run / "resume" / "state-00000009").mkdir(parents=True)
    text = Page(write_report(run)).text
    assert "Interrupted. A decision model" in text and "Running" not in text
    assert f"python -m experiments.train resume={run} goes on" in text


def test_a_run_that_goes_on_past_its_end_shows_no_figures_of_that_end(tmp_path):
    run = write_run(tmp_path / "run", BEGUN, EPOCH)
    write_gallery(run, "test", choose_gallery(make_samples()[:1], np.array([[1.0, 0, 0, 0]])))
    assert "No decisions are kept" in Page(write_report(run)).text


def test_an_uncalibrated_run_has_all_its_sections(tmp_path):
    found, answer = drawn(30, np.random.default_rng(0))
    figures = evaluate(Evidence(samples(answer), found, [("not_calibrated",)] * 30, found.mask / 4))
    final = {**BEGUN, "event": "final", "calibration": None, "exit": None, "deliberation": None}
    run = write_run(tmp_path / "run", BEGUN, STEP, EPOCH, final)
    write_document(run, "test", {"held_out": True, "notes": ["not calibrated"], **figures})
    page = Page(write_report(run))
    assert page.sections == SECTIONS
    assert f"ECE{number(figures['overall']['ece'], 3)}calibration error" in page.text
    assert "it is not calibrated" in page.text_of["sets"]


def test_what_is_not_a_run_or_is_damaged_is_one_line(tmp_path):
    with pytest.raises(RunError, match="not a run directory"):
        write_report(tmp_path)
    run = write_run(tmp_path / "run", BEGUN)
    (run / "metrics.jsonl").write_text('{"event": "run"}\nnonsense\n{}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 2 is damaged"):
        write_report(run)
    (run / "metrics.jsonl").write_text("{}\n[]\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl: line 2 is damaged"):
        write_report(run)
    (run / "metrics.jsonl").write_text("")
    for text in ("", "{}", "[]"):
        (run / "status.json").write_text(text)
        with pytest.raises(RunError, match=r"status\.json: damaged"):
            write_report(run)


@pytest.mark.parametrize("text", ["a: [1,", "5", "- x", ""])
def test_half_a_configuration_is_one_line(tmp_path, text):
    run = write_run(tmp_path / "run", BEGUN)
    (run / ".hydra").mkdir()
    (run / ".hydra" / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=r"config\.yaml: damaged, it is no configuration"):
        write_report(run)


def test_the_configuration_is_held_against_the_default(tmp_path):
    run = write_run(tmp_path / "run", BEGUN)
    assert "not started by experiments.train" in Page(write_report(run)).text
    (run / ".hydra").mkdir()
    (run / ".hydra" / "config.yaml").write_text(f"seed: 3\nsame: 1\nmine: {{a: '{EVIL[:8]}'}}\n")
    text = Page(write_report(run)).text
    assert "No default configuration is at hand" in text
    assert "all 3 keys" in text
    default = {"seed": 0, "same": 1, "later": True}
    text = Page(write_report(run, default)).text
    assert "keydefaultthis runmine.a(no such key)<script>seed03" in text
    assert "1 keys of the default that the run has not" in text
