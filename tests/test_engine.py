"""The engine: what must never change a decision, and what a decision says about itself."""

import dataclasses
import gc
import json
import threading
import tracemalloc
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arbiter import Arbiter, Decision, Sample
from arbiter.calibration.calibration import calibrate, describe_calibration
from arbiter.calibration.deployed import PATHS
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.errors import (
    ArbiterError,
    ConfigError,
    DecisionError,
    EncoderError,
    MediaError,
    SampleError,
)
from arbiter.features import memory
from arbiter.model.files import LoadedModel
from arbiter.model.predict import Running
from tests.calibration.problems import (
    answered,
    index,
    loose,
    sharpened,
    small_bank,
    text_samples,
)
from tests.conftest import COLORS, draw_square, make_model, make_samples, tone

QUESTION = "what color is the square?"
OPTIONS = {
    "gated": {},
    "full": {"early_exit": False},
    "deliberated": {"deliberate": True},
    "aps": {"method": "aps", "alpha": 0.2},
    "per_source": {"method": "raps", "per_source": True},
}


@pytest.fixture(scope="module")
def parts(encoder):
    """A model that reads everything, with a calibration and a bank."""
    model = sharpened(index(make_samples(), encoder), encoder)
    split = answered(model, index(text_samples(240), encoder))
    bank = small_bank(encoder)
    calibration = calibrate(model, split, loose(), bank, Running(), seed=7)
    values = json.loads(json.dumps(calibration.to_dict()))
    return LoadedModel(model, encoder, {}, values, bank=bank)


@pytest.fixture(scope="module")
def arbiter(parts):
    return Arbiter(parts)


@pytest.fixture(scope="module")
def uncalibrated(parts):
    return Arbiter(dataclasses.replace(parts, calibration=None, bank=None))


def same(one: Decision, other: Decision) -> None:
    """Equal but for rounding and time."""
    np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-5)
    assert one.entropy == pytest.approx(other.entropy, abs=1e-4)
    for name in ("choice", "index", "prediction_set", "level", "early_exit", "stability"):
        assert getattr(one, name) == getattr(other, name), name
    assert [r.code for r in one.reasons] == [r.code for r in other.reasons]
    assert (one.escalate, one.certified, one.notes, one.modalities) == (
        other.escalate, other.certified, other.notes, other.modalities,
    )  # fmt: skip


POOL = make_samples() + text_samples(4, seed=9)


@pytest.fixture(scope="module")
def alone(arbiter):
    """Every sample of the pool in a batch of its own, with every set of options."""
    return {
        name: [arbiter.decide_batch([sample], **options)[0] for sample in POOL]
        for name, options in OPTIONS.items()
    }


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=12),
    st.sampled_from(sorted(OPTIONS)),
)
def test_a_batch_decides_as_one_by_one(arbiter, alone, chosen, name):
    together = arbiter.decide_batch([POOL[i] for i in chosen], **OPTIONS[name])
    for i, decision in zip(chosen, together, strict=True):
        same(decision, alone[name][i])


@settings(max_examples=6, deadline=None)
@given(st.permutations(range(5)), st.sampled_from(sorted(OPTIONS)))
def test_candidates_may_come_in_any_order(arbiter, alone, order, name):
    place = next(i for i, s in enumerate(POOL) if len(s.candidates) == 5)
    sample, expected = POOL[place], alone[name][place]
    moved = dataclasses.replace(sample, candidates=tuple(sample.candidates[k] for k in order))
    (decision,) = arbiter.decide_batch([moved], **OPTIONS[name])
    np.testing.assert_allclose(
        decision.probabilities, [expected.probabilities[k] for k in order], atol=1e-5
    )
    assert decision.choice == expected.choice and decision.stability == expected.stability
    assert sorted(decision.prediction_set) == sorted(expected.prediction_set)


