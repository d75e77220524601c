from dataclasses import replace

import numpy as np
import pytest

from arbiter.calibration.calibration import calibrate
from arbiter.calibration.config import CalibrationConfig
from arbiter.calibration.deployed import FULL, UNCALIBRATED, Deployed
from arbiter.calibration.gate import Gate
from arbiter.errors import DecisionError
from arbiter.evaluation.data_record import read_record, write_record
from arbiter.evaluation.document import document, write_document
from arbiter.evaluation.figures import evaluate
from arbiter.evaluation.majority import MajorityBaseline
from arbiter.evaluation.measure import at_temperature_1, check_inputs, measure, without
from arbiter.features.dataset import index_samples
from arbiter.features.store import FeatureStore
from arbiter.model.predict import Running, predict, predict_draft, softmax
from arbiter.sample import Modality, Sample
from tests.conftest import make_model, make_samples


@pytest.fixture(scope="module")
def model(dataset, encoder):
    return make_model(dataset, encoder)


FIELDS = {
    Modality.CONTEXT: {"context": None},
    Modality.IMAGE: {"images": ()},
    Modality.VIDEO: {"video": ()},
    Modality.AUDIO: {"audio": None},
}


@pytest.mark.parametrize("modality", list(Modality))
def test_without_a_modality_is_as_if_it_had_never_come(modality, model, dataset, encoder, tmp_path):
    bare = [replace(sample, **FIELDS[modality]) for sample in dataset.samples]
    lists = {"all": dataset.samples, "bare": bare}
    both = index_samples(lists, FeatureStore(tmp_path, encoder), encoder.spec)
    deployed = Deployed(model, UNCALIBRATED, None, Running())
    there = deployed.run(without(both["all"], modality), FULL).probabilities
    np.testing.assert_allclose(there, deployed.run(both["bare"], FULL).probabilities, atol=1e-5)
    touched = [modality in sample.modalities for sample in dataset.samples]
    changed = np.abs(there - deployed.run(both["all"], FULL).probabilities).max(axis=1) > 1e-7
    assert (changed <= touched).all() and changed.any()


def test_temperature_1_is_found_again_on_either_path(model, dataset):
    gate = Gate(0.02, 9.0, 0.0)
    fitted = replace(UNCALIBRATED, draft_temperature=0.6, full_temperature=2.5, gate=gate)
    outcome = Deployed(model, fitted, None, Running()).run(dataset, "gated")
    assert 0 < outcome.early_exit.sum() < len(dataset)
    plain = predict(model, dataset, 8, Running().device)
    logits = np.where(outcome.early_exit[:, None], plain.draft_logits, plain.logits)
    np.testing.assert_allclose(
        at_temperature_1(outcome, fitted), softmax(logits, plain.mask), atol=1e-5
    )


def test_a_calibrated_model_is_measured_by_every_path(model, dataset):
    calibration = calibrate(model, dataset, CalibrationConfig(), None, Running(), seed=0)
    # A gate that opens for some, whatever a tiny split would allow.
    logits, mask = predict_draft(model, dataset, Running())
    gate = Gate(0.0, 9.0, float(np.median(softmax(logits, mask).max(axis=1))))
    fitted = replace(calibration.fitted, gate=gate)
    calibration = replace(calibration, fitted=fitted)
    deployed = Deployed(model, fitted, None, Running())
    evidence = measure(deployed, calibration, dataset, MajorityBaseline(dataset.samples))
    report = evaluate(evidence)
    overall = report["overall"]
    assert sorted(report["sources"]) == ["mixed", "squares"]
    assert overall["n"] == len(dataset)
    assert set(overall["dropped_modalities"]) == {m.value for m in Modality}
    assert set(report["sources"]["squares"]["dropped_modalities"]) == {"image"}
    exits = overall["exit"]
    assert 0 < exits["rate"] < 1
    full = deployed.run(dataset, FULL).probabilities.argmax(axis=1)
    answer = np.array([sample.answer for sample in dataset.samples])
    assert exits["accuracy_without"] == pytest.approx((full == answer).mean())
    certified = overall["certified"]
    assert certified["certified_n"] + certified["uncertified_n"] == len(dataset)


def test_escalation_goes_by_the_sets_that_are_measured(model, dataset):
    """Within its source, a sample of an unknown one has all candidates as its set."""
    calibration = calibrate(model, dataset, CalibrationConfig(), None, Running(), seed=0)
    deployed = Deployed(model, calibration.fitted, None, Running())
    strange = replace(dataset, samples=[replace(s, source="new") for s in dataset.samples])
    large = [
        ["set_too_large" in codes for codes in measure(
            deployed, calibration, strange, None, per_source
        ).escalated]
        for per_source in (False, True)
    ]  # fmt: skip
    assert all(large[1]) and not all(large[0])


