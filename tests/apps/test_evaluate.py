"""`python -m experiments.evaluate` on a run of a few hundred samples."""

import json
import shutil
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from arbiter.datasets.mix import Mix
from arbiter.sample import Sample
from experiments import schema
from experiments.app import CONF
from experiments.evaluate import _choose, main
from tests.conftest import draw_square, run_app

# It is run as a program as well, by `mistake`.
pytestmark = pytest.mark.filterwarnings("ignore:'experiments.evaluate' found in sys.modules")


@pytest.fixture(scope="module")
def evaluated(smoke_run):
    """The run's directory after an evaluation, and what was printed."""
    run, _ = smoke_run
    features = f"paths.features={run.parent / 'features'}"
    done = run_app("experiments.evaluate", f"run={run}", features, "latency_samples=5")
    assert done.returncode == 0, done.stdout + done.stderr
    return run, done.stdout


@pytest.fixture
def evaluate_here(smoke_run, capsys):
    """Evaluates in this process, which spares the imports; gives the report and what was printed.

    As the command line does, which `evaluated` takes.
    """
    run = smoke_run[0]
    schema.register()

    def evaluate(name: str, *overrides: str):
        given = [f"run={run}", f"paths.features={run.parent / 'features'}", *overrides]
        with initialize_config_dir(CONF, version_base="1.3"):
            composed = compose("evaluate", given, return_hydra_config=True)
        HydraConfig.instance().set_config(composed)
        with open_dict(composed):
            del composed["hydra"]
        main(composed)
        report = json.loads((run / "evaluation" / f"{name}.json").read_text())
        return report, capsys.readouterr().out

    return evaluate


@pytest.fixture
def ask(smoke_run, mistake):
    run = smoke_run[0]
    return lambda *arguments: mistake(
        "evaluate", f"run={run}", f"paths.features={run.parent / 'features'}", *arguments
    )


@pytest.fixture
def manifest(tmp_path):
    """Writes questions about a picture as a person's own data; gives the overrides that name it."""
    draw_square("red", 8, 20).save(tmp_path / "picture.png")

    def write(*splits: str | None, **fields):
        lines = [
            {
                "question": "what color is the shape?",
                "candidates": ["red", "green", "blue"],
                "answer": "red",
                "image": "picture.png",
                **({} if split is None else {"split": split}),
                **fields,
            }
            for split in splits
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "mine.jsonl").write_text(text)
        return ["dataset=jsonl", f"dataset.sources.jsonl.path={tmp_path / 'mine.jsonl'}"]

    return write


