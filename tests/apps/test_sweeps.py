"""Sweeps as a person runs them: what fails is recorded, and the others go on."""

from __future__ import annotations

import csv
import json
import logging
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from arbiter.console import LogFile
from tests.conftest import ROOT, run_app

WALL_CLOCK = ("seconds", "per_sec", "_mb", "share")
TOO_LARGE = 65536  # a width whose weights take more than any small machine has


def small(features: Path, *, epochs: int = 1, samples: int = 400) -> list[str]:
    """A run of a second or two."""
    return [
        "experiment=smoke", "hardware=cpu", f"schedule.epochs={epochs}", "schedule.warmup_steps=1",
        "architecture.num_layers=1", f"dataset.sources.easy_vqa.max_samples={samples}",
        f"paths.features={features}",
    ]  # fmt: skip


def table(sweep: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((sweep / "sweep.csv").open(encoding="utf-8")))


def status(job: Path) -> dict:
    return json.loads((job / "status.json").read_text())


def figures(run: Path) -> list[dict]:
    """metrics.jsonl without what the clock and the process's size make of it."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in e.items() if not any(word in k for word in WALL_CLOCK)}
        for e in events
        if e["event"] in ("step", "epoch")
    ]


def weights(run: Path) -> bytes:
    return (run / "model" / "model_fp32.safetensors").read_bytes()


def said(run: Path) -> list[str]:
    """train.log without what tells the time."""
    lines = (run / "train.log").read_text().splitlines()
    return [li.split(" ", 2)[2] for li in lines if " in 0." not in li and "samples/s" not in li]


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> tuple[Path, Path, subprocess.CompletedProcess]:
    """A sweep whose last job alone is sound: the others are no number, invalid and too large."""
    folder = tmp_path_factory.mktemp("swept")
    done = run_app(
        "experiments.train", "-m", *small(folder / "features"),
        f"hydra.sweep.dir={folder / 'sweep'}", f"architecture.hidden_dim=x,2,{TOO_LARGE},64",
    )  # fmt: skip
    return folder / "sweep", folder / "features", done


NAMES = [f"{i}_hidden_dim-{dim}" for i, dim in enumerate(("x", 2, TOO_LARGE, 64))]


def test_failed_jobs_are_recorded_and_the_others_go_on(swept):
    sweep, _, done = swept
    assert done.returncode == 1, done.stdout + done.stderr
    assert sorted(p.name for p in sweep.iterdir() if p.is_dir()) == NAMES
    rows = table(sweep)
    assert [row["run"] for row in rows] == NAMES
    assert [row["status"] for row in rows] == ["failed"] * 3 + ["finished"]
    assert rows[3]["validation.accuracy"] and float(rows[3]["rss_mb"]) > 100
    for name, row in zip(NAMES[:3], rows[:3], strict=True):
        assert status(sweep / name)["error"] == row["error"] != ""
        assert row["validation.accuracy"] == ""
        assert f"failed: {name}: " in done.stdout
    assert "3 of 4 jobs failed; the same command with hydra.sweep.dir=" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_mistake_is_one_line_of_its_jobs_log(swept):
    sweep, *_ = swept
    for name, line in zip(NAMES, ("hidden_dim=x: must be an", "=2: must be an"), strict=False):
        log = (sweep / name / "train.log").read_text()
        assert line in log and len(log.splitlines()) == 1
    memory = (sweep / NAMES[2] / "train.log").read_text()
    assert "Traceback" not in memory and "failed: plan: RAM of" in memory
    assert "plan: RAM of" in status(sweep / NAMES[2])["error"]


def test_a_job_is_the_run_that_it_would_be_alone(swept, tmp_path):
    sweep, features, _ = swept
    alone = tmp_path / "alone"
    own = [*small(features), "architecture.hidden_dim=64", f"hydra.run.dir={alone}"]
    done = run_app("experiments.train", *own)
    assert done.returncode == 0, done.stderr
    job = sweep / NAMES[3]
    assert figures(job) == figures(alone) != []
    assert weights(job) == weights(alone)
    logged = [
        [line.split(" ", 2)[2] for line in (run / "train.log").read_text().splitlines()]
        for run in (job, alone)
    ]
    said = [
        # Times differ, what the machine has free, and where the run is.
        [li for li in lines if not any(word in li for word in ("in 0.", "epoch", "│", "report: "))]
        for lines in logged
    ]
    assert said[0] == said[1] != []


def sweep_here(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    """Run a sweep in this process; its exit status and all that it said."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", *arguments])
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    code = 0
    try:
        runpy.run_module("experiments.train", run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.fixture
def dying(monkeypatch):
    """Jobs that die as their seed says, while they read samples; what each found, in order."""
    found = []

    def load(config, seed):
        handlers = [type(handler) for handler in logging.getLogger().handlers]
        found.append((seed, torch.get_num_threads(), handlers.count(LogFile), len(handlers)))
        logging.getLogger("arbiter").info("this is job %d", seed)
        torch.set_num_threads(3)
        if seed == 0:
            sys.exit(3)
        if seed == 1:
            raise ZeroDivisionError("a bug of seed 1")
        raise KeyboardInterrupt

    monkeypatch.setattr("arbiter.pipeline.preparation.load_mix", load)
    return found


def test_jobs_that_exit_crash_or_are_stopped(monkeypatch, capsys, dying, tmp_path):
    threads = torch.get_num_threads()
    code, said = sweep_here(monkeypatch, capsys, "seed=0,1,2,3", f"hydra.sweep.dir={tmp_path}")
    assert code == 75
    assert "sweep: interrupted; the same command with hydra.sweep.dir=" in said
    jobs = [tmp_path / f"{i}_seed-{i}" for i in range(4)]
    states = [status(job)["status"] for job in jobs[:3]]
    assert states == ["failed", "failed", "interrupted"] and not jobs[3].exists()
    assert status(jobs[0])["error"] == "SystemExit: 3"
    assert status(jobs[1])["error"] == "ZeroDivisionError: a bug of seed 1"
    logs = [(job / "train.log").read_text() for job in jobs[:3]]
    assert "Traceback" in logs[1] and "a bug of seed 1" in logs[1]
    for seed, log in enumerate(logs):
        assert [f"this is job {s}" in log for s in range(3)] == [s == seed for s in range(3)]
    assert [row["status"] for row in table(tmp_path)] == states
    # Every job found the process as the first one did.
    assert dying == [(seed, threads, 1, 2) for seed in range(3)]
    assert torch.get_num_threads() == threads


def test_a_metric_that_does_not_exist_stops_the_sweep_and_loses_no_job(
    monkeypatch, capsys, swept, tmp_path
):
    sweep, features, _ = swept
    copy = tmp_path / "sweep"
    shutil.copytree(sweep / NAMES[3], copy / "0_num_heads-4")
    command = [
        *small(features), "architecture.hidden_dim=64", "architecture.num_heads=4,8", "resume=auto",
        f"hydra.sweep.dir={copy}",
    ]  # fmt: skip
    code, said = sweep_here(monkeypatch, capsys, *command, "sweep.metric=test.easy_vqa.acc")
    assert code == 1 and not list(copy.glob("1_*"))
    assert "sweep.metric=test.easy_vqa.acc: no such figure; test.easy_vqa holds n, accuracy" in said
    assert status(copy / "0_num_heads-4")["status"] == "finished"
    code, said = sweep_here(monkeypatch, capsys, *command, "sweep.metric=val_acc")
    assert code == 1 and "sweep.metric=val_acc: no such figure; summary.json holds validat" in said
    assert "failed" not in said and "sweep directory" not in said
    code, said = sweep_here(monkeypatch, capsys, *command, "sweep.direction=up")
    assert code == 1 and "sweep.direction=up: must be one of maximize, minimize" in said


@pytest.fixture
def copies(swept, tmp_path) -> tuple[Path, list[str]]:
    """A sweep of two jobs that are finished, beside an earlier one that failed; its command."""
    sweep, features, _ = swept
    for name in ("0_num_heads-4", "1_num_heads-4"):
        shutil.copytree(sweep / NAMES[3], tmp_path / "sweep" / name)
    shutil.copytree(sweep / NAMES[1], tmp_path / "sweep" / "1_num_heads-7")
    return tmp_path / "sweep", [
        *small(features), "architecture.hidden_dim=64", "architecture.num_heads=4,4", "resume=auto",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
    ]  # fmt: skip


def test_neither_jobs_of_an_earlier_time_nor_figures_that_jobs_lack_are_failures(
    monkeypatch, capsys, copies
):
    sweep, command = copies
    assert json.loads((sweep / "0_num_heads-4" / "summary.json").read_text())["exit"] is None
    code, said = sweep_here(monkeypatch, capsys, *command, "sweep.metric=exit.rate")
    assert code == 0 and "jobs failed" not in said
    for name in ("0_num_heads-4", "1_num_heads-4"):
        assert f"{name}: has no exit.rate, which counts as worse than any" in said
    states = {row["run"]: row["status"] for row in table(sweep)}
    assert states == {path.name: status(path)["status"] for path in sweep.glob("[01]_*")}
    assert "failed" in states.values()
    assert not list(sweep.glob(".*"))


def test_what_fails_this_time_counts_whatever_an_earlier_status_says(monkeypatch, capsys, copies):
    sweep, command = copies
    (sweep / "0_num_heads-4" / "summary.json").unlink()
    with FileLock(sweep / "1_num_heads-4" / ".lock"):
        code, said = sweep_here(monkeypatch, capsys, *command)
    assert code == 1 and "2 of 2 jobs failed" in said
    assert "failed: 1_num_heads-4: " in said and "another process is running there" in said


def test_a_job_keeps_the_settings_that_it_ran_with(monkeypatch, capsys, copies):
    sweep, command = copies
    job = sweep / "0_num_heads-4"
    files = [job / "summary.json", *(job / ".hydra").iterdir()]
    before = [path.read_bytes() for path in files]
    code, said = sweep_here(monkeypatch, capsys, *command, "optimizer.lr=0.01")
    assert code == 1 and "2 of 2 jobs failed" in said
    line = "optimizer.lr=0.01: the run has optimizer.lr=0.002, which cannot change on resume"
    assert f"failed: {job.name}: {line}" in said
    assert [path.read_bytes() for path in files] == before


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (("seed=3", "seed=x,1"), ["0_seed-x", "1_seed-1"]),
        (
            (
                "seed=1",
                "+dataset/source@dataset.sources.a=gqa",
                "+dataset/source@dataset.sources.b=nope,gqa",
            ),
            ["0_b-nope", "1_b-gqa"],
        ),
    ],
)
def test_a_job_that_does_not_compose_ends_no_sweep(
    monkeypatch, capsys, dying, tmp_path, overrides, names
):
    code, said = sweep_here(monkeypatch, capsys, *overrides, f"hydra.sweep.dir={tmp_path}")
    assert code == 1 and "2 of 2 jobs failed" in said
    assert [row["run"] for row in table(tmp_path)] == names
    assert [status(tmp_path / name)["status"] for name in names] == ["failed", "failed"]
    assert "a bug of seed 1" in said


