"""Small real inputs, and one smoke run shared by the tests of the command lines."""

from __future__ import annotations

import logging
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.features.dataset import FeatureDataset, index_samples
from arbiter.features.store import FeatureStore
from arbiter.foils import FoilsConfig, attach_foils, bank_texts
from arbiter.model.architecture import ArchitectureConfig, inputs_for
from arbiter.model.decision_model import DecisionModel
from arbiter.model.moe import MoEConfig
from arbiter.sample import Sample

ROOT = Path(__file__).resolve().parent.parent
COLORS = ("red", "green", "blue", "black")


def draw_square(color: str, left: int, top: int, side: int = 16) -> Image.Image:
    """A 64 x 64 picture of a coloured square on light grey."""
    image = Image.new("RGB", (64, 64), (235, 235, 235))
    ImageDraw.Draw(image).rectangle((left, top, left + side - 1, top + side - 1), fill=color)
    return image


def tone(frequency_hz: float, seconds: float = 0.5) -> np.ndarray:
    """A sine at half of full scale, float32 at 16 kHz."""
    time = np.arange(int(16_000 * seconds)) / 16_000
    return (0.5 * np.sin(2 * np.pi * frequency_hz * time)).astype(np.float32)


def make_samples() -> list[Sample]:
    """Samples with every combination of modality, several questions about one image among them."""
    pictures = [draw_square(color, 8 * i, 24) for i, color in enumerate(COLORS)]
    samples = []
    for i, color in enumerate(COLORS):
        for question, candidates in (
            ("what color is the square?", COLORS),
            (f"is the square {color}?", ("yes", "no")),
            ("which one?", (color, "white", "purple")),
        ):
            samples.append(
                Sample(
                    question,
                    candidates,
                    answer=candidates.index(color) if color in candidates else 0,
                    images=(pictures[i],),
                    source="squares",
                    group=color,
                    id=f"{len(samples)}",
                )
            )
    extra = {"source": "mixed", "answer": 1}
    samples += [
        Sample("is the sky blue?", ("no", "yes"), context="The sky is blue today.", **extra),
        Sample("is it loud?", ("no", "yes", "perhaps"), audio=tone(440), **extra),
        Sample("does it move?", ("no", "yes"), video=tuple(pictures[:3]), **extra),
        Sample(
            "what now?",
            ("stop", "go"),
            context="A siren sounds.",
            images=(pictures[0], pictures[2]),
            video=tuple(pictures[1:]),
            audio=tone(880, 0.35),
            **extra,
        ),
        Sample("two and two?", ("four", "five", "six", "seven", "eight"), **extra),
    ]
    return samples


@pytest.fixture(scope="session")
def encoder() -> RawEncoder:
    return RawEncoder(RawEncoderConfig())


@pytest.fixture(scope="session")
def dataset(encoder: RawEncoder, tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    store = FeatureStore(tmp_path_factory.mktemp("features"), encoder)
    return index_samples({"all": make_samples()}, store, encoder.spec)["all"]


@pytest.fixture(scope="session")
def foil_dataset(encoder: RawEncoder, tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    """The same samples with up to four foils each."""
    config = FoilsConfig(weight=1.0, count=4, min_similarity=-0.03)
    samples = make_samples()
    texts = bank_texts(config, samples)
    store = FeatureStore(tmp_path_factory.mktemp("features"), encoder)
    dataset = index_samples({"all": samples}, store, encoder.spec, texts)["all"]
    return attach_foils(config, texts, dataset, store)


def make_model(
    dataset: FeatureDataset, encoder: RawEncoder, dispatch: str = "grouped", **options
) -> DecisionModel:
    """A small model in evaluation mode that reads every modality, always with the same weights."""
    config = ArchitectureConfig(
        hidden_dim=32,
        num_heads=4,
        num_layers=2,
        scoring_dim=24,
        draft_dim=16,
        moe=MoEConfig(num_routed_experts=4, top_k=2, ffn_dim=16, shared_ffn_dim=24),
    )
    for name, value in options.items():
        setattr(config, name, value)
    torch.manual_seed(1)
    inputs = inputs_for(dataset.samples, encoder.spec)
    return DecisionModel(config, encoder.spec, inputs, dispatch).eval()


def run_app(
    *arguments: str, cwd: Path = ROOT, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess:
    """Run `python -m experiments.<...>` as a person would, from the repository's root."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture
def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs an app in this process with a mistake in its arguments; returns its one line.

    A process of its own for each mistake would spend seconds on imports.
    """
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(app: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{app}.py", *arguments])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_module(f"experiments.{app}", run_name="__main__")
        assert stopped.value.code == 1
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        lines = said.err.strip().splitlines()
        assert len(lines) == 1, said.err
        assert lines[0].startswith("error: ")
        return lines[0]

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess]:
    """The directory and output of one `experiment=smoke`."""
    folder = tmp_path_factory.mktemp("smoke")
    done = run_app(
        "experiments.train",
        "experiment=smoke",
        f"paths.features={folder / 'features'}",
        f"hydra.run.dir={folder / 'run'}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run", done