def test_questions_about_one_image_encode_and_fuse_it_once(parts, dataset, monkeypatch):
    images, fused = [], []
    encoder = RawEncoder(RawEncoderConfig())
    model = make_model(dataset, encoder)
    encode, media = encoder.encode_image, model.tokens.of_media

    def counting(pictures):
        images.append(len(pictures))
        return encode(pictures)

    def counting_fused(batch, like):
        fused.append(len(batch.media["patches"].values))
        return media(batch, like)

    monkeypatch.setattr(encoder, "encode_image", counting)
    monkeypatch.setattr(model.tokens, "of_media", counting_fused)
    arbiter = Arbiter(dataclasses.replace(parts, encoder=encoder, model=model))
    pixels = np.asarray(draw_square("red", 8, 8))
    # Twelve questions, each with a copy of the picture of its own.
    samples = [Sample(f"question {i}?", COLORS, images=(pixels.copy(),)) for i in range(12)]
    for options in ({"early_exit": False}, {"deliberate": True}):
        arbiter.decide_batch(samples, **options)
        assert images == [1] and fused == [1]
        images.clear(), fused.clear()


def test_threads_decide_as_one(arbiter, alone):
    """And none of them draws from a generator that all share."""
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()
    found, failed = {}, []

    def work(number: int) -> None:
        try:
            order = np.random.default_rng(number).permutation(len(POOL))
            for name, options in OPTIONS.items():
                decisions = arbiter.decide_batch([POOL[i] for i in order], **options)
                for i, decision in zip(order, decisions, strict=True):
                    found[number, name, int(i)] = decision
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(found) == 3 * len(OPTIONS) * len(POOL)
    for (_, name, i), decision in found.items():
        same(decision, alone[name][i])
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], legacy)


# ---------------------------------------------------------------- errors


def broken() -> list[tuple[Sample, type[ArbiterError]]]:
    picture = draw_square("red", 0, 0)
    return [
        (Sample("q?", COLORS, images=(picture, b"not an image")), MediaError),
        (Sample("q?", COLORS, video=(np.full((4, 4, 3), 2.0),)), MediaError),
        ("no sample", SampleError),
    ]


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_bad_sample_is_named_and_spares_the_others(arbiter, alone, place):
    for bad, kind in broken():
        batch = [*POOL[:4]]
        batch.insert(place, bad)
        with pytest.raises(kind, match=f"^sample {place}: ") as error:
            arbiter.decide_batch(batch)
        assert "\n" not in str(error.value)
        results = arbiter.decide_batch(batch, errors="return")
        assert isinstance(results.pop(place), kind)
        for i, decision in enumerate(results):
            same(decision, alone["gated"][i])


def test_what_only_the_encoder_refuses_is_found(parts, alone, monkeypatch):
    encoder = RawEncoder(RawEncoderConfig())
    encode = encoder.encode_text

    def refusing(texts):
        if any("unspeakable" in text for text in texts):
            raise EncoderError("this text cannot be encoded")
        return encode(texts)

    monkeypatch.setattr(encoder, "encode_text", refusing)
    arbiter = Arbiter(dataclasses.replace(parts, encoder=encoder))
    batch = [POOL[0], Sample("unspeakable?", COLORS), POOL[1]]
    first, refused, last = arbiter.decide_batch(batch, errors="return")
    same(first, alone["gated"][0])
    same(last, alone["gated"][1])
    assert isinstance(refused, EncoderError)


def test_a_modality_that_the_model_does_not_know(encoder):
    model = make_model(index([Sample("q?", COLORS)], encoder), encoder)
    blind = Arbiter(LoadedModel(model, encoder, {}, None))
    with pytest.raises(DecisionError, match="image: this model was trained without it"):
        blind.decide("q?", COLORS, image=draw_square("red", 0, 0))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"alpha": 0}, DecisionError, "alpha=0"),
        ({"alpha": float("nan")}, DecisionError, "alpha=nan"),
        ({"method": "best"}, DecisionError, "lac, aps, raps"),
        ({"escalation": {"max_entropy": -1}}, ConfigError, "escalation.max_entropy"),
        ({"escalation": {"no_such": 1}}, ConfigError, "no_such"),
        ({"escalation": {"max_set_size": "x"}}, ConfigError, "max_set_size"),
    ],
)
def test_options_that_are_not_allowed(arbiter, options, kind, said):
    for call in (
        lambda: arbiter.decide("q?", COLORS, **options),
        lambda: arbiter.decide_batch([POOL[0]], errors="return", **options),
        lambda: arbiter.stream(iter(POOL), **options),
    ):
        with pytest.raises(kind, match=said):
            call()


