"""The train app in several processes, as torchrun starts them. See `tests.joint`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

import experiments.train as train_app
from arbiter.training.checkpoint import list_states
from arbiter.training.trainer import Trainer
from experiments.processes import run_train_app
from experiments.sweep import supervised
from tests.apps.interrupted_runs import RUN
from tests.events import without_clock
from tests.joint import Processes, kill, run_tasks, until

# AdamW makes rounding as large as 1e-5 here; see tests/training/joint_trainings.py for a sharp one.
_ROUNDING = 1e-4


def start(folder: Path, size: int, *arguments: str, slow: bool = False) -> Processes:
    """The app in `size` processes with these arguments."""

    def task(rank: int) -> None:
        if slow:
            update = Trainer._update

            def slowly(*arguments: object) -> object:
                time.sleep(0.2)
                return update(*arguments)

            Trainer._update = slowly
        os.environ.pop("HYDRA_FULL_ERROR", None)
        sys.argv = ["train.py", *arguments]
        run_train_app(train_app.main, train_app.train, train_app.prepare, supervised)

    return Processes(folder, size, task)


def command(folder: Path) -> list[str]:
    """A small run; its directory is named by the time."""
    place = f"hydra.run.dir='{folder}/runs/${{now:%H-%M-%S-%f}}'"
    return [*RUN, f"paths.features={folder / 'features'}", place]


def result(run: Path) -> tuple[dict[str, torch.Tensor], list[dict]]:
    """The trained weights, and all events without what the clock says."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return load_file(run / "model" / "model_fp32.safetensors"), without_clock(events)


def assert_same(run: Path, reference: Path) -> None:
    """The same weights up to rounding, and the same lines of metrics.jsonl."""
    weights, events = result(run)
    expected, other_events = result(reference)
    apart = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
    assert apart < _ROUNDING, apart
    assert [list(e) for e in events] == [list(e) for e in other_events]
    steps = [(e["event"], e["step"], e["epoch"]) for e in events if e["event"] in ("step", "epoch")]
    assert len(set(steps)) == len(steps)
    assert {str(p.relative_to(run)) for p in run.rglob("*")} == {
        str(p.relative_to(reference)) for p in reference.rglob("*")
    }


def only(folder: Path) -> Path:
    """The one run directory."""
    (run,) = (folder / "runs").iterdir()
    return run


def status(run: Path) -> str:
    return json.loads((run / "status.json").read_text())["status"]


def alone(folder: Path) -> Path:
    """The run of one process."""
    start(folder / "alone", 1, *command(folder / "alone")).succeed()
    return only(folder / "alone")


def life(folder: Path) -> None:
    """One directory for two processes; one is killed, three go on, and there is nothing to do."""
    whole = alone(folder)
    place = folder / "joint"
    processes = start(place, 2, *command(place), slow=True)
    until(lambda: bool(list(place.glob("runs/*/resume/state-00000003"))))
    kill(processes, [1])
    statuses = processes.wait()
    assert statuses == [75, -signal.SIGKILL], f"{statuses}\n{processes.text()}"
    first, second = (path.read_text() for path in processes.output)
    assert second == "" and "Traceback" not in first, processes.text()
    last = first.strip().splitlines()[-1]
    assert last.startswith("stopped after step") and "another process of the run died" in last
    run = only(place)
    assert status(run) == "interrupted"
    assert f"after step {int(list_states(run / 'resume')[-1].name.split('-')[1])}:" in last

    goes_on = start(folder / "three", 3, f"resume={run}")
    goes_on.succeed()
    first, *others = (path.read_text() for path in goes_on.output)
    assert "going on from step" in first and others == ["", ""], goes_on.text()
    assert first.strip().splitlines()[-1] == f"run directory: {run}"
    assert status(run) == "finished"
    assert_same(run, whole)
    finished = start(folder / "done", 2, f"hydra.run.dir={run}", "resume=auto")
    finished.succeed()
    assert "already finished" in finished.output[0].read_text()


def mistakes(folder: Path) -> None:
    """A mistake is one line, whichever process meets it first; a sweep is refused."""
    for arguments, line in (
        (["architecture.num_heads=7"], "error: architecture.num_heads=7: must divide"),
        (["-m", "seed=1,2"], "error: -m: torchrun's processes do one run"),
        (["no_such_key=1"], "error: no_such_key: no such key"),
    ):
        processes = start(folder / line[7:12], 2, *command(folder), *arguments)
        statuses = processes.wait()
        assert statuses == [1, 1], f"{statuses}\n{processes.text()}"
        first, second = (path.read_text() for path in processes.output)
        assert first.startswith(line) and len(first.strip().splitlines()) == 1, first
        assert second == "", second


def signals(folder: Path) -> None:
    """SIGTERM to all, as torchrun sends it, ends all after the same step; so does one to one."""
    whole = alone(folder)
    for name, receivers in (("all", [0, 1]), ("one", [1])):
        place = folder / name
        processes = start(place, 2, *command(place), slow=True)
        until(lambda place=place: bool(list(place.glob("runs/*/resume/state-00000002"))))
        kill(processes, receivers, signal.SIGTERM)
        # torchrun's echo of the terminal's signal.
        kill(processes, receivers, signal.SIGTERM)
        statuses = processes.wait()
        assert statuses == [75, 75], f"{statuses}\n{processes.text()}"
        first, second = (path.read_text() for path in processes.output)
        assert second == "" and first.strip().splitlines()[-1].startswith("interrupted at step")
        run = only(place)
        assert status(run) == "interrupted"
        start(place / "again", 2, f"resume={run}").succeed()
        assert_same(run, whole)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_tasks({f.__name__: f for f in (life, mistakes, signals)})