def test_the_searcher_that_is_missing_is_named(mistake, monkeypatch):
    monkeypatch.setitem(sys.modules, "hydra_plugins.hydra_optuna_sweeper", None)
    line = mistake("train", "-m", "hydra/sweeper=optuna")
    assert "hydra/sweeper=optuna: the sweeper is not installed; pip install -e '.[optuna]'" in line


def interrupt(command: list[str], ready: Path, number: signal.Signals) -> tuple[int, str]:
    """Start a sweep, send it a signal once a file has two lines, and wait for its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *command], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    deadline = time.monotonic() + 600
    while not ready.exists() or len(ready.read_text().splitlines()) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.005)
    process.send_signal(number)
    said, _ = process.communicate(timeout=600)
    return process.returncode, said


@pytest.mark.slow
def test_a_sweep_that_is_stopped_and_killed_ends_as_an_undisturbed_one(tmp_path):
    rates = "optimizer.lr=1e-3,2e-3,4e-3"
    own = ["-m", *small(tmp_path / "features", epochs=3, samples=600), rates]
    calm = [*own, f"hydra.sweep.dir={tmp_path / 'calm'}"]
    done = run_app("experiments.train", *calm, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(tmp_path / "features")  # built anew, and once

    sweep = tmp_path / "sweep"
    jobs = [sweep / f"{i}_lr-{rate}" for i, rate in enumerate(("0.001", "0.002", "0.004"))]
    command = [*own, f"hydra.sweep.dir={sweep}"]
    code, said = interrupt(command, jobs[1] / "metrics.jsonl", signal.SIGINT)
    assert (code == 75 and "interrupted by SIGINT" in said) or "interrupted at step" in said
    assert [status(job)["status"] for job in jobs[:2]] == ["finished", "interrupted"]
    assert not jobs[2].exists()
    assert [row["status"] for row in table(sweep)] == ["finished", "interrupted"]
    shards = {p: p.stat().st_mtime_ns for p in (tmp_path / "features").rglob("*.safetensors")}
    assert shards

    code, _ = interrupt([*command, "resume=auto"], jobs[2] / "metrics.jsonl", signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert status(jobs[2])["status"] == "running"  # it could say nothing more
    untouched = (jobs[0] / "summary.json").stat().st_mtime_ns

    done = run_app("experiments.train", *command, "resume=auto", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"already finished: {jobs[0]}" in done.stdout
    assert (jobs[0] / "summary.json").stat().st_mtime_ns == untouched
    for job in jobs:
        calm = tmp_path / "calm" / job.name
        assert status(job)["status"] == "finished"
        assert figures(job) == figures(calm) and weights(job) == weights(calm)
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "features").rglob("*.safetensors")}
    assert after == shards


@pytest.mark.slow
def test_memory_does_not_grow_over_jobs(tmp_path):
    sweep = tmp_path / "sweep"
    done = run_app(
        "experiments.train", "-m", *small(tmp_path / "features"),
        f"hydra.sweep.dir={sweep}", "dataset.augment.shift_patches=0,1,2,3,4,5,6",
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rss = [float(row["rss_mb"]) for row in table(sweep)]
    # The first jobs load libraries and fill the allocator's arenas.
    assert max(rss[5:]) - max(rss[2:5]) < 15, rss


@pytest.mark.slow
def test_a_search_by_optuna_goes_on_after_failures_and_after_its_end(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    command = [
        "-m", *(a for a in small(tmp_path / "features") if "num_layers" not in a),
        "hydra/sweeper=optuna", "hydra.sweeper.n_trials=5",
        "hydra.sweeper.sampler.n_startup_trials=2", f"hydra.sweep.dir={tmp_path / 'sweep'}",
        "architecture.num_heads=choice(4,7)",
    ]  # fmt: skip
    done = run_app("experiments.train", *command)
    rows = table(tmp_path / "sweep")
    assert len(rows) == 5
    assert done.returncode == int(any(row["status"] == "failed" for row in rows))
    for row in rows:
        assert row["status"] == ("failed" if row["architecture.num_heads"] == "7" else "finished")
        assert 2e-4 <= float(row["optimizer.lr"]) <= 2e-2
        assert int(row["architecture.num_layers"]) in range(1, 5)
    again = run_app("experiments.train", *command, "resume=auto")
    finished = [row for row in rows if row["status"] == "finished"]
    assert again.stdout.count("already finished: ") == len(finished)
    assert [row["run"] for row in table(tmp_path / "sweep")] == [row["run"] for row in rows]