def test_question_only_is_without_media_where_only_pictures_are(model, dataset):
    pictured = dataset.take([r for r, s in enumerate(dataset.samples) if s.source == "squares"])
    evidence = measure(Deployed(model, UNCALIBRATED, None, Running()), None, pictured, None)
    np.testing.assert_array_equal(evidence.dropped["image"], evidence.question_only)
    bare = Deployed(model, UNCALIBRATED, None, Running()).run(
        without(pictured, Modality.IMAGE), FULL
    )
    np.testing.assert_allclose(evidence.question_only, bare.probabilities, atol=1e-5)
    part = evaluate(evidence)["overall"]
    assert part["majority_accuracy"] is None and part["conformal"] == [] and part["exit"] is None


def test_a_modality_that_the_model_does_not_know_is_named(dataset, encoder):
    squares = [sample for sample in dataset.samples if sample.source == "squares"]
    model = make_model(replace(dataset, samples=squares), encoder)
    check_inputs(model, squares)
    with pytest.raises(DecisionError, match=r"^mixed : .*without context; .*knows image\)"):
        check_inputs(model, dataset.samples)


def split_up(dataset) -> dict:
    parts = np.array_split(np.arange(len(dataset)), 3)
    return dict(zip(("train", "val", "calibration"), map(dataset.take, parts), strict=True))


def test_used_samples_are_known_by_their_content(dataset, encoder, tmp_path):
    data = split_up(dataset)
    write_record(tmp_path, data)
    record = read_record(tmp_path)
    # The same content from elsewhere: other names, other order of candidates, another table.
    copies = [
        replace(
            sample,
            candidates=sample.candidates[::-1],
            answer=None,
            source="copied",
            group="g",
            id="x",
        )
        for sample in make_samples()[:3]
    ]
    fresh = Sample("never asked?", ("yes", "no"), answer=0)
    again = index_samples(
        {"": [*copies, fresh]}, FeatureStore(tmp_path / "features", encoder), encoder.spec
    )[""]
    assert record.used(again) == {"train": 3, "val": 0, "calibration": 0}
    expected = MajorityBaseline(data["train"].samples)
    assert all(record.majority.predict(s) == expected.predict(s) for s in dataset.samples)


def test_a_document_says_whether_its_samples_are_held_out(model, dataset, tmp_path):
    data = split_up(dataset)
    record = write_record(tmp_path, {**data, "val": data["train"]})
    deployed = Deployed(model, UNCALIBRATED, None, Running())
    names = {"run": tmp_path, "dataset": "squares", "split": "test"}

    def made(part, record):
        return document(measure(deployed, None, part, None), part, record, **names)

    seen, held_out, unknown = (
        made(data["train"], record),
        made(data["calibration"].take([0]), replace(record, digests={"train": np.zeros(0, int)})),
        made(data["calibration"], None),
    )
    n = len(data["train"])
    assert (seen["held_out"], seen["used"]) == (False, {"train": n, "val": n})
    assert f"NOT HELD OUT: the run was trained on {n} of these {n} samples" in seen["notes"]
    assert (held_out["held_out"], held_out["used"]) == (True, {})
    assert unknown["held_out"] is None and any("no record" in note for note in unknown["notes"])
    assert write_document(tmp_path, "squares", seen) == tmp_path / "evaluation" / "squares.json"


def test_a_document_promises_nothing_of_samples_that_may_have_been_used(model, dataset, tmp_path):
    calibration = calibrate(model, dataset, CalibrationConfig(), None, Running(), seed=0)
    deployed = Deployed(model, calibration.fitted, None, Running())
    evidence = measure(deployed, calibration, dataset, None)
    record = write_record(tmp_path, split_up(dataset))
    fresh = replace(record, digests={"train": np.zeros(0, int)})
    for known, promised in ((record, False), (None, False), (fresh, True)):
        found = document(evidence, dataset, known, run=tmp_path, dataset="squares", split="test")
        entries = found["overall"]["conformal"]
        assert all((e["guarantee_interval"] is not None) is promised for e in entries)


def test_a_damaged_record_is_one_line(dataset, tmp_path):
    from arbiter.errors import RunError

    assert read_record(tmp_path) is None
    write_record(tmp_path, split_up(dataset))
    (tmp_path / "training_answers.json").write_text("[1]")
    with pytest.raises(RunError, match="damaged"):
        read_record(tmp_path)
