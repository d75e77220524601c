import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from arbiter.calibration.deployed import GATED
from arbiter.calibration.exact import coverage_interval
from arbiter.console import as_lines
from arbiter.evaluation.figures import Evidence, evaluate, named_parts, summary_figures
from arbiter.evaluation.plots import write_plot
from arbiter.evaluation.sets import DeployedSets
from arbiter.evaluation.table import tables
from arbiter.sample import Sample
from tests.evaluation.evidence import calibration, drawn, outcome, samples

PICTURE = (Image.new("RGB", (8, 8)),)


@pytest.fixture
def evidence() -> Evidence:
    """Five decisions: the first three of source a, of which two are right; both of b are."""
    asked = [
        Sample("1", ("x", "y"), 0, source="a", images=PICTURE, meta={"question_type": "t"}),
        Sample("2", ("x", "y"), 1, source="a", images=PICTURE, meta={"question_type": "t"}),
        Sample("3", ("x", "y", "z", "w"), 3, source="a", meta={"question_type": "u"}),
        Sample("4", ("x", "y", "z", "w"), 2, source="b"),
        Sample("5", ("x", "y"), 0, source="b"),
    ]
    seen = [
        [0.9, 0.1, 0, 0], [0.6, 0.4, 0, 0], [0.1, 0.1, 0.1, 0.7], [0, 0, 1, 0], [0.8, 0.2, 0, 0]
    ]  # fmt: skip
    mask = np.array([[True, True, k, k] for k in (False, False, True, True, False)])
    full = [[0.2, 0.8, 0, 0], [0.3, 0.7, 0, 0], *seen[2:]]
    flat = np.array([[0.5, 0.5, 0, 0]] * 5)
    return Evidence(
        samples=asked,
        outcome=outcome(seen, mask, exits=[True, True, False, False, True]),
        escalated=[(), ("low_confidence", "high_entropy"), (), (), ("high_entropy",)],
        question_only=flat,
        full=outcome(full, mask),
        deliberated=outcome(seen, mask, stability=[0.9, 0.5, 0.8, 0.79, 1.0]),
        majority=np.array([1, 1, 3, 0, 0]),
        dropped={"image": flat},
        seconds={"gated": 0.1, "full": 0.3},
    )


def test_figures_by_hand(evidence):
    report = evaluate(evidence)
    a, b, overall = report["sources"]["a"], report["sources"]["b"], report["overall"]
    assert [part["n"] for part in (a, b, overall)] == [3, 2, 5]
    assert [part["accuracy"] for part in (a, b, overall)] == pytest.approx([2 / 3, 1, 4 / 5])
    assert overall["question_only_accuracy"] == pytest.approx(2 / 5)
    assert overall["majority_accuracy"] == pytest.approx(3 / 5)
    assert overall["random_accuracy"] == pytest.approx((3 / 2 + 2 / 4) / 5)
    assert overall["nll"] == pytest.approx(-np.log([0.9, 0.4, 0.7, 1, 0.8]).mean())
    assert a["brier"] == pytest.approx((0.02 + 0.72 + 0.12) / 3)
    # Most confident first: right, right, right, right, wrong.
    assert overall["aurc"] == pytest.approx(0.2 / 5)
    assert overall["uncalibrated"] is None
    assert overall["conformal"] == []
    assert sorted(a["question_types"]) == ["t", "u"]
    assert a["question_types"]["t"]["accuracy"] == 0.5
    assert "question_types" not in b


def test_early_exits_by_hand(evidence):
    early = evaluate(evidence)["overall"]["exit"]
    # The first exit's choice differs from the full model's, and the second one's does.
    assert early["rate"] == pytest.approx(3 / 5)
    assert early["agreement"] == pytest.approx(1 / 3)
    assert (early["accuracy_with"], early["accuracy_without"]) == pytest.approx((4 / 5, 4 / 5))
    assert (early["seconds_with"], early["seconds_without"]) == (0.1, 0.3)


