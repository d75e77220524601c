"""The first 50 steps of `tiny` on real samples. A refactor must not move this curve.

If it moves on purpose, say so and store the new one: python -m tests.training.test_loss_curve
"""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from arbiter.config import instantiate
from arbiter.datasets.mix import load_mix
from arbiter.encoders.raw import RawEncoder
from arbiter.features.augment import Augmenter
from arbiter.features.dataset import index_samples
from arbiter.features.store import FeatureStore
from arbiter.hardware.kernels import compile_layers
from arbiter.model.architecture import inputs_for
from arbiter.model.decision_model import DecisionModel
from arbiter.pipeline.config import TrainConfig
from arbiter.seeds import derive_seed
from arbiter.training.interruption import Interruption
from arbiter.training.run_directory import RunDirectory
from arbiter.training.trainer import Settings, Trainer
from experiments import schema

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "data" / "loss_curve.json"
_STEPS = 50


def composed(*overrides: str) -> TrainConfig:
    """The configuration of a short run on real samples, on the CPU."""
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        short = [
            "hardware=cpu", "hardware.micro_batch_size=16", "architecture=tiny",
            "dataset.sources.easy_vqa.max_samples=1000", "schedule.batch_size=4",
            "schedule.warmup_steps=10", "schedule.epochs=3",
        ]  # fmt: skip
        return instantiate(compose("train", overrides=[*short, *overrides]))


def curve(folder: Path, config: TrainConfig, steps: int = _STEPS) -> list[float]:
    """The cross-entropy of each step, in float32 on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        samples = load_mix(config.dataset, config.seed)
        encoder = RawEncoder(config.encoder)
        data = index_samples(samples, FeatureStore(folder / "features", encoder), encoder.spec)
        torch.manual_seed(derive_seed(config.seed, "weights"))
        inputs = inputs_for(samples["train"], encoder.spec)
        dispatch = config.hardware.moe_dispatch
        model = DecisionModel(config.architecture, encoder.spec, inputs, dispatch)
        if config.hardware.compile:
            compile_layers(model.layers, torch.device("cpu"))
        augment = config.dataset.augment
        settings = Settings(
            config.seed, config.objective, config.optimizer, config.schedule, config.hardware,
            config.checkpoint, config.guards, every_steps=1,
        )  # fmt: skip
        augmenter = Augmenter(augment.horizontal_flip, augment.shift_patches, encoder.spec)
        trainer = Trainer(model, data["train"], data["val"], augmenter, settings, {})
        trainer.total_steps = steps
        with RunDirectory(folder / "run") as run:
            trainer.fit(run, Interruption())
    finally:
        torch.set_num_threads(threads)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [e["cross_entropy"] for e in events if e["event"] == "step"][:steps]


def test_the_loss_curve_stays(tmp_path):
    stored = json.loads(STORED.read_text())
    assert len(stored) == _STEPS and stored[-1] < 0.7 * stored[0]
    assert curve(tmp_path, composed()) == pytest.approx(stored, rel=1e-3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        STORED.parent.mkdir(exist_ok=True)
        losses = [round(loss, 6) for loss in curve(Path(temporary), composed())]
        STORED.write_text(json.dumps(losses) + "\n")
