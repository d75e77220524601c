"""Fitting on one part of the calibration split, promising by the other, and travelling as JSON."""

import copy
import dataclasses
import hashlib
import itertools
import json

import numpy as np
import pytest

from arbiter.calibration.calibration import calibrate
from arbiter.calibration.conformal import METHODS
from arbiter.calibration.deployed import DELIBERATED, PATHS, Deployed
from arbiter.calibration.exact import coverage_interval
from arbiter.calibration.files import read_calibration
from arbiter.calibration.gate import fit_gate
from arbiter.calibration.temperature import fit_temperature
from arbiter.errors import RunError
from arbiter.model.predict import Running, predict, softmax
from tests.calibration.problems import (
    CPU,
    answered,
    index,
    loose,
    sharpened,
    small_bank,
    text_samples,
)
from tests.conftest import make_samples


@pytest.fixture(scope="module")
def world(encoder):
    """A model, a calibration split and a test split of its own world, the bank and the fit."""
    data = index(text_samples(800), encoder)
    model = sharpened(index(make_samples(), encoder), encoder)
    data = answered(model, data)
    split, test = data.take(range(400)), data.take(range(400, 800))
    bank = small_bank(encoder)
    return model, split, test, bank, calibrate(model, split, loose(), bank, Running(), seed=7)


def test_no_group_is_on_both_sides(world, monkeypatch):
    model, split, _, bank, calibration = world
    assert calibration.fit_samples + calibration.set_samples == len(split)
    assert calibration.fit_samples == pytest.approx(200, abs=2)
    seen = []
    monkeypatch.setattr(
        "arbiter.calibration.calibration._measure",
        lambda outcome, part, raps: seen.append({sample.group for sample in part.samples}),
    )
    monkeypatch.setattr(
        "arbiter.calibration.calibration.fit_temperature",
        lambda logits, mask, answer: seen.append(len(answer)) or 1.0,
    )
    calibrate(model, split, loose(), bank, Running(), seed=7)
    counts, sides = [s for s in seen if isinstance(s, int)], [s for s in seen if isinstance(s, set)]
    assert counts == [calibration.fit_samples] * 3
    per_group = {g: sum(s.group == g for s in split.samples) for g in sides[0]}
    assert sum(per_group.values()) == calibration.set_samples
    assert len(sides) == len(PATHS) and all(side == sides[0] for side in sides)


def test_each_head_has_the_temperature_of_maximum_likelihood(world):
    """The answers were drawn at temperature 2 of the full model's scores."""
    model, split, _, _, calibration = world
    assert calibration.fitted.full_temperature == pytest.approx(2.0, rel=0.25)
    found = predict(model, split, 32, CPU, ahead=0)
    whole = fit_temperature(found.draft_logits, found.mask, found.answer)
    assert calibration.fitted.draft_temperature == pytest.approx(whole, rel=0.3)
    assert calibration.fitted.draft_temperature != calibration.fitted.full_temperature


def test_temperatures_and_gate_come_from_the_logits_that_they_serve(world, monkeypatch):
    """The gate from draft probabilities at temperature 1, whatever temperature is fitted."""
    model, split, _, bank, _ = world
    logits, gated = [], []
    monkeypatch.setattr(
        "arbiter.calibration.calibration.fit_temperature",
        lambda found, mask, answer: logits.append((found, mask)) or 1.0 + len(logits),
    )
    monkeypatch.setattr(
        "arbiter.calibration.calibration.fit_gate",
        lambda *given: gated.append(given) or fit_gate(*given),
    )
    fitted = calibrate(model, split, loose(), bank, Running(), seed=7).fitted
    found = predict(model, split, 32, CPU, ahead=0)
    for place, temperature in enumerate(
        (fitted.draft_temperature, fitted.deliberated_temperature, fitted.full_temperature), 2
    ):
        assert temperature == place
    (draft, mask), _, (full, _) = logits
    for part, whole in ((draft, found.draft_logits), (full, found.logits)):
        nearest = np.abs(part[:, None] - whole[None]).max(axis=-1).min(axis=1)
        assert nearest.max() < 1e-3
    ((probabilities, disagrees, _),) = gated
    assert np.array_equal(probabilities, softmax(draft, mask))
    assert np.array_equal(disagrees, draft.argmax(axis=-1) != full.argmax(axis=-1))


def test_the_gate_opens_and_says_why(world):
    _, _, _, _, calibration = world
    assert calibration.gate.gate is not None and calibration.gate.exits > 30
    assert "exits differ" in calibration.gate.reason


@pytest.mark.parametrize("path", PATHS)
def test_sets_cover_on_the_path_that_they_were_calibrated_on(world, path):
    """Within the exact interval of the guarantee, which a right set leaves once in 10,000 cases."""
    model, _, test, bank, calibration = world
    allow = dataclasses.replace(calibration, empty_set="allow")
    outcome = Deployed(model, calibration.fitted, bank, Running()).run(test, path)
    answer = test.answer.numpy()
    for method, alpha in itertools.product(METHODS, (0.05, 0.1, 0.2)):
        sets = allow.prediction_sets(outcome, path, method, alpha)
        assert (sets.behind == calibration.set_samples).all() and not sets.too_few.any()
        assert np.array_equal(sets.deployed, sets.unfilled)
        coverage = sets.deployed[np.arange(len(answer)), answer].mean()
        low, high = coverage_interval(calibration.set_samples, len(answer), alpha, level=0.9999)
        assert low <= coverage <= high, (method, alpha)