def test_certified_and_escalated_by_hand(evidence):
    overall = evaluate(evidence)["overall"]
    certified = overall["certified"]
    assert (certified["certified_n"], certified["uncertified_n"]) == (3, 2)
    assert (certified["certified_accuracy"], certified["uncertified_accuracy"]) == (1, 0.5)
    escalation = overall["escalation"]
    assert escalation["rate"] == pytest.approx(2 / 5)
    assert (escalation["standing_accuracy"], escalation["escalated_accuracy"]) == (1, 0.5)
    assert escalation["reasons"] == {"high_entropy": 0.4, "low_confidence": 0.2}


def test_a_modality_is_only_missed_where_it_was(evidence):
    report = evaluate(evidence)
    assert report["sources"]["a"]["dropped_modalities"] == {"image": pytest.approx(1 / 3)}
    assert report["sources"]["b"]["dropped_modalities"] == {}


def test_the_order_of_samples_has_no_influence():
    rng = np.random.default_rng(0)
    found, answer = drawn(60, rng)
    parts = []
    for order in (np.arange(60), rng.permutation(60)):
        shuffled = outcome(found.probabilities[order], found.mask[order])
        evidence = Evidence(samples(answer[order]), shuffled, [()] * 60, found.probabilities[order])
        parts.append(evaluate(evidence)["overall"])
    for key in ("accuracy", "nll", "brier", "ece", "aurc"):
        assert parts[0][key] == pytest.approx(parts[1][key], abs=1e-12)


def with_sets(known: dict, held: dict, per_source: bool, empty_set="allow") -> Evidence:
    rows = [sample for source, (_, answer) in held.items() for sample in samples(answer, source)]
    each = [o for o, _ in held.values()]
    joined = outcome(np.concatenate([o.probabilities for o in each]))
    sources = [sample.source for sample in rows]
    sets = DeployedSets(calibration(known, empty_set), joined, GATED, sources, per_source)
    return Evidence(rows, joined, [()] * len(rows), joined.probabilities, sets=sets)


@pytest.mark.parametrize("per_source", [False, True])
def test_coverage_by_the_definition_and_what_is_promised(per_source):
    rng = np.random.default_rng(3)
    known = {"a": drawn(120, rng), "b": drawn(39, rng, noise=4)}
    held = {"a": drawn(90, rng), "b": drawn(30, rng, noise=4)}
    evidence = with_sets(known, held, per_source)
    report = evaluate(evidence, [0.1])
    for source in ("a", "b"):
        part = report["sources"][source]
        (entry,) = [e for e in part["conformal"] if e["method"] == "lac"]
        used = [source] if per_source else ["a", "b"]
        strange = sorted(
            1 - o.probabilities[row, right]
            for o, answer in (known[name] for name in used)
            for row, right in enumerate(answer)
        )
        limit = strange[int(np.ceil((len(strange) + 1) * 0.9)) - 1] + 1e-6
        found, answer = held[source]
        inside = 1 - found.probabilities <= limit
        assert entry["coverage"] == inside[np.arange(len(answer)), answer].mean()
        assert entry["mean_set_size"] == inside.sum(axis=1).mean()
        # Calibrated together, nothing is promised of one source by itself.
        count = len(known[source][1])
        expected = list(coverage_interval(count, len(answer), 0.1)) if per_source else None
        assert entry["guarantee_interval"] == expected
    promised = report["overall"]["conformal"][0]["guarantee_interval"]
    assert promised == (None if per_source else list(coverage_interval(159, 120, 0.1)))


def test_nothing_is_promised_of_other_data_than_was_calibrated_on():
    rng = np.random.default_rng(4)
    evidence = with_sets({"a": drawn(99, rng)}, {"c": drawn(30, rng)}, per_source=False)
    assert all(e["guarantee_interval"] is None for e in evaluate(evidence)["overall"]["conformal"])


