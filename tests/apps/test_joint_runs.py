"""`torchrun -m experiments.train`: one run directory, one voice, and a state when one dies."""

import json
import subprocess
import sys

import pytest

from tests.children import ROOT, outcome
from tests.joint import needs_fork

pytestmark = [needs_fork, pytest.mark.slow]


@pytest.mark.parametrize("task", ["mistakes", "life", "signals"])
def test_the_app_in_several_processes(task, tmp_path):
    result = outcome("tests.apps.joint_runs", tmp_path, task)[task]
    assert result is None, result


@pytest.mark.parametrize("size", [2, 3])
def test_torchrun_itself(size, tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}",
            "-m", "experiments.train", "experiment=smoke", "hardware=cpu",
            "dataset.sources.easy_vqa.max_samples=500", "hydra.run.dir=" + str(tmp_path / "run"),
            f"paths.features={tmp_path / 'features'}",
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"run directory: {tmp_path / 'run'}"
    assert done.stdout.count("device cpu ") == done.stdout.count("features on disk: ") == 1
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "finished"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["machine"]["processes"] == size
