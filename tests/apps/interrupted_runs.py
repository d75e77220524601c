"""Small runs of the train app in forked children, which are killed, signalled or starved of disk.

A program of its own, as only processes can be: it imports everything once and forks for each run,
which spares every run the seconds of its imports.

python -m tests.apps.interrupted_runs <folder> kill:<seed>:<trials> full:<every> signals small ...

prints the outcome of each as JSON: a number, or the text of what went wrong.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import experiments.train
from arbiter.encoders.raw import RawEncoder
from arbiter.pipeline import preparation
from arbiter.training.checkpoint import list_states
from arbiter.training.trainer import Trainer
from experiments.app import run_app
from experiments.resume import resume_arguments
from tests.children import fork
from tests.events import without_clock

RUN = (
    "experiment=smoke", "hardware=cpu", "dataset.sources.easy_vqa.max_samples=500",
    "schedule.batch_size=8", "schedule.swa.start_epoch=2", "architecture.num_layers=2",
    "checkpoint.every_steps=1", "logging.every_steps=1",
)  # fmt: skip
_LONGEST_SECONDS = 120
_FREEING = ("os.remove", "os.rmdir")

Hook = Callable[[str], None]


class Place:
    """Where a run lives, and its features."""

    def __init__(self, folder: Path):
        self.run, self.features, self.output = folder / "run", folder / "features", folder / "out"
        folder.mkdir(parents=True, exist_ok=True)

    def command(self, resume: str | None = "auto") -> list[str]:
        """The command that begins the run, and goes on with it."""
        if resume == "dir" and (self.run / ".hydra" / "overrides.yaml").exists():
            return [f"resume={self.run}"]
        own = [*RUN, f"paths.features={self.features}", f"hydra.run.dir={self.run}"]
        return own if resume is None else [*own, "resume=auto"]

    def result(self) -> tuple[bytes, list[dict]]:
        """The trained weights, and all events without what the clock says."""
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        events = without_clock([json.loads(line) for line in lines])
        for event in events:
            event.pop("machine", None)  # what it has free differs
        return (self.run / "model" / "model_fp32.safetensors").read_bytes(), events

    def leftovers(self) -> list[str]:
        """Temporary files that nobody cleared up."""
        found = (self.run.rglob(f".*{ending}") for ending in (".writing", ".replaced"))
        return [str(path) for paths in found for path in paths]


def start(place: Place, arguments: list[str], before: Callable[[], None] | None = None) -> int:
    """A run in a child; `before` is called in it first. The child's process id."""
    place.output.write_text("")

    def run() -> None:
        sys.argv = ["train.py", *arguments]
        if before is not None:
            before()
        run_app(experiments.train.main, "train", resume_arguments)

    return fork(place.output, _LONGEST_SECONDS, run)