def test_nothing_is_promised_of_other_shares_nor_of_samples_that_were_used():
    rng = np.random.default_rng(8)
    known = {"a": drawn(120, rng), "b": drawn(120, rng, noise=4)}
    held = {"a": drawn(80, rng), "b": drawn(80, rng, noise=4)}

    def promised(evidence, **options) -> list[bool]:
        report = evaluate(evidence, [0.1], **options)
        parts = (report["overall"], *report["sources"].values())
        return [part["conformal"][0]["guarantee_interval"] is not None for part in parts]

    shifted = {**held, "b": drawn(20, rng, noise=4)}
    for per_source in (False, True):
        same, other = (with_sets(known, h, per_source) for h in (held, shifted))
        each = [False, True, True]
        assert promised(same) == (each if per_source else [True, False, False])
        assert promised(other) == (each if per_source else [False] * 3)
        assert promised(same, held_out=False) == [False] * 3
        says = ["no coverage is promised" in " ".join(e.sets.notes([0.1])) for e in (same, other)]
        assert says == [False, not per_source]


def test_too_few_calibration_samples_give_full_sets_and_a_note():
    rng = np.random.default_rng(5)
    evidence = with_sets({"a": drawn(12, rng)}, {"a": drawn(30, rng)}, per_source=False)
    by_alpha = {e["alpha"]: e for e in evaluate(evidence)["overall"]["conformal"]}
    assert by_alpha[0.05]["mean_set_size"] == 4 and by_alpha[0.05]["full"] == 1
    assert by_alpha[0.1]["full"] == 0
    notes = evidence.sets.notes((0.05, 0.1))
    assert notes[1] == "level 0.05 needs 19 calibration samples, there are 12; its sets hold all " \
        "candidates"  # fmt: skip
    assert len(notes) == 3 and "gate" in notes[2]
    assert "temperature comes from 12 samples, fewer than 50" in notes[0]


def test_filling_empty_sets_adds_to_coverage_and_is_told_apart():
    rng = np.random.default_rng(6)
    known, held = {"a": drawn(99, rng)}, {"a": drawn(200, rng)}
    allowed, filled = (
        evaluate(with_sets(known, held, False, policy), [0.5])["overall"]["conformal"][0]
        for policy in ("allow", "top1")
    )
    assert filled["coverage"] > filled["unfilled_coverage"] == allowed["coverage"]
    assert filled["empty"] == allowed["empty"] > 0
    assert filled["mean_set_size"] == pytest.approx(allowed["mean_set_size"] + filled["empty"])


def test_the_report_is_json_with_curves_where_promised(evidence):
    report = evaluate(evidence)
    json.dumps(report, allow_nan=False)
    for part in (report["overall"], *report["sources"].values()):
        curves = part["curves"]
        assert sum(b["n"] for b in curves["reliability"]["after"]) == part["n"]
        assert curves["risk_coverage"][-1] == [1.0, pytest.approx(1 - part["accuracy"])]
    assert "curves" not in report["sources"]["a"]["question_types"]["t"]


def test_what_summaries_and_tables_take_from_it(evidence):
    report = evaluate(evidence)
    summary = summary_figures(report)
    assert list(summary) == ["a", "b"] and "curves" not in summary["a"]
    assert summary["a"]["question_types"]["u"]["accuracy"] == 1
    names = ["all", "a", "  t", "  u", "b"]
    assert [name for name, _ in named_parts(report)] == names
    lines = as_lines(tables(report))
    for name in names:
        assert any(line.startswith(f"{name} ") and "%" in line for line in lines)


def test_names_from_data_are_shown_as_they_are(evidence, tmp_path):
    named = [replace(s, source=r"[/a] $\x$ :+1: <&") for s in evidence.samples]
    report = evaluate(replace(evidence, samples=named))
    assert any(line.startswith(r"[/a] $\x$ :+1: <& ") for line in as_lines(tables(report)))
    path = tmp_path / "plot.svg"
    write_plot({**report, "dataset": "$\\y", "split": "test"}, path)
    ElementTree.parse(path)
