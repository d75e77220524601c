"""How long a run is, how large its steps are, and how the learning rate moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arbiter.config import option


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
    decay: str = option("cosine", help="Shape after the warm-up.", choices=("cosine", "constant"))
    warmup_steps: int = option(100, help="Steps of linear warm-up.", low=0)
    final_lr_factor: float = option(
        0.02, help="Learning rate at the end of the cosine, as a share of the peak.", low=0, high=1
    )


def lr_factor(config: ScheduleConfig, step: int, total_steps: int) -> float:
    """The learning rate of step `step` (from 0), as a share of the peak."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.decay == "constant":
        return 1.0
    span = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.final_lr_factor + (1 - config.final_lr_factor) * cosine
