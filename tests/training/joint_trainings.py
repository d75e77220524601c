"""Trainings by several processes. See `tests.joint`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.errors import ProcessLost, RunInterrupted
from arbiter.features.batch import DecisionBatch
from arbiter.features.dataset import FeatureDataset, index_samples
from arbiter.features.sampler import epoch_blocks
from arbiter.features.store import FeatureStore
from arbiter.foils import FoilsConfig, attach_foils, bank_texts
from arbiter.hardware import distributed
from arbiter.model.dropout import DropoutAddresses
from arbiter.model.moe import MoEConfig
from arbiter.training.checkpoint import list_states, load_newest_state, share_state
from arbiter.training.run_directory import Onlooker, RunDirectory
from arbiter.training.schedules import SWAConfig
from arbiter.training.trainer import Trainer
from tests.conftest import make_samples
from tests.events import without_clock
from tests.joint import Processes, run_tasks
from tests.training.test_trainer import make_trainer, read_events
from tests.training.test_trainer_options import OPTIONS as PART_OPTIONS

# AdamW divides a gradient by its own size, and so makes the rounding of a gradient near zero as
# large as any step. Above this size it does not.
EPS = 1e-3

# Every term, dropout of both kinds, averaging; micro-batches of one block, so that dropout, which
# is drawn by the micro-batch, is the same however many processes there are.
ALL = {
    **PART_OPTIONS, "epochs": 4, "schedule": {"swa": SWAConfig(start_epoch=2)},
    "micro_batch_size": 1, "eps": EPS,
}  # fmt: skip
# Two blocks a step: the third process never has any work. Loads balanced by a loss.
IDLE = {
    **ALL, "schedule": {"batch_size": 2},
    "architecture": {"moe": MoEConfig(4, top_k=2, ffn_dim=16, shared_ffn_dim=24)},
}  # fmt: skip
# Larger micro-batches than a process's share of a step, which are cut; no dropout in the model.
CUT = {
    "epochs": 4, "objective": replace(ALL["objective"], modality_dropout=0.0),
    "micro_batch_size": 16, "eps": EPS,
}  # fmt: skip

Prepare = Callable[[Trainer], None]


class Stop:
    """Asks to stop in some processes once a step is done; `never` for a whole run."""

    def __init__(self, trainer: Trainer, step: int | None, asks: bool = True):
        self._trainer, self._step, self._asks = trainer, step, asks

    def defer(self, deferred: bool) -> None:
        pass

    @property
    def reason(self) -> str | None:
        return "test" if self._asks and self._trainer.step == self._step else None


def data(folder: Path) -> tuple[FeatureDataset, RawEncoder]:
    """The samples of the other tests, with foils."""
    encoder, config = (
        RawEncoder(RawEncoderConfig()),
        FoilsConfig(weight=1.0, count=4, min_similarity=-0.03),
    )
    samples = make_samples()
    texts = bank_texts(config, samples)
    store = FeatureStore(folder / "features", encoder)
    dataset = index_samples({"all": samples}, store, encoder.spec, texts)["all"]
    return attach_foils(config, texts, dataset, store), encoder


class Job:
    """A run in `<folder>/run`, in one process or several, until it ends or is stopped."""

    def __init__(self, folder: Path, options: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.options = folder, options
        self.dataset, self.encoder = data(folder)

    def part(
        self, size: int, stop: int | None = None, asks: int | None = None, prepare: Prepare = id
    ) -> list[int]:
        """Go on with `size` processes up to a step; their exit statuses.

        Args:
            asks: the one process that asks to stop; None for all.
            prepare: spoils a process's trainer.
        """

        def task(rank: int) -> None:
            ranks = distributed.start()
            trainer = make_trainer(self.dataset, self.encoder, ranks=ranks, **self.options)
            prepare(trainer)
            stopper = Stop(trainer, stop, asks in (None, rank))
            try:
                self._fit(trainer, stopper)
            except ProcessLost as error:
                assert rank or "stopped after step" in str(error), error
                os._exit(75)
            except RunInterrupted as error:
                expected = "test" if asks in (None, rank) else "another process of the run was"
                assert f"interrupted at step {stop}: {expected}" in str(error), error
                os._exit(75)
            save_file(trainer.model.state_dict(), self.folder / f"weights-{rank}")

        for path in self.folder.glob("weights-*"):
            path.unlink()
        processes = Processes(self.folder / "output", size, task)
        statuses = processes.wait()
        assert all(s in (0, 75, -signal.SIGKILL) for s in statuses), processes.text()
        return statuses

    def _fit(self, trainer: Trainer, stopper: Stop) -> None:
        if not trainer.ranks.first:
            state = share_state(None, trainer.ranks)
            if state is not None:
                trainer.restore(state, Onlooker())
            trainer.fit(Onlooker(), stopper)
            return
        with RunDirectory(self.folder / "run") as run:
            state = share_state(load_newest_state(run.resume), trainer.ranks)
            if state is not None:
                trainer.restore(state, run)
            trainer.fit(run, stopper)

    def whole(self, size: int) -> Job:
        """Go on to the end."""
        assert self.part(size) == [0] * size
        return self

    def weights(self) -> dict[str, torch.Tensor]:
        """What the run ended with, which all processes have to the bit."""
        first, *others = (load_file(path) for path in sorted(self.folder.glob("weights-*")))
        for other in others:
            assert all(torch.equal(first[name], other[name]) for name in first)
        return first

    def events(self) -> list[dict]:
        return without_clock(read_events(self.folder / "run"))

    def newest_step(self) -> int:
        return int(list_states(self.folder / "run" / "resume")[-1].name.split("-")[1])


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference of any weight."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def assert_same_run(job: Job, reference: Job, rounding: float) -> None:
    """The same weights up to rounding, and the same events with the same figures."""
    found = distance(job.weights(), reference.weights())
    assert found <= rounding, f"weights differ by {found}, more than {rounding}"
    mine, theirs = job.events(), reference.events()
    assert [list(event) for event in mine] == [list(event) for event in theirs]
    for event, other in zip(mine, theirs, strict=True):
        for name, value in other.items():
            if name in ("val_acc_by_source", "expert_load", "best_epoch"):
                continue  # a choice between near equals may fall the other way
            near = isinstance(value, float) or name == "val_loss_by_source"
            expected = pytest.approx(value, rel=1e-3, abs=1e-3) if near else value
            assert event[name] == expected, (name, event, other)


# A step moves a weight by up to the rate, 5e-3, times the gradient over EPS: rounding of 1e-8 in
# the gradient is 5e-8 a step, over 16 steps or so. Without one block's part it would be 1e-3.
ROUNDING = 2e-6


def weights(folder: Path) -> dict[str, float]:
    """Two and three processes end with the weights of one; how far they are apart."""
    apart = {}
    for name, options in (("all", ALL), ("idle", IDLE), ("cut", CUT)):
        alone = Job(folder / name / "1", options).whole(1)
        for size in (2, 3):
            job = Job(folder / name / str(size), options).whole(size)
            assert_same_run(job, alone, ROUNDING)
            apart[f"{name} {size}"] = distance(job.weights(), alone.weights())
    return apart


def quick(folder: Path) -> float:
    """The same for two processes and every option at once."""
    alone, job = Job(folder / "1", ALL).whole(1), Job(folder / "2", ALL).whole(2)
    assert_same_run(job, alone, ROUNDING)
    untrained = make_trainer(alone.dataset, alone.encoder, **ALL).model.state_dict()
    assert distance(untrained, alone.weights()) > 1e4 * ROUNDING
    return distance(job.weights(), alone.weights())


def skipped(folder: Path) -> None:
    """A step without a finite loss in one process: all skip it, and all name its samples."""
    options = {**ALL, "objective": replace(ALL["objective"], modality_dropout=0.0)}
    alone, job = Job(folder / "1", options), Job(folder / "2", options)
    row = int(epoch_blocks(alone.dataset, 2, 0, 1)[1, 0])  # of the second of two processes

    def spoil(trainer: Trainer) -> None:
        forward = trainer.model.forward

        def spoiled(batch: DecisionBatch, dropout: DropoutAddresses | None = None):
            output = forward(batch, dropout)
            if trainer.model.training and bool((batch.sample == row).any()):
                output = replace(output, logits=output.logits * torch.nan)
            return output

        trainer.model.forward = spoiled

    for size, run in ((1, alone), (2, job)):
        assert run.part(size, prepare=spoil) == [0] * size
    assert_same_run(job, alone, ROUNDING)
    assert job.events()[-1]["skipped_steps"] == 4
    said = "step 1: no finite loss or gradient; skipped; samples "
    lines = [
        line
        for path in [*(folder / "1" / "output").iterdir(), *(folder / "2" / "output").iterdir()]
        for line in path.read_text().splitlines()
        if line.startswith(said)
    ]
    first = alone.dataset.samples[row]
    assert len(lines) == 3 and len(set(lines)) == 1, lines
    assert lines[0].startswith(f"{said}{first.source} {first.id}"), lines


def resumed(folder: Path) -> None:
    """Two processes, then three, then one; and two after two, to the bit."""
    alone = Job(folder / "alone", ALL).whole(1)
    job = Job(folder / "changed", ALL)
    # Within an epoch and at the end of one; one process alone is asked to stop.
    assert job.part(2, stop=2, asks=1) == [75, 75] and job.newest_step() == 2
    assert job.part(3, stop=8, asks=2) == [75, 75, 75] and job.newest_step() == 8
    assert_same_run(job.whole(1), alone, ROUNDING)
    straight, stopped = Job(folder / "straight", ALL).whole(2), Job(folder / "stopped", ALL)
    stopped.part(2, stop=5)
    stopped.whole(2)
    assert distance(stopped.weights(), straight.weights()) == 0
    assert stopped.events() == straight.events()


def dies_in(method: str, call: int, rank: int) -> Prepare:
    """A process that is killed in a method of its trainer, when it is called for the nth time."""

    def prepare(trainer: Trainer) -> None:
        original, calls = getattr(trainer, method), 0

        def counted(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls == call and trainer.ranks.rank == rank:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments)

        setattr(trainer, method, counted)

    return prepare


def killed(folder: Path) -> None:
    """A process dies in a step, before the first one is complete, and in validation."""
    alone = Job(folder / "alone", ALL).whole(1)
    for name, method, call, step in (
        ("step", "_backward", 6, 5), ("first", "_backward", 1, 0), ("validation", "_validate", 2, 8)
    ):  # fmt: skip
        job = Job(folder / name, ALL)
        statuses = job.part(3, prepare=dies_in(method, call, rank=1))
        assert statuses == [75, -signal.SIGKILL, 75], statuses
        assert job.newest_step() == step, (name, job.newest_step())
        status = (folder / name / "run" / "status.json").read_text()
        assert '"interrupted"' in status, status
        assert_same_run(job.whole(2), alone, ROUNDING)


def first_killed(folder: Path) -> None:
    """Without the process that writes there is the state before; the run goes on from it."""
    alone = Job(folder / "alone", ALL).whole(1)
    job = Job(folder / "lost", ALL)
    statuses = job.part(2, prepare=dies_in("_backward", 14, rank=0))
    assert statuses == [-signal.SIGKILL, 75], statuses
    assert job.newest_step() == 4
    assert_same_run(job.whole(2), alone, ROUNDING)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_tasks({f.__name__: f for f in (weights, quick, skipped, resumed, killed, first_killed)})
