"""What training prints last: the model as whoever loads it will find it."""

import dataclasses
import shutil

import pytest
import torch

from arbiter import Arbiter, Sample
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.errors import EncoderError, RunError
from arbiter.files import write_manifest
from arbiter.model.files import load_model
from arbiter.verification import verify
from tests.conftest import draw_square

CPU = torch.device("cpu")
HELD_OUT = [
    Sample(
        "what color is the shape?",
        ("red", "green", "blue"),
        answer=n % 3,
        images=(draw_square(color, 8, 24),),
        source="squares",
        id=str(n),
    )
    for n, color in enumerate(("red", "green", "blue", "black"))
]
NAMES = ["decision", "confidence", "entropy", "early exit", "95% set", "stability", "escalation"]


@pytest.fixture(scope="module")
def model(smoke_run):
    return smoke_run[0] / "model"


@pytest.fixture
def encoder(model):
    return load_model(model).encoder


def blocks(lines):
    """The lines of each question."""
    found = []
    for line in lines:
        if line.startswith("  "):
            found[-1].append(line)
        else:
            found.append([line])
    return found


def test_eight_lines_for_each_of_four_questions(model, encoder, tmp_path):
    found = blocks(verify(model, encoder, tmp_path, CPU, HELD_OUT))
    assert [block[0].split(" (")[0] for block in found] == [
        "scenario 1", "scenario 2", "squares 0", "squares 2",
    ]  # fmt: skip
    # The model was trained without context, so its scenarios come without.
    assert all("text only)" in block[0] for block in found[:2])
    for block in found:
        assert [line[2:18].strip() for line in block[1:]] == NAMES


def test_the_lines_are_what_the_engine_decides(model, encoder, tmp_path):
    found = blocks(verify(model, encoder, tmp_path, CPU, HELD_OUT))
    arbiter = Arbiter.load(model)
    for block, sample in zip(found[2:], (HELD_OUT[0], HELD_OUT[2]), strict=True):
        (decision,) = arbiter.decide_batch([sample], alpha=0.05, deliberate=True)
        right = decision.index == sample.answer
        mark = "(right)" if right else f"(wrong: {sample.candidates[sample.answer]})"
        values = [line[18:] for line in block[1:]]
        assert values[0] == f"{decision.choice} {mark}"
        assert values[1] == f"{max(decision.probabilities):.2%}"
        assert values[2] == f"{decision.entropy:.4f} nats"
        assert values[4] == "{" + ", ".join(decision.prediction_set) + "}"
        certified = "certified" if decision.stability >= 0.8 else "not certified"
        assert values[5] == f"{decision.stability:.2f}, {certified}"
        assert values[6].startswith("yes: " if decision.escalate else "no")


def test_no_second_encoder_is_built_and_nothing_is_encoded_twice(
    model, encoder, tmp_path, monkeypatch
):
    monkeypatch.setattr("arbiter.model.files.build", None)
    first = list(verify(model, encoder, tmp_path, CPU, HELD_OUT))

    def refuse(*arguments):
        raise AssertionError("encoded again")

    for kind in ("text", "image"):
        monkeypatch.setattr(encoder, f"encode_{kind}", refuse)
    assert list(verify(model, encoder, tmp_path, CPU, HELD_OUT)) == first


def test_training_says_them_last(smoke_run):
    printed = smoke_run[1].stdout.splitlines()
    (start,) = [n for n, line in enumerate(printed) if line.startswith("scenario 1 ")]
    last = printed[start:]
    assert len(last) == 4 * 8 + 1 and last[-1].startswith("run directory: ")
    names = [block[0].split()[0] for block in blocks(last[:-1])]
    assert names == ["scenario", "scenario", "easy_vqa", "easy_vqa"]


def test_another_encoder_is_refused(model, encoder, tmp_path):
    other = RawEncoder(RawEncoderConfig(max_patches=7))
    with pytest.raises(RunError, match="another configuration than the model's"):
        list(verify(model, other, tmp_path, CPU, HELD_OUT))


def test_what_cannot_be_encoded_is_left_out(model, encoder, tmp_path, monkeypatch):
    """A run whose features were all stored needs no encoder, and does not fail for want of one."""
    list(verify(model, encoder, tmp_path, CPU, HELD_OUT))
    fresh = [dataclasses.replace(s, question="what is it?") for s in HELD_OUT]

    def missing(*arguments):
        raise EncoderError("no weights here")

    monkeypatch.setattr(encoder, "encode_text", missing)
    found = list(verify(model, encoder, tmp_path, CPU, fresh))
    assert [len(block) for block in blocks(found)] == [8, 8, 2, 2]
    assert found[-1] == "  not decided     no weights here"


def test_without_calibration_or_test_samples_it_says_so(model, encoder, tmp_path):
    copy = shutil.copytree(model, tmp_path / "model")
    (copy / "calibration.json").unlink()
    write_manifest(copy)
    lines = list(verify(copy, encoder, tmp_path / "features", CPU, []))
    assert lines[-1] == "verification: there are no held-out samples to decide"
    text = "\n".join(lines)
    assert text.count("none: the model is not calibrated") == 2
    assert text.count("none: the model was not calibrated for deliberation") == 2
    assert text.count("escalation      yes: the model is not calibrated") == 2