def wait(child: int) -> int:
    """The child's exit status; minus the signal's number for one that was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def on_file_operation(folder: Path, hook: Hook) -> None:
    """Call `hook` before each change of the file system below `folder`, from now on.

    safetensors writes past Python's eyes; its files are seen when they are forced to disk.
    """
    inside = str(folder)

    def audit(event: str, values: tuple) -> None:
        if event == "open":
            path, mode, flags = values
            changes = isinstance(path, (str, os.PathLike)) and (
                bool(flags & (os.O_WRONLY | os.O_RDWR)) or (isinstance(mode, str) and mode != "r")
            )
        else:
            changes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
        if changes and str(values[0]).startswith(inside):
            hook(f"{event} {values[0]}")

    sys.addaudithook(audit)
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(inside):
            hook(f"fsync {path}")
        sync(descriptor)

    os.fsync = fsync


def killing(folder: Path, number: int, after: str = "") -> Callable[[], None]:
    """Die before the file operation of this number, counted from the first that names `after`."""
    seen = 0

    def hook(operation: str) -> None:
        nonlocal seen
        seen += bool(seen or after in operation)
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: on_file_operation(folder, hook)


def once(function: Callable[..., object]) -> Callable[..., object]:
    """The same, which gives its first result again whatever it is asked."""
    results = []

    def remembered(*arguments: object) -> object:
        if not results:
            results.append(function(*arguments))
        return results[0]

    return remembered


def uninterrupted(folder: Path) -> tuple[Place, float]:
    """A run that is left alone, and the seconds of one like it."""
    # In this process, so that its children find imported what is imported late, and have what
    # takes most of a run's time, is always the same and writes nothing.
    place = Place(folder / "whole")
    preparation.load_mix = once(preparation.load_mix)
    preparation.plan_run = once(preparation.plan_run)
    experiments.train.default_config = once(experiments.train.default_config)
    sys.argv = ["train.py", *place.command()]
    with contextlib.redirect_stdout(io.StringIO()):
        run_app(experiments.train.main, "train", resume_arguments)
    again, started = Place(folder / "again"), time.monotonic()
    status = wait(start(again, again.command()))
    assert status == 0, again.output.read_text()
    assert again.result() == place.result(), "the same command twice gives two results"
    return place, time.monotonic() - started


def check(place: Place, whole: Place) -> None:
    """A run that was disturbed ends as the one that was not."""
    status = wait(start(place, place.command()))
    assert status == 0, place.output.read_text()
    weights, events = place.result()
    assert weights == whole.result()[0], "other weights"
    assert events == whole.result()[1], "other events"
    assert not place.leftovers(), place.leftovers()
    assert json.loads((place.run / "status.json").read_text())["status"] == "finished"


def kill_trial(folder: Path, whole: Place, seconds: float, rng: random.Random) -> int:
    """A run killed at several instants, each in its turn; how many kills hit."""
    place, kills = Place(folder), 0
    instants = [("building", 30), ("time", None), ("state", 60), ("finalising", 30)]
    if rng.random() < 0.5:
        instants.insert(rng.randrange(4), ("time", None))
    for kind, operations in instants:
        resume = rng.choice(["auto", "dir"])
        if kind == "time":
            child = start(place, place.command(resume))
            time.sleep(rng.uniform(0, seconds))
            os.kill(child, signal.SIGKILL)
        else:
            after = {"building": "", "state": "state-", "finalising": ".model."}[kind]
            before = killing(folder, rng.randint(1, operations), after)
            child = start(place, place.command(resume), before)
        kills += wait(child) == -signal.SIGKILL
    check(place, whole)
    return kills


def kill(folder: Path, whole: Place, seconds: float, seed: int, trials: int) -> int:
    """Kills that hit, over all trials."""
    rng = random.Random(seed)
    return sum(kill_trial(folder / str(i), whole, seconds, rng) for i in range(trials))


def filling(folder: Path, number: int, code: int) -> Callable[[], None]:
    """From the file operation of this number on, the disk takes nothing; it may be emptied."""
    seen = 0

    def hook(operation: str) -> None:
        nonlocal seen
        frees = operation.startswith(_FREEING)
        seen += not frees
        if seen >= number and not (frees and code == errno.ENOSPC):
            raise OSError(code, os.strerror(code), operation.split(" ", 1)[1])

    return lambda: on_file_operation(folder, hook)


def count_operations(folder: Path) -> list[str]:
    """Every file operation of a run that may need space, in order."""
    place, record = Place(folder / "counted"), folder / "operations"

    def note() -> None:
        log = os.open(record, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        on_file_operation(folder / "counted", lambda op: os.write(log, f"{op}\n".encode()) and None)

    status = wait(start(place, place.command(), note))
    assert status == 0, place.output.read_text()
    lines = record.read_text().splitlines()
    return [line for line in lines if not line.startswith(_FREEING)]


def check_failure(place: Place, status: int) -> None:
    """A run that the disk ended says so in one line, as its last."""
    text = place.output.read_text()
    assert status == 1, f"{status}\n{text}"
    assert "Traceback" not in text, text
    last = text.strip().splitlines()[-1]
    assert last.startswith("error: ") and text.count("error: ") == 1, text
    assert str(place.run.parent) in last and ";" in last, last
    assert any(os.strerror(c) in last for c in (errno.ENOSPC, errno.EROFS)), last


def full(folder: Path, whole: Place, seconds: float, every: int) -> int:
    """The disk is full, or read-only, from each `every`th operation on; then it is well again."""
    operations = count_operations(folder)
    trials = range(1, len(operations) + 1, every)
    for i, number in enumerate(trials):
        place = Place(folder / str(number))
        code = (errno.ENOSPC, errno.EROFS)[i % 2]
        status = wait(start(place, place.command(), filling(folder / str(number), number, code)))
        try:
            check_failure(place, status)
            check(place, whole)
        except AssertionError as error:
            where = f"from operation {number} on, {operations[number - 1]}"
            raise AssertionError(f"{where}: {error}") from error
    return len(trials)


def remount(disk: Path, options: str) -> None:
    """Change a mounted file system."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def small(folder: Path, whole: Place, seconds: float) -> int:
    """A real small disk on `<folder>/disk`, from too small to almost large enough."""
    place, failures = Place(folder / "disk"), 0
    place.output = folder / "out"
    for options in ("size=64k", "size=1m", "size=3m", "size=8m", "size=16m", "ro", "rw,size=20m"):
        remount(folder / "disk", options)
        status = wait(start(place, place.command()))
        if status:
            check_failure(place, status)
            failures += 1
    remount(folder / "disk", "rw,size=200m")
    check(place, whole)
    return failures


