"""How long a run is, how large its steps are, and how the learning rate moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arbiter.config import option
from arbiter.errors import ConfigError


@dataclass
class SWAConfig:
    """Averaging of epoch snapshots (Izmailov et al., 2018)."""

    start_epoch: int | None = option(
        None, help="First epoch whose weights enter the average; null for no averaging.", low=1
    )
    lr_factor: float = option(
        0.1,
        help="Learning rate while averaging, as a share of the peak, unless it is lower by then; "
        "reached in one epoch, after the warm-up.",
        above=0,
        high=1,
    )


@dataclass
class ScheduleConfig:
    """Epochs, effective batch and learning rate; independent of the hardware."""

    epochs: int = option(10, help="Passes over the training samples.", low=1)
    batch_size: int = option(
        16, help="Blocks per optimizer step: media sets, each with its questions.", low=1
    )
    questions_per_block: int = option(
        16, help="Questions of a block at most; a media set with more gets several blocks.", low=1
    )
    decay: str = option(
        "cosine",
        help="Shape after the warm-up: cosine, constant, or linear over the last decay_epochs.",
        choices=("cosine", "constant", "linear"),
    )
    decay_epochs: int = option(2, help="Length of the linear decay at the end.", low=1)
    warmup_steps: int = option(100, help="Steps of linear warm-up.", low=0)
    final_lr_factor: float = option(
        0.02, help="Learning rate at the end of a decay, as a share of the peak.", low=0, high=1
    )
    swa: SWAConfig = option(SWAConfig(), help="Weight averaging.")

    def check(self) -> None:
        """Parts of a run fit into it."""
        if self.decay == "linear" and self.decay_epochs > self.epochs:
            raise ConfigError("decay_epochs", self.decay_epochs, f"must be at most {self.epochs}")
        if self.swa.start_epoch is not None and self.swa.start_epoch > self.epochs:
            raise ConfigError(
                "swa.start_epoch", self.swa.start_epoch, f"must be at most epochs={self.epochs}"
            )


def lr_factor(config: ScheduleConfig, step: int, steps_per_epoch: int) -> float:
    """The learning rate of step `step` (from 0), as a share of the peak."""
    start = config.swa.start_epoch
    if start is None:
        return _decayed(config, step, steps_per_epoch)
    annealed_from = max((start - 1) * steps_per_epoch, config.warmup_steps)
    if step < annealed_from:
        return _decayed(config, step, steps_per_epoch)
    progress = min(1.0, (step - annealed_from) / steps_per_epoch)
    before = _decayed(config, annealed_from, steps_per_epoch)
    # Annealing goes down: late in a decay the rate may be below lr_factor already.
    target = min(config.swa.lr_factor, before)
    return target + (before - target) * _half_cosine(progress)


def _decayed(config: ScheduleConfig, step: int, steps_per_epoch: int) -> float:
    """Warm-up and decay, without averaging."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    total = config.epochs * steps_per_epoch
    if config.decay == "constant":
        return 1.0
    if config.decay == "linear":
        span = config.decay_epochs * steps_per_epoch
        left = min(1.0, (total - step) / span)
    else:
        span = max(1, total - config.warmup_steps)
        left = _half_cosine(min(1.0, (step - config.warmup_steps) / span))
    return config.final_lr_factor + (1 - config.final_lr_factor) * left


def _half_cosine(progress: float) -> float:
    """From 1 to 0 as progress goes from 0 to 1."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def extendable_until(config: ScheduleConfig, steps_per_epoch: int) -> int:
    """The last step up to which more epochs would have left a run as it was; -1 without one."""
    if config.swa.start_epoch is not None or config.decay == "cosine":
        return -1
    decay_epochs = config.decay_epochs if config.decay == "linear" else 0
    return (config.epochs - decay_epochs) * steps_per_epoch