@pytest.mark.parametrize("kind", [np.float32, np.float64, Fraction])
def test_any_number_is_a_level(parts, kind):
    arbiter = Arbiter(parts)
    decision = arbiter.decide(QUESTION, COLORS, alpha=kind(0.25), early_exit=False)
    assert decision.level == 0.75 and type(decision.level) is float
    assert json.dumps(decision.to_dict())
    assert arbiter.set_target_risk(kind(0.25), kind(0.875)) == arbiter.set_target_risk(0.25, 0.875)
    for wrong in (True, np.bool_(True), "0.1", None, 0.5j):
        with pytest.raises(DecisionError, match="alpha"):
            arbiter.decide(QUESTION, COLORS, alpha=wrong)


def test_an_alpha_too_small_to_round_is_not_rounded(arbiter):
    decision = arbiter.decide(QUESTION, COLORS, alpha=1e-8)
    assert any("for level 0.99999999" in note for note in decision.notes)
    assert "for level 0.99999999:" in decision.reasons[-1].text


def test_misspelt_options_are_type_errors(arbiter):
    with pytest.raises(TypeError, match="alhpa: no such option; there are alpha, method"):
        arbiter.decide("q?", COLORS, alhpa=0.1)
    with pytest.raises(DecisionError, match="errors"):
        arbiter.decide_batch(POOL, errors="ignore")
    with pytest.raises(DecisionError, match="batch_size"):
        arbiter.stream(POOL, batch_size=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"question": " "}, "question is empty"),
        ({"candidates": ["a"]}, "one candidate given"),
        ({"candidates": ["a", ""]}, "candidate is empty"),
        ({"question": "half \ud800 of a pair"}, "not Unicode"),
        ({"context": "\udfff"}, "not Unicode"),
        ({"audio": np.full(100, np.nan, np.float32)}, "not finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_inputs_are_typed_errors(arbiter, given, said):
    asked = {"question": "q?", "candidates": ["a", "b"], **given}
    with pytest.raises(ArbiterError, match=said):
        arbiter.decide(asked.pop("question"), asked.pop("candidates"), **asked)


# ---------------------------------------------------------------- streams


def test_a_stream_is_lazy_and_in_order(arbiter, alone):
    taken = []

    def source():
        for number, sample in enumerate(POOL):
            taken.append(number)
            yield sample

    stream = arbiter.stream(source(), batch_size=3)
    assert taken == []
    decisions = [next(stream)]
    assert taken == [0, 1, 2]
    decisions += list(stream)
    for decision, expected in zip(decisions, alone["gated"], strict=True):
        same(decision, expected)


def test_a_stream_passes_errors_on_in_their_place(arbiter):
    unreadable = SampleError("line 2 is no sample")
    items = [POOL[0], unreadable, POOL[1], broken()[0][0], POOL[2]]
    results = list(arbiter.stream(items, batch_size=2, errors="return"))
    kinds = [type(result) for result in results]
    assert kinds == [Decision, SampleError, Decision, MediaError, Decision]
    assert results[1] is unreadable
    stream = arbiter.stream(items, batch_size=5)
    assert isinstance(next(stream), Decision)
    with pytest.raises(SampleError, match=r"^sample 1: line 2 is no sample$"):
        next(stream)


def test_a_stream_lets_go_of_what_it_has_decided(arbiter, monkeypatch):
    """Tables of earlier batches are gone, and a longer stream takes no more memory."""
    tables = []
    ensure = memory.MemoryStore.ensure

    def watched(store, kind, refs):
        found = ensure(store, kind, refs)
        tables.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(memory.MemoryStore, "ensure", watched)

    def source(count):
        for number in range(count):
            picture = np.full((64, 64, 3), number % 256, np.uint8)
            yield Sample(f"number {number}?", COLORS, images=(picture,))

    def peak(count):
        tracemalloc.start()
        for _ in arbiter.stream(source(count), batch_size=4):
            pass
        measured = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return measured

    peak(8)
    gc.disable()  # what only cycles keep would pile up
    try:
        short, long = peak(8), peak(64)
        assert long < 1.25 * short
        assert len(tables) > 30 and not any(table() is not None for table in tables)
    finally:
        gc.enable()


# ---------------------------------------------------------------- what a decision says


def test_a_decision_is_json(arbiter):
    decision = arbiter.decide(QUESTION, COLORS, image=draw_square("red", 8, 8), deliberate=True)
    values = json.loads(json.dumps(decision.to_dict(), allow_nan=False))
    assert values["choice"] == COLORS[values["index"]]
    assert sum(values["probabilities"]) == pytest.approx(1)
    p = np.array(values["probabilities"])
    assert values["entropy"] == pytest.approx(float(-(p * np.log(p)).sum()))
    assert values["level"] == 0.9 and 0 <= values["stability"] <= 1
    assert values["certified"] is (values["stability"] >= 0.8)
    assert values["modalities"] == ["image"]
    assert all(set(reason) == {"code", "text"} for reason in values["reasons"])
    assert values["timings"]["batch_size"] == 1


def test_an_uncalibrated_model_claims_nothing(uncalibrated):
    decision = uncalibrated.decide(QUESTION, COLORS)
    assert decision.prediction_set is None and decision.level is None and not decision.early_exit
    assert decision.escalate and decision.reasons[0].code == "not_calibrated"
    assert "the probabilities are not calibrated" in decision.notes
    with pytest.raises(DecisionError, match="not calibrated"):
        uncalibrated.set_target_risk(0.1)
    with pytest.raises(DecisionError, match="passes above 0"):
        uncalibrated.decide(QUESTION, COLORS, deliberate=True)


def test_probabilities_that_are_none_are_refused(parts, monkeypatch):
    """As they would be neither below nor above any threshold."""
    arbiter = Arbiter(parts)
    outcome = arbiter._deployed.run(index([POOL[0]], parts.encoder), "full")
    broken = dataclasses.replace(outcome, probabilities=outcome.probabilities * np.nan)
    monkeypatch.setattr(arbiter._deployed, "run", lambda dataset, path: broken)
    with pytest.raises(DecisionError, match="not finite"):
        arbiter.decide(POOL[0].question, POOL[0].candidates)
    (error,) = arbiter.decide_batch([POOL[0]], errors="return")
    assert isinstance(error, DecisionError)


def test_thresholds_can_be_given_with_a_question(arbiter):
    everything = {
        "max_entropy": None, "min_confidence": None, "max_set_size": None, "min_stability": None,
        "foil_collision": False,
    }  # fmt: skip
    quiet = arbiter.decide(QUESTION, COLORS, deliberate=True, escalation=everything)
    assert not quiet.escalate and quiet.reasons == ()
    for change, code in (
        ({"max_entropy": 0.0}, "high_entropy"),
        ({"min_confidence": 1.0}, "low_confidence"),
        ({"min_stability": 1.0}, "unstable"),
    ):
        decision = arbiter.decide(
            "case?", ["red", "stop", "go"], deliberate=True, escalation={**everything, **change}
        )
        codes = [reason.code for reason in decision.reasons]
        if code == "unstable" and decision.stability == 1.0:
            assert codes == []
        else:
            assert codes == [code]
    wide = arbiter.decide(
        QUESTION, COLORS, alpha=0.001, escalation={**everything, "max_set_size": 1}
    )
    assert [r.code for r in wide.reasons] == ["set_too_large"]
    assert len(wide.prediction_set) == len(COLORS) and "too few" in wide.notes[-1]


def test_empty_sets_follow_the_configured_policy(parts):
    """At alpha close to 1 nothing is within the threshold."""
    for policy, size, escalates in (("top1", 1, False), ("allow", 0, False), ("escalate", 0, True)):
        values = {**parts.calibration, "empty_set": policy}
        arbiter = Arbiter(dataclasses.replace(parts, calibration=values))
        quiet = {"max_entropy": None, "min_confidence": None}
        decision = arbiter.decide(QUESTION, COLORS, alpha=0.999, escalation=quiet)
        assert len(decision.prediction_set) == size
        assert decision.escalate is escalates
        assert [r.code for r in decision.reasons] == ["empty_set"] * escalates


def test_a_shut_gate_says_so(parts):
    values = json.loads(json.dumps(parts.calibration))
    values["fitted"]["gate"] = None
    values["gate"] = {**values["gate"], "gate": None, "reason": "no gate was good enough"}
    decision = Arbiter(dataclasses.replace(parts, calibration=values)).decide(QUESTION, COLORS)
    assert decision.notes == ("the gate for early exit is shut; calibration.json says why",)
    assert not decision.early_exit


def test_a_temperature_from_few_samples_says_so(parts):
    for count, said in ((2, True), (49, True), (50, False)):
        values = {**parts.calibration, "fit_samples": count}
        few = Arbiter(dataclasses.replace(parts, calibration=values))
        for options in ({}, {"early_exit": False}):
            notes = few.decide(QUESTION, COLORS, **options).notes
            assert any(f"temperature comes from {count} samples" in n for n in notes) is said
        assert ("probabilities are rough" in describe_calibration(few.calibration)) is said
        assert bool(few.calibration.summary(None)["notes"]) is said


def test_deliberation_without_foils_says_so(parts):
    bare = Arbiter(dataclasses.replace(parts, bank=None))
    decision = bare.decide(QUESTION, COLORS, deliberate=True)
    assert any("no foils travel with this model" in note for note in decision.notes)


# ---------------------------------------------------------------- target risk


def test_a_target_risk_escalates_by_its_threshold_alone(parts):
    arbiter = Arbiter(parts)
    found = arbiter.set_target_risk(0.2)
    assert sorted(found) == sorted(PATHS)
    threshold = found["full"].threshold
    assert threshold is not None and found["full"].decided > 0
    samples = text_samples(60, seed=5)
    decisions = arbiter.decide_batch(samples, early_exit=False)
    for decision in decisions:
        assert decision.escalate is (max(decision.probabilities) < threshold)
        assert [r.code for r in decision.reasons] == ["target_risk"] * decision.escalate
    assert 0 < sum(d.escalate for d in decisions) < 60
    arbiter.set_target_risk(None)
    again = arbiter.decide_batch(samples, early_exit=False)
    assert all(reason.code != "target_risk" for d in again for reason in d.reasons)


def test_what_a_target_risk_promises_holds_on_new_samples(parts, encoder):
    """Selective risk on 600 further questions of the same world, beyond what chance allows."""
    from scipy.stats import binom

    arbiter = Arbiter(parts)
    arbiter.set_target_risk(0.2)
    test = answered(parts.model, index(text_samples(600, seed=11), encoder), seed=1)
    decisions = arbiter.decide_batch(list(test.samples))
    stand = [
        decision.index == sample.answer
        for decision, sample in zip(decisions, test.samples, strict=True)
        if not decision.escalate
    ]
    assert len(stand) > 100
    assert binom.sf(stand.count(False) - 1, len(stand), 0.2) > 1e-4


def test_a_target_out_of_reach_is_said_and_changes_nothing(parts):
    arbiter = Arbiter(parts)
    before = arbiter.decide(QUESTION, COLORS)
    with pytest.raises(DecisionError, match="no threshold reaches a risk of at most 1e-06"):
        arbiter.set_target_risk(1e-6)
    for wrong in (0, 1, -1, "x", float("nan")):
        with pytest.raises(DecisionError, match="target_risk="):
            arbiter.set_target_risk(wrong)
    same(arbiter.decide(QUESTION, COLORS), before)


def test_decide_takes_sounds_and_clips_in_any_form(arbiter):
    wave, frames = tone(440), [draw_square("red", i, 8) for i in (0, 8, 16)]
    one = arbiter.decide(QUESTION, COLORS, video=frames, audio=(wave, 16_000))
    other = arbiter.decide(
        QUESTION, COLORS, video=np.stack([np.asarray(f) for f in frames]), audio=wave
    )
    assert one.modalities == ("audio", "video")
    same(one, other)
