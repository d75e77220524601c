"""`python -m experiments.decide` and `Arbiter` on pictures that no run has seen."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from arbiter import Arbiter, Sample
from arbiter.errors import ArbiterError, DecisionError, MediaError, RunError, SampleError
from arbiter.features.dataset import index_samples
from arbiter.features.memory import MemoryStore
from arbiter.files import write_manifest
from arbiter.media import load_image
from arbiter.model.files import load_model
from arbiter.model.predict import softmax
from experiments.app import quote_text_lists
from experiments.decide import lines
from tests.conftest import ROOT, draw_square, run_app

FULL = Path("/dev/full")
COLORS = ["red", "green", "blue"]
QUESTION = "what color is the shape?"


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("picture") / "a picture, unseen.png"
    draw_square("red", 10, 20, 24).save(path)
    return path


@pytest.fixture(scope="module")
def arbiter(smoke_run):
    return Arbiter.load(smoke_run[0])


def ask(smoke_run, *arguments: str):
    return run_app("experiments.decide", f"run={smoke_run[0]}", *arguments)


def test_a_decision_is_printed(smoke_run, picture):
    done = ask(smoke_run, f"image={picture}", f"question={QUESTION}", "candidates=[red,green,blue]")
    assert done.returncode == 0, done.stderr
    for word in ("choice", "red", "green", "blue", "prediction set", "escalate", "%", "image"):
        assert word in done.stdout


def test_every_option_reaches_the_decision(smoke_run, picture):
    done = ask(
        smoke_run, f"image={picture}", f"question={QUESTION}", "candidates=[red,green,blue]",
        "deliberate=true", "method=raps", "alpha=0.3", "per_source=true", "source=easy_vqa",
        "escalation={min_confidence: null, max_set_size: null}", "escalation.max_entropy=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line in (
        "at 70% coverage", "above 0 nats", "stability", "certified", "early exit      no",
        "no foils travel with this model",
    ):  # fmt: skip
        assert line in done.stdout, done.stdout
    assert "confidence" not in done.stdout and "too few" not in done.stdout


def test_a_shut_gate_is_said(smoke_run, arbiter, picture):
    """The smoke run's calibration split is too small for any gate."""
    done = ask(smoke_run, f"image={picture}", f"question={QUESTION}", "candidates=[red,green]")
    assert "the gate for early exit is shut" in done.stdout
    summary = json.loads((smoke_run[0] / "summary.json").read_text())
    assert summary["calibration"]["gate"]["gate"] is None
    for page in (smoke_run[0] / "model" / "README.md", smoke_run[0] / "train.log"):
        assert "shut" in page.read_text(), page


def test_what_a_terminal_cannot_show_is_replaced(smoke_run):
    done = run_app(
        "experiments.decide", f"run={smoke_run[0]}", "question=日", "candidates=[é,no]",
        PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "  ?  " in done.stdout and "  no  " in done.stdout


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full here")
def test_a_full_standard_output_is_one_line(smoke_run):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "experiments.decide", f"run={smoke_run[0]}", "question=q",
             "candidates=[a,b]"],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert "standard output: No space left" in done.stderr and done.stderr.count("\n") == 1


def test_a_level_is_not_rounded(arbiter):
    for alpha, level in ((0.001, "99.9%"), (0.1, "90%"), (0.3, "70%"), (1e-7, "99.99999%")):
        printed = lines(arbiter.decide(QUESTION, COLORS, alpha=alpha), COLORS)
        assert any(line.endswith(f" at {level} coverage") for line in printed), printed


def test_a_temperature_from_few_samples_is_said(smoke_run):
    """In the log, the model card and the report; `test_engine` has the decision."""
    run = smoke_run[0]
    for page in (run / "model" / "README.md", run / "train.log", run / "report.html"):
        text = page.read_text().lower()
        assert "the temperature comes from 30 samples, fewer than 50" in text, page


