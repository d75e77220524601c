"""`python -m experiments.train` as a person uses it."""

import json

import pytest
import torch
from safetensors import safe_open

from arbiter.files import verified_files
from tests.conftest import run_app


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("optimizer.lr=fast", "optimizer.lr=fast: must be a number > 0"),
        ("optimizer.lr=-1", "optimizer.lr=-1.0: must be a number > 0"),
        ("optimizer.betas=[0.9]", "optimizer.betas=[0.9]: must be two numbers, e.g. [0.9,0.98]"),
        (
            "architecture.num_heads=7",
            "architecture.num_heads=7: must divide hidden_dim 128, as 1, 2, 4, 8, 16, 32 do",
        ),
        ("architecture=huge", "architecture=huge: no such option; there are perceiver, tiny"),
        (
            "dataset.sources.easy_vqa.max_samples=-1",
            "dataset.sources.easy_vqa.max_samples=-1: must be an integer or null >= 1",
        ),
        ("encoder.image_size=[64,a]", "encoder.image_size=[64,a]: must be a list of integers"),
        ("optimizer.lrr=1", "optimizer.lrr: no such key; did you mean lr?"),
        ("+optimizer.extra=1", "optimizer.extra=1: no such key"),
        (
            "optimizer._target_=os.system",
            "optimizer._target_=os.system: only classes of the arbiter package",
        ),
        ("~dataset.sources.easy_vqa", "dataset.sources={}: name at least one source"),
        ("schedule=null", "Config group override must be a string"),
        ("a b", "a b: not an override; write key=value"),
        ("optimizer.lr=${x}", "optimizer.lr=${x}: Interpolation key 'x' not found"),
        ("dataset.sources.easy_vqa.split.test=.5", "the four shares add up to 1.5, not 1"),
        ("--epochs", "--epochs: no such flag; settings are written as key=value"),
    ],
)
def test_a_wrong_value_gives_one_line(mistake, override, line, tmp_path):
    assert line in mistake("train", override, f"hydra.run.dir={tmp_path / 'run'}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_device_is_never_replaced(mistake, tmp_path):
    line = mistake("train", "hardware.device=cuda", f"hydra.run.dir={tmp_path / 'run'}")
    assert "hardware.device=cuda: this torch sees no CUDA" in line


def test_the_process_ends_with_status_1_and_the_line(tmp_path):
    done = run_app("experiments.train", "optimizer.lr=fast", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 1
    assert done.stderr == "error: optimizer.lr=fast: must be a number > 0\n"


@pytest.mark.parametrize("below", ["", "run"])
def test_a_run_directory_that_cannot_be_made_is_one_line(mistake, below, tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert "choose another hydra.run.dir" in mistake("train", f"hydra.run.dir={file / below}")


def test_a_failed_run_says_so_in_its_directory(mistake, tmp_path):
    mistake("train", "architecture.num_heads=7", f"hydra.run.dir={tmp_path}")
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["status"] == "failed"
    assert status["error"].startswith("architecture.num_heads=7")
    assert "architecture.num_heads=7" in (tmp_path / "train.log").read_text()


def test_help_is_one_screen():
    done = run_app("experiments.train", "--help")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) < 40
    for word in ("experiment", "hardware", "optimizer.lr", "--cfg job"):
        assert word in done.stdout


def test_the_last_line_names_the_run_directory(smoke_run):
    run, done = smoke_run
    assert done.stdout.strip().splitlines()[-1] == f"run directory: {run}"
    assert done.stderr == ""


def test_without_a_terminal_there_are_plain_lines(smoke_run):
    _, done = smoke_run
    assert "\x1b" not in done.stdout and "\r" not in done.stdout


def test_the_run_directory_is_as_promised(smoke_run):
    run, _ = smoke_run
    for name in (
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        ".hydra/hydra.yaml",
        "train.log",
        "metrics.jsonl",
        "status.json",
        "summary.json",
        "model/model.safetensors",
        "model/model_fp32.safetensors",
        "model/config.json",
        "model/calibration.json",
        "model/README.md",
    ):
        assert (run / name).stat().st_size > 0, name
    assert verified_files(run / "model")
    for state in (run / "resume").iterdir():
        assert verified_files(state)
    assert json.loads((run / "status.json").read_text())["status"] == "finished"


def test_metrics_and_summary_hold_what_readers_expect(smoke_run):
    run, _ = smoke_run
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "run" and kinds[-1] == "final"
    assert kinds.count("epoch") == 2 and "step" in kinds
    summary = json.loads((run / "summary.json").read_text())
    for key in [
        "status",
        "seed",
        "git_revision",
        "versions",
        "feature_fingerprint",
        "parameters",
        "train_seconds",
        "best_epoch",
        "weights",
        "validation",
        "test",
    ]:
        assert key in summary, key
    assert set(summary["parameters"]) == {"trainable", "active_per_token", "frozen"}
    test = summary["test"]["easy_vqa"]
    for key in [
        "n",
        "accuracy",
        "accuracy_interval",
        "question_only_accuracy",
        "majority_accuracy",
        "random_accuracy",
        "nll",
        "ece",
        "question_types",
    ]:
        assert key in test, key
    assert set(test["question_types"]) == {"colour", "shape", "yes/no"}
    assert sum(part["n"] for part in test["question_types"].values()) == test["n"]


def test_parameters_are_counted_as_they_are_stored(smoke_run):
    run, _ = smoke_run
    stored = 0
    with safe_open(run / "model" / "model_fp32.safetensors", framework="np") as file:
        for name in file.keys():  # noqa: SIM118
            if not name.endswith(".load"):
                stored += file.get_tensor(name).size
    summary = json.loads((run / "summary.json").read_text())
    assert summary["parameters"]["trainable"] == stored


def test_the_same_command_gives_the_same_model(smoke_run, tmp_path):
    run, _ = smoke_run
    again = run_app(
        "experiments.train",
        "experiment=smoke",
        f"paths.features={tmp_path / 'features'}",
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    assert again.returncode == 0, again.stderr
    name = "model/model_fp32.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()