def test_sets_can_be_calibrated_within_a_source(world):
    model, _, test, bank, calibration = world
    outcome = Deployed(model, calibration.fitted, bank, Running()).run(test, "full")
    sources = [sample.source for sample in test.samples]
    sources[0] = "never seen"
    sets = calibration.prediction_sets(outcome, "full", "lac", 0.1, sources)
    assert sets.too_few.tolist() == [True] + [False] * (len(test) - 1) and sets.behind[0] == 0
    assert np.array_equal(sets.deployed[0], outcome.mask[0])
    assert 0 < sets.behind[1] < calibration.set_samples
    together = calibration.prediction_sets(outcome, "full", "lac", 0.1)
    assert not np.array_equal(sets.deployed[1:], together.deployed[1:])


def test_too_few_samples_give_all_candidates(world):
    model, split, test, bank, _ = world
    few = calibrate(model, split.take(range(12)), loose(), bank, Running(), seed=7)
    outcome = Deployed(model, few.fitted, bank, Running()).run(test, "full")
    for method in METHODS:
        sets = few.prediction_sets(outcome, "full", method, 0.05)
        assert sets.too_few.all() and (sets.behind == 6).all()
        assert np.array_equal(sets.deployed, outcome.mask)


def test_a_single_group_calibrates_nothing(world):
    model, split, _, bank, _ = world
    assert calibrate(model, split.take([0, 1]), loose(), bank, Running(), seed=7) is None


def test_samples_without_an_answer_are_left_out(world):
    model, split, _, bank, _ = world
    unknown = dataclasses.replace(split.samples[0], answer=None, group="none")
    data = dataclasses.replace(
        split.take([*range(len(split)), 0]), samples=[*split.samples, unknown]
    )
    again = calibrate(model, data, without_passes(), bank, Running(), seed=7)
    assert again.fit_samples + again.set_samples == len(split)
    names = "\n".join(sorted(f"{sample.source}/{sample.id}" for sample in split.samples))
    assert again.split_digest == hashlib.sha256(names.encode()).hexdigest()


def without_passes():
    config = loose()
    config.deliberation.passes = 0
    return config


def test_without_passes_there_is_no_deliberation(world):
    model, split, _, bank, _ = world
    found = calibrate(model, split, without_passes(), bank, Running(), seed=7)
    assert DELIBERATED not in found.paths and found.fitted.deliberated_temperature is None
    assert read_calibration(json.loads(json.dumps(found.to_dict()))) == found


def test_it_travels_as_json(world):
    calibration = world[-1]
    text = json.dumps(calibration.to_dict(), allow_nan=False)
    assert read_calibration(json.loads(text)) == calibration


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (["format_version"], 1, "format 1 is not known"),
        (["format_version"], None, "format None is not known"),
        (["fitted", "full_temperature"], 0.0, "no temperature from 0.05 to 20"),
        (["fitted", "full_temperature"], 1e-310, "no temperature"),
        (["fitted", "draft_temperature"], 20.1, "no temperature"),
        (["fitted", "deliberated_temperature"], 1e300, "no temperature"),
        (["fitted", "full_temperature"], True, "not a number"),
        (["fitted", "draft_temperature"], float("nan"), "not a number"),
        (["fitted", "gate", "margin"], "x", "not a number"),
        (["fitted", "gate"], 3, "not a calibration"),
        (["fitted", "deliberation", "passes"], 10**6, "passes"),
        (["fitted", "deliberation", "router_noise"], 1e300, "router_noise"),
        (["gate", "reason"], ["x"], "not a text"),
        (["gate", "exits"], "many", "not a count"),
        (["gate", "samples"], 1.5, "not a count"),
        (["gate", "exits"], 10**9, "exits of"),
        (["gate", "disagreements"], 10**9, "exits of"),
        (["gate", "bound"], "x", "not a number"),
        (["gate", "bound"], 1.5, "no share"),
        (["split_digest"], {}, "not a text"),
        (["paths", "full"], {}, "scores"),
        (["paths", "full", "scores", "lac", "left"], [0.5, 0.1], "not ascending"),
        (["paths", "full", "scores", "lac", "left"], ["a"], "not a number"),
        (["paths", "full", "risk", "wrong"], [1], "counts"),
        (["paths", "full", "risk", "samples"], 0, "more than there are"),
        (["paths", "other"], {}, "paths are"),
        (["paths"], [], "paths are"),
        (["escalation", "max_entropy"], "much", "max_entropy"),
        (["empty_set"], "whatever", "empty_set"),
        (["set_samples"], -1, "not a count"),
    ],
    ids=repr,
)
def test_other_contents_are_refused_in_one_line(world, keys, value, said):
    values = copy.deepcopy(world[-1].to_dict())
    place = values
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(RunError, match=said) as error:
        read_calibration(values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("temperature", [0.05, 0.05000000000000003, 20.0])
def test_temperatures_at_the_bounds_of_the_fit_are_read(world, temperature):
    values = world[-1].to_dict()
    values["fitted"]["full_temperature"] = temperature
    assert read_calibration(values).fitted.full_temperature == temperature


def test_missing_keys_are_refused(world):
    for key in world[-1].to_dict():
        values = world[-1].to_dict()
        del values[key]
        with pytest.raises(RunError):
            read_calibration(values)