def test_any_text_may_follow_the_equals_sign(smoke_run, picture):
    question = """what's "this", a $5 (five) = [red] {thing}\\?"""
    done = ask(smoke_run, f"image={picture}", f"question={question}", "candidates=[yes,no]")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["question=q", "candidates=[a]"], "one candidate given; a decision needs at least two"),
        (["question=q", "candidates=[]"], "no candidate given"),
        (["question=q", "candidates=[a,b,a]"], "'a' is given more than once"),
        (["question=q", "candidates=[a,b]", "image=missing.png"], "missing.png: no such file"),
        (["question=q", "candidates=[a,b]", "image=README.md"], "not a readable image"),
        (["question=q", "candidates=[a,b]", "context=some text"], "trained without it"),
        (["question=q"], "candidates=???: is required"),
        (["question=", "candidates=[a,b]"], "question is empty"),
        (["question=q", "candidates=[a,b]", "alpha=2"], "alpha=2.0: must be a number > 0 and < 1"),
        (["question=q", "candidates=[a,b]", "method=x"], "method=x: must be one of lac, aps, raps"),
        (["question=q", "candidates=[a,b]", "target_risk=1e-6"], "no threshold reaches a risk"),
        (["question=q", "candidates=[a,b]", "target_risk=1e-320"], "no threshold reaches a risk"),
        (["question=q", "candidates=[a,b]", f"image={'n' * 300}"], "File name too long"),
        (["question=q", "candidates=[a,b]", "escalation.x=1"], "escalation.x: no such key"),
        (["question=q", "candidates=[a,b]", "escalation.max_entropy=-1"], "a number or null >= 0"),
        (["question=q", "candidates=[a,b]", "escalation.max_set_size=x"], "escalation.max_set"),
        (["question=q", "candidates=[a,b]", "run=."], "no model there"),
        (["question=q", "candidates=[a,b]", "run=nowhere"], "no model there"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_give_one_line(mistake, smoke_run, arguments, line):
    if not any("run=" in argument for argument in arguments):
        arguments = [*arguments, f"run={smoke_run[0]}"]
    assert line in mistake("decide", *arguments)


def test_nothing_is_left_behind(smoke_run, tmp_path, picture):
    run, _ = smoke_run
    done = run_app(
        "experiments.decide",
        f"run={run}",
        f"image={picture}",
        f"question={QUESTION}",
        "candidates=[red,green]",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_form_of_an_image_gives_the_same_decision(arbiter, picture):
    image = load_image(picture)
    forms = (str(picture), picture, picture.read_bytes(), image, np.asarray(image))
    decisions = [arbiter.decide(QUESTION, COLORS, image=form) for form in forms]
    assert len({d.probabilities for d in decisions}) == 1
    assert sum(decisions[0].probabilities) == pytest.approx(1)
    assert decisions[0].choice == COLORS[decisions[0].index]


def test_candidates_may_be_permuted(arbiter, picture):
    forward = arbiter.decide(QUESTION, COLORS, image=picture)
    backward = arbiter.decide(QUESTION, COLORS[::-1], image=picture)
    np.testing.assert_allclose(forward.probabilities, backward.probabilities[::-1], atol=1e-5)


def test_a_batch_decides_as_one_by_one(arbiter):
    samples = [
        Sample(question, candidates, images=(draw_square(color, 8, 8),))
        for color in ("red", "blue")
        for question, candidates in (
            (QUESTION, tuple(COLORS)),
            ("is there a red shape?", ("yes", "no")),
        )
    ] + [Sample("is there a shape?", ("yes", "no"))]
    together = arbiter.decide_batch(samples)
    for sample, decision in zip(samples, together, strict=True):
        (alone,) = arbiter.decide_batch([sample])
        np.testing.assert_allclose(decision.probabilities, alone.probabilities, atol=1e-5)


def test_a_decision_is_the_calibrated_softmax_of_the_stored_weights(smoke_run, arbiter, picture):
    """Through the parts, without the engine."""
    import torch

    from arbiter.features.batch import assemble

    loaded = load_model(smoke_run[0] / "model")
    sample = Sample(QUESTION, tuple(COLORS), images=(picture,))
    store = MemoryStore(loaded.encoder, loaded.codecs)
    data = index_samples({"": [sample]}, store, loaded.encoder.spec)[""]
    with torch.no_grad():
        logits = loaded.model(assemble(data, torch.tensor([[0]]))).logits[0, 0].numpy()
    saved = json.loads((smoke_run[0] / "model" / "calibration.json").read_text())
    expected = softmax(logits, np.ones(3, bool), saved["fitted"]["full_temperature"])
    decision = arbiter.decide(QUESTION, COLORS, image=picture, early_exit=False)
    np.testing.assert_allclose(decision.probabilities, expected, atol=1e-6)


def test_wrong_inputs_raise_typed_errors(arbiter, picture):
    with pytest.raises(SampleError):
        arbiter.decide(QUESTION, ["red"], image=picture)
    with pytest.raises(MediaError):
        arbiter.decide(QUESTION, COLORS, image=b"not an image")
    with pytest.raises(DecisionError, match="audio"):
        arbiter.decide(QUESTION, COLORS, audio=np.zeros(1600, np.float32))
    with pytest.raises(DecisionError, match="alpha"):
        arbiter.decide(QUESTION, COLORS, alpha=0.0)


def test_wrong_types_are_named(arbiter, picture):
    for wrong, said in (
        ({"candidates": "red"}, "sequence of texts"),
        ({"image": 5}, "a int is no image"),
        ({"context": 5}, "context must be a text"),
        ({"audio": "x.wav"}, "audio: this model was trained without it"),
        ({"video": "x.mp4"}, "video: this model was trained without it"),
        ({"candidates": 5}, "sequence of texts"),
        ({"candidates": None}, "sequence of texts"),
        ({"source": ["a"], "per_source": True}, "source must be a text"),
        ({"escalation": 5}, "escalation=5: give thresholds by name"),
        ({"video": 5}, "a int is no clip"),
        ({"alpha": "x"}, "alpha=x"),
    ):
        given = {"question": QUESTION, "candidates": COLORS, **wrong}
        with pytest.raises(ArbiterError, match=said):
            arbiter.decide(given.pop("question"), given.pop("candidates"), **given)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("[yes,no]", ["yes", "no"]),
        ("[it's,日本]", ["it's", "日本"]),
        ("[true,007,1.00, two words ]", ["true", "007", "1.00", "two words"]),
        ("""["a, b",'c']""", ["a, b", "c"]),
        ("[50%,a (b),${x}]", ["50%", "a (b)", "${x}"]),
        ("red,blue", ["red", "blue"]),
        ("[null,b]", ["null", "b"]),
    ],
)
def test_candidates_are_the_texts_that_were_written(given, texts):
    (argument,) = quote_text_lists([f"candidates={given}"], ("candidates",))
    override = OverridesParser.create().parse_override(argument)
    config = OmegaConf.create({"candidates": override.value()})
    assert list(config.candidates) == texts


