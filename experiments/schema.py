"""What each app's configuration may hold, and its registration with Hydra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore

from arbiter.calibration.conformal import METHODS
from arbiter.config import option
from arbiter.datasets.ai2d import AI2DConfig
from arbiter.datasets.base import SPLITS
from arbiter.datasets.easy_vqa import EasyVQAConfig
from arbiter.datasets.gqa import GQAConfig
from arbiter.datasets.jsonl import JsonlConfig
from arbiter.datasets.mix import DatasetConfig
from arbiter.datasets.robotics import RoboticsConfig
from arbiter.datasets.scienceqa import ScienceQAConfig
from arbiter.datasets.seed_bench import SeedBench2Config, SeedBenchConfig
from arbiter.encoders.openclip import OpenCLIPConfig
from arbiter.encoders.raw import RawEncoderConfig
from arbiter.errors import ConfigError
from arbiter.evaluation.figures import ALPHAS
from arbiter.hardware.device import HardwareConfig
from arbiter.model.architecture import ArchitectureConfig
from arbiter.pipeline.config import PathsConfig, TrainConfig
from arbiter.sweeps.ranking import SweepConfig
from arbiter.training.muon import MuonConfig
from arbiter.training.objective import ObjectiveConfig
from arbiter.training.optimizers import AdamWConfig, DirectMLAdamWConfig
from arbiter.training.schedules import ScheduleConfig


@dataclass
class PlanConfig(TrainConfig):
    """`python -m experiments.plan`: a run's configuration, and how it is looked at."""

    probe_seconds: float = option(
        30.0, help="Time spent on timing steps, where the device is here; 0 for none.", low=0
    )


@dataclass
class EscalationOptions:
    """When someone slower is asked: `model` keeps the model's own threshold, null switches it off.

    Other values are held against `arbiter.calibration.escalation.EscalationConfig`.
    """

    max_entropy: Any = option("model", help="Largest entropy in nats.")
    min_confidence: Any = option("model", help="Least probability of the choice.")
    max_set_size: Any = option("model", help="Largest prediction set.")
    min_stability: Any = option("model", help="Least stability, when deliberating.")
    foil_collision: Any = option("model", help="Whether a foil as good as the choice escalates.")

    def given(self) -> dict[str, Any]:
        """Those that differ from the model's own."""
        return {name: value for name, value in vars(self).items() if value != "model"}


@dataclass
class DecideConfig:
    """`python -m experiments.decide`."""

    run: str = option(help="A run directory, a model directory, or owner/name on the hub.")
    revision: str | None = option(None, help="Branch, tag or commit of a model on the hub.")
    input: str | None = option(
        None, help="A file of questions, one JSON object a line (docs/own_data.md); - for stdin."
    )
    output: str = option("-", help="Where the decisions on `input` go; - for stdout.")
    batch_size: int = option(64, help="Lines of `input` decided together.", low=1)
    question: str | None = option(None, help="The question.")
    candidates: list[str] | None = option(None, help="At least two candidate answers: [a,b].")
    context: str | None = option(None, help="Text to read.")
    image: str | None = option(None, help="Path of an image.")
    images: list[str] = option([], help="Paths of several images.")
    video: str | None = option(None, help="Path of a video file (needs PyAV).")
    frames: list[str] = option([], help="Paths of a clip's frames, in order, instead of video.")
    audio: str | None = option(None, help="Path of a WAV, FLAC, OGG or MP3 file.")
    alpha: float = option(0.1, help="Error level of the prediction set.", above=0, below=1)
    method: str = option("lac", help="How the prediction set is made.", choices=METHODS)
    per_source: bool = option(False, help="Calibrate the set on samples of `source` alone.")
    source: str = option("", help="The data source that the question is like.")
    early_exit: bool = option(True, help="Whether the draft head may answer.")
    deliberate: bool = option(False, help="Stochastic passes, a tournament, and a stability.")
    target_risk: float | None = option(
        None, help="Escalate so that what stands is wrong at most so often.", above=0, below=1
    )
    escalation: EscalationOptions = option(
        EscalationOptions(), help="Thresholds other than the model's own."
    )
    device: str = option("cpu", help="Where the model runs.")

    def check(self) -> None:
        """Either one question, or a file of them."""
        if self.input is None:
            for name in ("question", "candidates"):
                if getattr(self, name) is None:
                    raise ConfigError(
                        name, "???", f"is required: give {name}=<value>, or input=<file>"
                    )
            if self.output != "-":
                raise ConfigError("output", self.output, "needs input=<file>")
            return
        for name in _OF_ONE_QUESTION:
            if getattr(self, name) not in (None, []):
                raise ConfigError(name, getattr(self, name), "is said by the lines of input")


