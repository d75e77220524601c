"""From a folder with a model to a decision, with the hub switched off."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import easy_vqa
import pytest

from arbiter import Arbiter
from arbiter.errors import RunError
from tests.encoders.tiny_openclip import write_model, write_tokenizer

ROOT = Path(__file__).resolve().parents[2]


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    arguments = [
        "experiment=smoke",
        "encoder=siglip_b16",
        f"encoder.model_name=local-dir:{folder / 'model'}",
        "encoder.weights=null",
        "dataset.augment.horizontal_flip=false",
        "dataset.augment.shift_patches=0",
        "dataset.sources.easy_vqa.max_samples=400",
        "schedule.epochs=1",
        f"paths.features={folder / 'features'}",
        f"hydra.run.dir={folder / 'run'}",
        *overrides,
    ]
    return subprocess.run(
        [sys.executable, "-m", "experiments.train", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def decide(folder: Path):
    image = next(iter(easy_vqa.get_test_image_paths().values()))
    arbiter = Arbiter.load(folder / "run")
    return arbiter.decide("is there a red shape?", ["yes", "no"], image=image)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    folder = tmp_path_factory.mktemp("offline")
    write_model(folder / "model", tokenizer=True)
    return folder, train(folder)


def test_a_folder_is_all_that_is_needed(trained):
    folder, done = trained
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "run/summary.json").read_text())
    assert summary["encoder"]["weights_digest"].startswith("sha256:")
    assert summary["encoder"]["random_weights"] is False
    assert summary["parameters"]["frozen"] > 10_000
    for page in ("run/model/README.md", "run/report.html"):
        assert "random weights" not in (folder / page).read_text()
    decision = decide(folder)
    assert decision.choice in ("yes", "no") and decision.prediction_set is not None


def test_a_model_is_not_used_behind_other_weights(trained):
    folder, kept = trained[0], trained[0] / "kept"
    shutil.move(folder / "model", kept)
    try:
        with pytest.raises(RunError, match=r"open_clip_config\.json not found"):
            Arbiter.load(folder / "run")
        write_model(folder / "model", seed=1, tokenizer=True)
        with pytest.raises(RunError, match="another weights than the model was trained"):
            Arbiter.load(folder / "run")
    finally:
        shutil.rmtree(folder / "model", ignore_errors=True)
        shutil.move(kept, folder / "model")


@pytest.mark.slow
def test_the_real_siglip_architecture_runs_offline_at_random_weights(tmp_path):
    import open_clip

    model_cfg = open_clip.get_model_config("ViT-B-16-SigLIP")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/open_clip_config.json").write_text(json.dumps({"model_cfg": model_cfg}))
    write_tokenizer(tmp_path / "model")
    done = train(
        tmp_path, "encoder.weights=random", "dataset.sources.easy_vqa.max_samples=150",
        "dataset.sources.easy_vqa.split={train:0.4,val:0.3,calibration:0.3,test:0}",
        "hardware.encoder_batch_size=8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "RANDOM WEIGHTS" in done.stdout
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["encoder"]["random_weights"] is True
    assert summary["parameters"]["frozen"] == 203_155_970
    for page in ("run/model/README.md", "run/report.html"):
        assert "random weights" in (tmp_path / page).read_text()
    assert decide(tmp_path).choice in ("yes", "no")
