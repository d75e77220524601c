"""The work of an epoch as micro-batches. What each holds depends on (seed, step) only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from arbiter.features.augment import Augmenter
from arbiter.features.batch import DecisionBatch, assemble
from arbiter.features.dataset import FeatureDataset
from arbiter.features.sampler import epoch_blocks
from arbiter.hardware.distributed import ALONE, Ranks
from arbiter.seeds import generator
from arbiter.training.modality_dropout import ModalityDropout
from arbiter.training.schedules import ScheduleConfig

_NAMED = 16
"""Samples that a message names at most."""


@dataclass(frozen=True)
class MicroBatch:
    """A part of an optimizer step.

    Attributes:
        batch: on the CPU; None for a process that has no part in the step.
        step: optimizer step of the run, from 0.
        index: place within the step.
        last: whether it is this process's last one of the step.
        step_samples: int64, the samples of the whole step.
    """

    batch: DecisionBatch | None
    step: int
    index: int
    last: bool
    step_samples: torch.Tensor

    @property
    def step_questions(self) -> int:
        """Questions of the whole step."""
        return len(self.step_samples)

    @property
    def samples(self) -> list[int]:
        """Its own samples."""
        return self.batch.sample[self.batch.sample >= 0].tolist()


def sample_names(train: FeatureDataset, rows: Sequence[int]) -> str:
    """The first of some samples, and how many more there are, for messages."""
    names = ", ".join(f"{s.source} {s.id}" for s in (train.samples[i] for i in rows[:_NAMED]))
    more = len(rows) - _NAMED
    return f"{names} and {more} more" if more > 0 else names


def micro_batches(
    train: FeatureDataset,
    augmenter: Augmenter,
    schedule: ScheduleConfig,
    seed: int,
    epoch: int,
    first_step: int,
    from_step: int,
    micro_batch_size: int,
    dropout: ModalityDropout | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[MicroBatch]:
    """The steps of an epoch from `from_step` on, in order.

    Args:
        epoch: from 1.
        first_step: the run's step with which the epoch begins.
        from_step: the first step that is still to be done.
        micro_batch_size: blocks per micro-batch.
        dropout: leaves modalities out, or None.
        ranks: the processes that a step's micro-batches are dealt to.
    """
    order = epoch_blocks(train, schedule.questions_per_block, seed, epoch)
    for step, blocks in enumerate(order.split(schedule.batch_size), first_step):
        if step < from_step:
            continue
        draws = augmenter.draw(len(blocks), generator(seed, "augment", step))
        chances = None
        if dropout is not None and dropout.active:
            chances = dropout.draw(len(blocks), generator(seed, "modality_dropout", step))
        samples = blocks[blocks >= 0]
        own = ranks.deal(list(enumerate(blocks.split(micro_batch_size))))
        if not own:
            yield MicroBatch(None, step, 0, True, samples)
        for index, part in own:
            batch = assemble(train, part)
            if augmenter.active:
                batch = augmenter.apply(batch, draws[index * micro_batch_size :][: len(part)])
            if chances is not None:
                batch = dropout.apply(batch, chances[index * micro_batch_size :][: len(part)])
            yield MicroBatch(batch, step, index, index == own[-1][0], samples)