def slowed() -> None:
    """Give a signal time to arrive: encoding and steps take a while."""
    encode, update = RawEncoder.encode_image, Trainer._update

    def encode_slowly(self: RawEncoder, images: object) -> object:
        time.sleep(1)
        return encode(self, images)

    def update_slowly(self: Trainer, *arguments: object) -> object:
        time.sleep(0.2)
        return update(self, *arguments)

    RawEncoder.encode_image, Trainer._update = encode_slowly, update_slowly


def signals(folder: Path, whole: Place, seconds: float) -> int:
    """Each signal while features are built, then while training; the run ends as if left alone."""
    place, count = Place(folder), 0
    for phase in ("samples: ", "state"):
        for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
            before = list_states(place.run / "resume")[-1:]
            child = start(place, place.command(), slowed)
            give_up = time.monotonic() + _LONGEST_SECONDS
            while time.monotonic() < give_up:
                further = list_states(place.run / "resume")[-1:] > before
                if further if phase == "state" else phase in place.output.read_text():
                    break
                time.sleep(0.01)
            os.kill(child, getattr(signal, name))
            status, text = wait(child), place.output.read_text()
            assert status == 75, f"{name}, {phase}: status {status}\n{text}"
            assert "Traceback" not in text and "error" not in text, text
            last = text.strip().splitlines()[-1]
            assert last.startswith("interrupted") and name in last, text
            said = json.loads((place.run / "status.json").read_text())["status"]
            assert said == "interrupted", said
            assert list_states(place.run / "resume") or phase != "state", "no state was written"
            count += 1
    check(place, whole)
    return count


def main() -> None:
    """See the module's docstring."""
    torch.set_num_threads(1)
    folder, tasks = Path(sys.argv[1]), sys.argv[2:]
    outcome: dict[str, int | str] = {}
    whole, seconds = uninterrupted(folder)
    for task in tasks:
        name, *numbers = task.split(":")
        function = {"kill": kill, "full": full, "small": small, "signals": signals}[name]
        (folder / name).mkdir(exist_ok=True)
        try:
            outcome[name] = function(folder / name, whole, seconds, *map(int, numbers))
        except AssertionError as error:
            outcome[name] = str(error)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
