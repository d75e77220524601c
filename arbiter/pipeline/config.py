"""What a run is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from arbiter.calibration.config import CalibrationConfig
from arbiter.config import option
from arbiter.datasets.mix import DatasetConfig
from arbiter.hardware.device import HardwareConfig
from arbiter.model.architecture import ArchitectureConfig
from arbiter.sweeps.ranking import SweepConfig
from arbiter.training.checkpoint import CheckpointConfig
from arbiter.training.guards import GuardsConfig
from arbiter.training.objective import ObjectiveConfig
from arbiter.training.schedules import ScheduleConfig


@dataclass
class PathsConfig:
    """Folders shared by runs."""

    features: str = option("outputs/features", help="The feature store.")


@dataclass
class LoggingConfig:
    """What is written while training."""

    every_steps: int = option(50, help="Optimizer steps between step events.", low=1)
    tensorboard: bool = option(
        False, help="Write TensorBoard's files into the run directory as well."
    )


@dataclass
class TrainConfig:
    """`python -m experiments.train`. Groups typed Any are plug points with schemas of their own."""

    resume: str | None = option(
        None, help="A run directory to go on with; auto goes on in hydra.run.dir if it holds one."
    )
    seed: int = option(0, help="Every random stream of a run is derived from it.", low=0)
    paths: PathsConfig = option(PathsConfig(), help="Folders.")
    logging: LoggingConfig = option(LoggingConfig(), help="Logging.")
    checkpoint: CheckpointConfig = option(CheckpointConfig(), help="Resume states.")
    guards: GuardsConfig = option(GuardsConfig(), help="Numbers that go wrong.")
    sweep: SweepConfig = option(SweepConfig(), help="What sweeps rank by.")
    encoder: Any = option(help="Frozen perception.")
    architecture: ArchitectureConfig = option(ArchitectureConfig(), help="The fusion model.")
    dataset: DatasetConfig = option(DatasetConfig(), help="The mix of sources.")
    objective: ObjectiveConfig = option(ObjectiveConfig(), help="Losses.")
    optimizer: Any = option(help="The optimizer.")
    schedule: ScheduleConfig = option(ScheduleConfig(), help="Epochs, batch, learning rate.")
    calibration: CalibrationConfig = option(
        CalibrationConfig(), help="Probabilities, sets, early exit, escalation."
    )
    hardware: HardwareConfig = option(HardwareConfig(), help="Speed and memory.")