def test_the_figures_are_those_of_training(evaluated):
    run, _ = evaluated
    own = json.loads((run / "evaluation" / "easy_vqa.json").read_text())
    trained = json.loads((run / "evaluation" / "test.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    latency = own["overall"].pop("latency")
    assert 0 < latency["p50_seconds"] <= latency["p95_seconds"] and latency["n"] == 5
    assert own["held_out"] is True and own["used"] == {}
    assert (own["dataset"], own["split"], own["run"]) == ("easy_vqa", "test", str(run))
    for mine, other in ((own["overall"], trained["overall"]),
                        (own["sources"]["easy_vqa"], summary["test"]["easy_vqa"])):  # fmt: skip
        for key in ("n", "accuracy", "majority_accuracy", "question_only_accuracy", "nll", "ece"):
            assert mine[key] == pytest.approx(other[key], abs=1e-6)
    # Alone among its kind: what the parts count is what the whole counts.
    types = own["sources"]["easy_vqa"]["question_types"]
    assert sum(part["n"] for part in types.values()) == own["overall"]["n"]
    right = sum(part["accuracy"] * part["n"] for part in types.values())
    assert own["overall"]["accuracy"] == pytest.approx(right / own["overall"]["n"])


def test_what_is_printed_and_drawn(evaluated):
    run, printed = evaluated
    accuracy = json.loads((run / "evaluation" / "easy_vqa.json").read_text())["overall"]["accuracy"]
    for text in (f"{accuracy:.2%}", "majority", "Brier", "raps", "certified", "p95", "gate"):
        assert text in printed
    assert printed.splitlines()[-1] == f"written: {run}/evaluation/easy_vqa.json, easy_vqa.svg"
    drawing = (run / "evaluation" / "easy_vqa.svg").read_text()
    assert drawing.startswith("<?xml") and drawing.rstrip().endswith("</svg>")


def test_what_was_trained_on_is_not_passed_off_as_held_out(evaluate_here):
    report, printed = evaluate_here(
        "easy_vqa-train", "split=train", "max_samples=60", "latency_samples=0", "alphas=[0.01]"
    )
    n = report["overall"]["n"]
    assert 0 < n <= 60
    assert report["held_out"] is False and report["used"] == {"train": n}
    assert f"NOT HELD OUT: the run was trained on {n} of these {n} samples" in printed
    assert "its sets hold all candidates" in printed
    assert report["overall"]["conformal"][0]["mean_set_size"] == 13
    assert report["overall"]["latency"] is None


def test_a_persons_own_data_needs_no_split_but_the_one_asked_for(evaluate_here, manifest):
    report, printed = evaluate_here(
        "mine", *manifest("test", "test"), "latency_samples=1", "per_source=true", "name=mine"
    )
    assert report["overall"]["n"] == 2 and report["held_out"] is True
    assert report["overall"]["random_accuracy"] == pytest.approx(1 / 3)
    # Nothing of this source was calibrated on, so nothing may be left out of a set.
    assert {e["mean_set_size"] for e in report["overall"]["conformal"]} == {3}
    assert "jsonl: level 0.1 needs 9 calibration samples, there are 0" in printed


def test_a_source_without_samples_does_not_vanish_silently():
    mix = Mix()
    mix.statistics = dict.fromkeys(("there", "elsewhere", "unanswered", "capped"))
    asked = [("there", "small", 0)] * 2 + [("unanswered", "x", None)] + [("capped", "large", 0)] * 3
    mix["test"] = [
        Sample("q?", ("a", "b"), answer, source=source, group=group)
        for source, group, answer in asked
    ]
    mix["train"] = [Sample("q?", ("a", "b"), 0, source="elsewhere", group="y")]
    config = SimpleNamespace(split="test", max_samples=2)
    samples, notes = _choose(mix, config, "mix")
    assert {sample.source for sample in samples} == {"there"}
    assert notes == [
        "1 samples without an answer were left out",
        "elsewhere has no samples in the test split: no figures are of it",
        "unanswered has no sample with an answer: no figures are of it",
        "capped has no sample among those that max_samples=2 keeps: no figures are of it",
    ]
    config.split, config.max_samples = "all", None
    assert len(_choose(mix, config, "mix")[1]) == 2


def test_mistakes_are_one_line(ask, manifest, tmp_path):
    assert "split=dev: must be one of train, val, calibration, test, all" in ask("split=dev")
    assert "alphas" in ask("alphas=[1.5]")
    line = ask(*manifest("val", "train"))
    # One picture in two splits stays in the stricter one.
    assert "jsonl: no samples in the test split; there are 1 val; name another split" in line
    assert "names a file that training writes" in ask("name=test")
    assert "must be a plain file name" in ask("name=a/b")
    assert "must be at most 200 bytes long" in ask(f"name={'n' * 300}")
    line = ask(*manifest("test", context="It is red."))
    assert "trained without context" in line and "jsonl line 1" in line
    assert "trained without audio" in ask("dataset=robotics", "split=all", "max_samples=40")
    assert "answer is missing" in ask(*manifest("test", answer=None))
    assert "hardware.encoder_device=mps: " in ask("hardware.encoder_device=mps")


def test_a_folder_without_a_model_or_a_configuration_is_named(mistake, smoke_run, tmp_path):
    assert "no model there" in mistake("evaluate", f"run={tmp_path}")
    shutil.copytree(smoke_run[0] / "model", tmp_path / "run" / "model")
    line = mistake("evaluate", f"run={tmp_path / 'run'}")
    assert ".hydra with the run's configuration is missing" in line
