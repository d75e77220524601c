"""`resume=` as a person types it: what may change, what may not, and what is left alone."""

import json
import logging
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from arbiter.pipeline import completion
from arbiter.training.interruption import Interruption
from tests.conftest import run_app
from tests.events import without_clock


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Path, Path]:
    """A run with constant rate that stopped after its first step, and its features."""
    folder = tmp_path_factory.mktemp("stopped")
    done = run_app("experiments.train", *command(folder / "run", folder / "features"))
    assert done.returncode == 75, done.stdout + done.stderr
    return folder / "run", folder / "features"


def command(run: Path, features: Path) -> list[str]:
    """A small run that stops after its first step."""
    return [
        "experiment=smoke", "hardware=cpu", "schedule=constant", "schedule.epochs=2",
        "dataset.sources.easy_vqa.max_samples=400", "architecture.num_layers=1",
        "checkpoint.max_minutes=1e-9", f"paths.features={features}", f"hydra.run.dir={run}",
    ]  # fmt: skip


@pytest.fixture
def copy(stopped, tmp_path) -> Path:
    """The stopped run, to be spoilt."""
    return Path(shutil.copytree(stopped[0], tmp_path / "run"))


def status(run: Path) -> str:
    return json.loads((run / "status.json").read_text())["status"]


def run_here(monkeypatch, *arguments: str) -> int | None:
    """The exit status of the train app, run in this process."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        runpy.run_module("experiments.train", run_name="__main__")
    except SystemExit as stopped:
        return stopped.code
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return None


def saved(run: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in (run / ".hydra").iterdir()}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("optimizer.lr=1e-4", "optimizer.lr=0.0001: the run has optimizer.lr=0.002, which cannot"),
        ("seed=1", "seed=1: the run has seed=0, which cannot change"),
        ("optimizer=muon", "optimizer._target_=arbiter.training.muon.muon: the run has optimizer"),
        ("schedule.epochs=1", "schedule.epochs=1: the run has schedule.epochs=2, which cannot"),
        ("schedule=cosine", "schedule.decay=cosine: the run has schedule.decay=constant, which"),
        ("experiment=faster", "optimizer.lr=0.02: the run has optimizer.lr=0.002, which cannot"),
        (
            "+dataset/source@dataset.sources.more=easy_vqa",
            "dataset.sources.more._target_=arbiter.datasets.easy_vqa.EasyVQA: the run has dataset.",
        ),
    ],
)
def test_what_would_be_another_run_is_refused(mistake, copy, tmp_path, override, line):
    before = saved(copy)
    preset = tmp_path / "conf" / "experiment" / "faster.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\ndefaults: [smoke, _self_]\noptimizer: {lr: 0.02}\n")
    search = f"hydra.searchpath=[file://{tmp_path / 'conf'}]"
    assert line in mistake("train", f"resume={copy}", override, search)
    assert saved(copy) == before


def test_a_cosine_cannot_be_extended(mistake, stopped, tmp_path):
    run, features = tmp_path / "run", stopped[1]
    own = [a for a in command(run, features) if a != "schedule=constant"]
    done = run_app("experiments.train", *own)
    assert done.returncode == 75, done.stderr
    line = mistake("train", f"resume={run}", "schedule.epochs=9")
    assert "schedule.epochs=9: the run has schedule.epochs=2, which cannot change" in line


def test_hardware_logging_checkpoint_and_more_epochs_are_free(copy):
    done = run_app(
        "experiments.train", f"resume={copy}", "schedule.epochs=3", "checkpoint.max_minutes=null",
        "checkpoint.every_steps=2", "logging.every_steps=1", "hardware.micro_batch_size=4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "going on from step 1 of" in done.stdout
    events = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert [e["epoch"] for e in events if e["event"] == "epoch"] == [1, 2, 3]
    assert [e["event"] for e in events].count("run") == 1


def test_a_run_stops_between_calibration_and_test_as_well(copy, monkeypatch, capsys):
    calibrated, calibrate = [], completion.calibrate
    monkeypatch.setattr(
        completion, "calibrate", lambda *given: calibrated.append(1) or calibrate(*given)
    )
    monkeypatch.setattr(
        Interruption, "reason", property(lambda _: "enough" if calibrated else None)
    )
    assert run_here(monkeypatch, f"resume={copy}") == 75
    assert capsys.readouterr().err == f"interrupted: enough; resume={copy} goes on with it\n"
    assert status(copy) == "interrupted"
    assert not (copy / "evaluation").exists() and not (copy / "model").exists()

    # What is left writes no state: under the same limit it would never come to an end.
    monkeypatch.undo()
    assert run_here(monkeypatch, f"resume={copy}", "checkpoint.max_minutes=1e-9") is None
    assert status(copy) == "finished"


def test_a_run_is_not_overwritten(mistake, copy, stopped):
    before = saved(copy)
    status = (copy / "status.json").read_bytes()
    line = mistake("train", *command(copy, stopped[1]), "optimizer.lr=1")
    assert f"{copy}: holds a run already; give resume=auto" in line
    assert saved(copy) == before
    assert (copy / "status.json").read_bytes() == status


def test_there_must_be_a_run_to_go_on_with(mistake, tmp_path):
    assert "no run to go on with" in mistake("train", f"resume={tmp_path / 'nowhere'}")
    (tmp_path / ".hydra").mkdir()
    # As a kill leaves it between making the file and filling it.
    (tmp_path / ".hydra" / "overrides.yaml").touch()
    assert "no run to go on with" in mistake("train", f"resume={tmp_path}")
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- a: [1,")
    assert "no run to go on with" in mistake("train", f"resume={tmp_path}")


def test_a_sweep_does_not_go_on_with_one_run(mistake, copy):
    line = mistake("train", "-m", f"resume={copy}")
    assert f"resume={copy}: names one run, which goes on without -m; a sweep goes on with" in line


def test_a_finished_run_is_held_against_the_command_and_can_be_extended(
    mistake, monkeypatch, capsys, stopped, tmp_path
):
    """As if it had had the larger number of epochs from the beginning, decay and all."""
    own = [
        a for a in command(tmp_path, stopped[1]) if not a.startswith(("hydra", "sched", "check"))
    ]
    own += ["schedule=warmup_stable_decay", "schedule.decay_epochs=1", "schedule.warmup_steps=3"]
    own += ["schedule.batch_size=64"]

    def train(run, *arguments):
        assert run_here(monkeypatch, *own, f"hydra.run.dir={run}", *arguments) is None
        return capsys.readouterr().out

    run, whole = tmp_path / "run", tmp_path / "whole"
    train(whole, "schedule.epochs=3")
    train(run, "schedule.epochs=2")
    again = [*own, f"hydra.run.dir={run}", "resume=auto", "schedule.epochs=2"]
    line = mistake("train", *again, "optimizer.lr=1")
    assert "optimizer.lr=1.0: the run has optimizer.lr=0.002, which cannot change" in line
    assert f"already finished: {run}" in train(run, "resume=auto", "schedule.epochs=2")
    assert status(run) == "finished"

    assert "already finished" not in train(run, "resume=auto", "schedule.epochs=3")
    assert result(run) == result(whole)

    before_decay = min((run / "resume").iterdir())
    shutil.rmtree(before_decay)
    line = mistake("train", f"resume={run}", "schedule.epochs=4")
    step = int(before_decay.name.removeprefix("state-"))
    assert (
        f"schedule.epochs=4: the run has schedule.epochs=3, its decay began at step {step}" in line
    )
    assert "no intact state up to there is left" in line


def result(run: Path) -> tuple[bytes, list[dict]]:
    """The trained weights, and all events without what the clock says."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for event in events:
        event.pop("machine", None)  # what it has free differs
    return (run / "model" / "model_fp32.safetensors").read_bytes(), without_clock(events)


