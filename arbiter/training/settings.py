"""What a trainer is told."""

from __future__ import annotations

from dataclasses import dataclass

from arbiter.hardware.device import HardwareConfig
from arbiter.training.checkpoint import CheckpointConfig
from arbiter.training.guards import GuardsConfig
from arbiter.training.objective import ObjectiveConfig
from arbiter.training.schedules import ScheduleConfig


@dataclass(frozen=True)
class Settings:
    """The configs that training reads, and the run's seed."""

    seed: int
    objective: ObjectiveConfig
    optimizer: object
    schedule: ScheduleConfig
    hardware: HardwareConfig
    checkpoint: CheckpointConfig
    guards: GuardsConfig
    every_steps: int
