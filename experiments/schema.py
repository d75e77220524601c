"""What each app's configuration may hold, and its registration with Hydra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore

from arbiter.config import option
from arbiter.datasets.ai2d import AI2DConfig
from arbiter.datasets.easy_vqa import EasyVQAConfig
from arbiter.datasets.gqa import GQAConfig
from arbiter.datasets.jsonl import JsonlConfig
from arbiter.datasets.mix import DatasetConfig
from arbiter.datasets.robotics import RoboticsConfig
from arbiter.datasets.scienceqa import ScienceQAConfig
from arbiter.datasets.seed_bench import SeedBench2Config, SeedBenchConfig
from arbiter.encoders.openclip import OpenCLIPConfig
from arbiter.encoders.raw import RawEncoderConfig
from arbiter.hardware.device import HardwareConfig
from arbiter.model.decision_model import ArchitectureConfig
from arbiter.training.checkpoint import CheckpointConfig
from arbiter.training.guards import GuardsConfig
from arbiter.training.muon import MuonConfig
from arbiter.training.objective import ObjectiveConfig
from arbiter.training.optimizers import AdamWConfig, DirectMLAdamWConfig
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
    encoder: Any = option(help="Frozen perception.")
    architecture: ArchitectureConfig = option(ArchitectureConfig(), help="The fusion model.")
    dataset: DatasetConfig = option(DatasetConfig(), help="The mix of sources.")
    objective: ObjectiveConfig = option(ObjectiveConfig(), help="Losses.")
    optimizer: Any = option(help="The optimizer.")
    schedule: ScheduleConfig = option(ScheduleConfig(), help="Epochs, batch, learning rate.")
    hardware: HardwareConfig = option(HardwareConfig(), help="Speed and memory.")


@dataclass
class PlanConfig(TrainConfig):
    """`python -m experiments.plan`: a run's configuration, and how it is looked at."""

    probe_seconds: float = option(
        30.0, help="Time spent on timing steps, where the device is here; 0 for none.", low=0
    )


@dataclass
class DecideConfig:
    """`python -m experiments.decide`."""

    run: str = option(help="A run directory or a model directory.")
    question: str = option(help="The question.")
    candidates: list[str] = option(help="At least two candidate answers: [a,b].")
    context: str | None = option(None, help="Text to read.")
    image: str | None = option(None, help="Path of an image.")
    images: list[str] = option([], help="Paths of several images.")
    video: str | None = option(None, help="Path of a video file (needs PyAV).")
    frames: list[str] = option([], help="Paths of a clip's frames, in order, instead of video.")
    audio: str | None = option(None, help="Path of a WAV, FLAC, OGG or MP3 file.")
    alpha: float = option(0.1, help="Error level of the prediction set.", above=0, below=1)
    device: str = option("cpu", help="Where the model runs.")


@dataclass
class PruneConfig:
    """Which tables of the feature store to remove; all given conditions must hold."""

    older_than_days: float | None = option(None, help="Unused for longer than this.", low=0)
    encoder: str | None = option(None, help="An encoder, a model or a table by name.")


@dataclass
class FeaturesConfig:
    """`python -m experiments.features`."""

    paths: PathsConfig = option(PathsConfig(), help="Folders.")
    verify: bool = option(False, help="Check every byte; remove what is damaged.")
    prune: PruneConfig = option(PruneConfig(), help="What to remove.")


@dataclass
class BenchConfig:
    """`python -m experiments.bench`."""

    group: str = option(
        "all",
        help="What is timed; store and encoding only when named.",
        choices=("all", "moe", "attention", "batch", "codec", "foils", "store", "encoding"),
    )
    repeats: int = option(9, help="Timed runs of each; the median counts.", low=1)
    stored_images: int = option(
        100_000, help="group=store: synthetic images of 196 x 768 tokens, 0.15 MB each.", low=16
    )
    batches: int = option(500, help="group=store: batches of 16 images to assemble.", low=1)
    encoded_images: int = option(
        64, help="group=encoding: pictures of 640 x 480 pixels to encode.", low=1
    )
    encoder: Any = option(help="group=encoding: frozen perception.")
    hardware: HardwareConfig = option(HardwareConfig(), help="group=encoding: device, threads.")


def register() -> None:
    """Make the schemas known to Hydra; `conf/` refers to them by these names."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="plan_schema", node=PlanConfig)
    store.store(name="decide_schema", node=DecideConfig)
    store.store(name="features_schema", node=FeaturesConfig)
    store.store(name="bench_schema", node=BenchConfig)
    store.store(group="schema/encoder", name="raw", node=RawEncoderConfig)
    store.store(group="schema/encoder", name="openclip", node=OpenCLIPConfig)
    store.store(group="schema/optimizer", name="adamw", node=AdamWConfig)
    store.store(group="schema/optimizer", name="directml_adamw", node=DirectMLAdamWConfig)
    store.store(group="schema/optimizer", name="muon", node=MuonConfig)
    sources = {
        "ai2d": AI2DConfig,
        "easy_vqa": EasyVQAConfig,
        "gqa": GQAConfig,
        "jsonl": JsonlConfig,
        "robotics": RoboticsConfig,
        "scienceqa": ScienceQAConfig,
        "seed_bench": SeedBenchConfig,
        "seed_bench_2": SeedBench2Config,
    }
    for name, node in sources.items():
        store.store(group="schema/source", name=name, node=node)
