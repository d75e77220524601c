"""Sweeps whose jobs run in processes of their own, by Hydra's launchers."""

import copy
import importlib.util
import json
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from arbiter.errors import ConfigError, RunError
from experiments import schema
from tests.conftest import ROOT, run_app

CONF = ROOT / "conf"
PLUGIN = {
    "parallel": "hydra_joblib_launcher",
    "slurm_gpu": "hydra_submitit_launcher",
    "ray_gpu": "hydra_ray_launcher",
}
LAUNCHERS = {
    "joblib": ("hydra/launcher=parallel",),
    "submitit": ("hydra/launcher=submitit_local", "hydra.launcher.timeout_min=30"),
}


def installed(plugin: str) -> bool:
    return importlib.util.find_spec(f"hydra_plugins.{plugin}") is not None


def test_every_preset_has_its_plugin():
    presets = {path.stem for path in (CONF / "hydra" / "launcher").glob("*.yaml")}
    assert presets == PLUGIN.keys()


@pytest.mark.parametrize("preset", PLUGIN)
def test_a_preset_composes_over_its_plugin(preset):
    if not installed(PLUGIN[preset]):
        pytest.skip(f"{PLUGIN[preset]} is not installed")
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[f"hydra/launcher={preset}"], return_hydra_config=True)
    assert PLUGIN[preset] in config.hydra.launcher._target_


def test_a_launcher_that_is_not_installed(mistake, tmp_path):
    line = mistake("train", "-m", "hydra/launcher=rq", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert "hydra/launcher=rq" in line and "basic" in line


@pytest.mark.skipif(installed("hydra_ray_launcher"), reason="its plugin is there")
@pytest.mark.parametrize("launcher", ["ray", "ray_gpu"])
def test_a_launcher_whose_plugin_is_not_installed(launcher, mistake, tmp_path):
    line = mistake("train", "-m", f"hydra/launcher={launcher}", f"hydra.sweep.dir={tmp_path / 's'}")
    assert line.endswith("hydra/launcher=ray: its plugin is not installed; pip install -e '.[ray]'")


def test_errors_come_back_from_other_processes():
    error = ConfigError("lr", -1, "must be a number > 0").under("optimizer")
    # A copy is rebuilt as another process rebuilds it.
    back = copy.copy(error)
    assert (str(back), back.key, back.value) == (str(error), "optimizer.lr", -1)
    assert str(copy.copy(RunError("a line"))) == "a line"


def at_work(log: Path) -> tuple[str, str]:
    """The times of a log's first and last line."""
    times = re.findall(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+) ", log.read_text(), re.MULTILINE)
    return times[0], times[-1]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_fails_elsewhere_is_counted_here(launcher, tmp_path):
    done = run_app(
        "experiments.train", "-m", *LAUNCHERS[launcher], "seed=x,y",
        f"hydra.sweep.dir={tmp_path / 'sweep'}", OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "2 of 2 jobs failed" in done.stderr, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_jobs_at_a_time_share_one_feature_store(launcher, tmp_path):
    sweep, features = tmp_path / "sweep", tmp_path / "features"
    done = run_app(
        "experiments.train", "-m", *LAUNCHERS[launcher], "experiment=smoke", "schedule.epochs=1",
        "hardware.num_threads=1", "seed=0,2", f"paths.features={features}",
        f"hydra.sweep.dir={sweep}",
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = sorted(path.parent for path in sweep.glob("*/status.json"))
    assert len(jobs) == 2
    seeds = set()
    for job in jobs:
        assert json.loads((job / "status.json").read_text())["status"] == "finished"
        summary = json.loads((job / "summary.json").read_text())
        seeds.add(summary["seed"])
        assert (job / "model" / "MANIFEST.json").is_file()
    assert seeds == {0, 2}
    # Each was at work before the other had ended.
    (first, first_end), (second, second_end) = (at_work(job / "train.log") for job in jobs)
    assert first < second_end and second < first_end
    # One table of pictures and one of texts, whoever came first.
    assert len([path for path in features.iterdir() if path.is_dir()]) == 2
