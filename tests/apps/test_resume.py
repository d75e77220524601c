"""`resume=` as a person types it: what may change, what may not, and what is left alone."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import run_app


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
    ],
)
def test_what_would_be_another_run_is_refused(mistake, copy, override, line):
    before = saved(copy)
    assert line in mistake("train", f"resume={copy}", override)
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