_OF_ONE_QUESTION = (
    "question", "candidates", "context", "image", "images", "video", "frames", "audio",
)  # fmt: skip


@dataclass
class ReportConfig:
    """`python -m experiments.report`."""

    run: str | None = option(None, help="A run directory, for its report.html.")
    runs: list[str] = option(
        [], help="Run directories to compare, for sweep.html; a sweep's stands for all its jobs."
    )
    output: str | None = option(
        None,
        help="Folder of sweep.html and sweep.csv; null takes the sweep's own, or a new one below "
        "outputs/comparisons.",
    )
    sweep: SweepConfig = option(SweepConfig(), help="What runs are ranked by.")


@dataclass
class EvaluateConfig:
    """`python -m experiments.evaluate`."""

    run: str = option(help="A finished run's directory.")
    dataset: DatasetConfig | None = option(
        None, help="What to evaluate on; null: the data that the run split up."
    )
    split: str = option(
        "test", help="Which split of it; all takes every sample.", choices=(*SPLITS, "all")
    )
    max_samples: int | None = option(
        None, help="Cap on samples, drawn by whole groups; null takes all.", low=1
    )
    alphas: list[float] = option(
        list(ALPHAS), help="Error levels of the prediction sets.", above=0, below=1
    )
    per_source: bool = option(
        False, help="Prediction sets from calibration samples of the same source alone."
    )
    latency_samples: int = option(
        100, help="Samples decided one by one, from media to answer, for the time it takes.", low=0
    )
    name: str | None = option(
        None, help="Name of the files in <run>/evaluation; null: the dataset, and the split."
    )
    paths: PathsConfig = option(PathsConfig(), help="Folders.")
    hardware: HardwareConfig = option(
        HardwareConfig(),
        help="Speed and memory; precision, compile, micro-batches and budgets are for training.",
    )


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
        help="What is timed; store, encoding and cuda only when named.",
        choices=(
            "all",
            "moe",
            "attention",
            "batch",
            "codec",
            "foils",
            "store",
            "encoding",
            "cuda",
        ),
    )
    repeats: int = option(9, help="Timed runs of each; the median counts.", low=1)
    stored_images: int = option(
        100_000, help="group=store: synthetic images of 196 x 768 tokens, 0.15 MB each.", low=16
    )
    batches: int = option(500, help="group=store: batches of 16 images to assemble.", low=1)
    encoded_images: int = option(
        64, help="group=encoding: pictures of 640 x 480 pixels to encode.", low=1
    )
    steps: int = option(20, help="group=cuda: steps in each precision.", low=3)
    encoder: Any = option(help="group=encoding, cuda: frozen perception.")
    hardware: HardwareConfig = option(HardwareConfig(), help="group=encoding, cuda: device, sizes.")
    architecture: ArchitectureConfig = option(ArchitectureConfig(), help="group=cuda: the model.")
    objective: ObjectiveConfig = option(ObjectiveConfig(), help="group=cuda: losses.")
    optimizer: Any = option(help="group=cuda: the optimizer.")
    schedule: ScheduleConfig = option(ScheduleConfig(), help="group=cuda: the effective batch.")


SOURCES: dict[str, type] = {
    "ai2d": AI2DConfig,
    "easy_vqa": EasyVQAConfig,
    "gqa": GQAConfig,
    "jsonl": JsonlConfig,
    "robotics": RoboticsConfig,
    "scienceqa": ScienceQAConfig,
    "seed_bench": SeedBenchConfig,
    "seed_bench_2": SeedBench2Config,
}
"""The schemas of data sources."""


def register() -> None:
    """Make the schemas known to Hydra; `conf/` refers to them by these names."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="plan_schema", node=PlanConfig)
    store.store(name="decide_schema", node=DecideConfig)
    store.store(name="report_schema", node=ReportConfig)
    store.store(name="evaluate_schema", node=EvaluateConfig)
    store.store(name="features_schema", node=FeaturesConfig)
    store.store(name="bench_schema", node=BenchConfig)
    store.store(group="schema/encoder", name="raw", node=RawEncoderConfig)
    store.store(group="schema/encoder", name="openclip", node=OpenCLIPConfig)
    store.store(group="schema/optimizer", name="adamw", node=AdamWConfig)
    store.store(group="schema/optimizer", name="directml_adamw", node=DirectMLAdamWConfig)
    store.store(group="schema/optimizer", name="muon", node=MuonConfig)
    for name, node in SOURCES.items():
        store.store(group="schema/source", name=name, node=node)