def test_a_sweep_goes_on_where_it_stopped(mistake, stopped, tmp_path):
    """One job finished, one interrupted, one not begun."""
    _, features = stopped
    free = ("hydra.run.dir", "checkpoint")
    own = [a for a in command(tmp_path, features) if not a.startswith(free)]
    sweep = ["-m", *own, f"hydra.sweep.dir={tmp_path / 'sweep'}", "optimizer.lr=1e-3,2e-3,4e-3"]
    done = run_app("experiments.train", *sweep)
    assert done.returncode == 0, done.stderr
    jobs = [tmp_path / "sweep" / f"{i}_lr-{lr}" for i, lr in enumerate((0.001, 0.002, 0.004))]
    weights = [(job / "model" / "model_fp32.safetensors").read_bytes() for job in jobs]
    assert len(set(weights)) == 3

    assert "holds a sweep already; give resume=auto" in mistake("train", *sweep)
    line = mistake("train", f"resume={tmp_path / 'sweep'}")
    assert "holds a sweep; give its command again with hydra.sweep.dir=" in line

    # As after a kill: job 1 has its states, and neither model nor end; job 2 is not there.
    for name in ("model", "status.json", "summary.json", "report.html"):
        path = jobs[1] / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(jobs[2])
    untouched = (jobs[0] / "summary.json").stat().st_mtime_ns
    done = run_app("experiments.train", *sweep, "resume=auto")
    assert done.returncode == 0, done.stderr
    assert f"already finished: {jobs[0]}" in done.stdout
    assert (jobs[0] / "summary.json").stat().st_mtime_ns == untouched
    assert "going on from step" in (jobs[1] / "train.log").read_text()
    assert [(job / "model" / "model_fp32.safetensors").read_bytes() for job in jobs] == weights
    for job in jobs:
        assert json.loads((job / "status.json").read_text())["status"] == "finished"