def test_interpolation_signs_in_a_question_are_text(smoke_run, picture):
    done = ask(smoke_run, f"image={picture}", "question=is it ${x}?", "candidates=[a,b]")
    assert done.returncode == 0, done.stderr


def test_a_device_that_does_not_exist_is_named_by_the_right_key(mistake, smoke_run):
    line = mistake("decide", f"run={smoke_run[0]}", "question=q", "candidates=[a,b]", "device=foo")
    assert "error: device=foo: must be one of auto, cpu" in line


def test_smaller_alpha_gives_larger_sets(arbiter, picture):
    sizes = [
        len(arbiter.decide(QUESTION, COLORS, image=picture, alpha=a).prediction_set)
        for a in (0.5, 0.2, 0.01, 0.001)
    ]
    assert sizes == sorted(sizes)
    # 82 calibration samples cannot vouch for 99.9%: the set is everything, and says so.
    assert sizes[-1] == 3


@pytest.mark.parametrize("damage", ["flip", "missing", "shape", "extra", "version", "target"])
def test_a_damaged_model_is_refused(smoke_run, tmp_path, damage):
    model = tmp_path / "model"
    shutil.copytree(smoke_run[0] / "model", model)
    weights, config = model / "model_fp32.safetensors", model / "config.json"
    tensors = load_file(weights)
    saved = json.loads(config.read_text())
    if damage == "flip":
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(raw)
    elif damage == "missing":
        tensors.pop("norm.weight")
    elif damage == "shape":
        tensors["norm.weight"] = tensors["norm.weight"][:-1].clone()
    elif damage == "extra":
        tensors["other"] = tensors["norm.weight"].clone()
    elif damage == "version":
        saved["format_version"] = 99
    else:
        saved["encoder"]["_target_"] = "os.system"
    if damage != "flip":
        save_file(tensors, weights)
        config.write_text(json.dumps(saved))
        write_manifest(model)
    with pytest.raises(RunError) as error:
        Arbiter.load(model)
    assert isinstance(error.value, ArbiterError)
    assert "\n" not in str(error.value)
