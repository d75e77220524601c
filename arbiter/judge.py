"""From probabilities to decisions: sets, and whether to ask someone slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from arbiter.calibration.calibration import Calibration
from arbiter.calibration.deliberation import CERTIFIED
from arbiter.calibration.deployed import GATED, Outcome
from arbiter.calibration.escalation import (
    NOT_CALIBRATED,
    TARGET_RISK,
    EscalationConfig,
    Evidence,
    Reason,
    reasons,
)
from arbiter.calibration.metrics import entropy
from arbiter.calibration.risk import RiskThreshold
from arbiter.decision import Decision, Options, Timings
from arbiter.errors import DecisionError
from arbiter.sample import Sample


def judge(
    samples: Sequence[Sample],
    outcome: Outcome,
    options: Options,
    timings: Timings,
    calibration: Calibration | None,
    target: Mapping[str, RiskThreshold] | None,
    has_foils: bool,
) -> list[Decision]:
    """Decisions about N samples.

    Args:
        outcome: of the path that `options` name.
        calibration: None for a model that is not calibrated.
        target: the thresholds of a target risk, by path; None for the model's own.
        has_foils: whether deliberation had a bank.

    Raises:
        DecisionError: a probability is not a number, which no threshold would escalate.
    """
    if not np.isfinite(outcome.probabilities).all():
        raise DecisionError(
            "the model's probabilities are not finite: its weights are damaged, or too large for "
            "this device's precision"
        )
    sets = None
    if calibration is not None:
        sources = [sample.source for sample in samples] if options.per_source else None
        sets = calibration.prediction_sets(
            outcome, options.path, options.method, options.alpha, sources
        )
    entropies = entropy(outcome.probabilities)
    decisions = []
    for row, sample in enumerate(samples):
        probabilities = outcome.probabilities[row, : len(sample.candidates)]
        index, chosen = int(probabilities.argmax()), None
        if sets is not None:
            order = np.argsort(-probabilities, kind="stable")
            chosen = tuple(sample.candidates[k] for k in order if sets.deployed[row, k])
        stability = None if outcome.stability is None else float(outcome.stability[row])
        seen = Evidence(
            entropy=float(entropies[row]),
            confidence=float(probabilities[index]),
            level=1 - options.alpha,
            set_size=None if chosen is None else len(chosen),
            too_few=int(sets.behind[row]) if sets is not None and sets.too_few[row] else None,
            stability=stability,
            collision=None if outcome.collision is None else bool(outcome.collision[row]),
        )
        why = _reasons(seen, options, calibration, target)
        decisions.append(
            Decision(
                choice=sample.candidates[index],
                index=index,
                probabilities=tuple(probabilities.tolist()),
                entropy=seen.entropy,
                prediction_set=chosen,
                level=None if chosen is None else seen.level,
                early_exit=bool(outcome.early_exit[row]),
                stability=stability,
                certified=None if stability is None else stability >= CERTIFIED,
                escalate=bool(why),
                reasons=tuple(why),
                modalities=tuple(sorted(m.value for m in sample.modalities)),
                notes=tuple(_notes(seen, sample, options, calibration, has_foils)),
                timings=timings,
            )
        )
    return decisions


def _reasons(
    seen: Evidence,
    options: Options,
    calibration: Calibration | None,
    target: Mapping[str, RiskThreshold] | None,
) -> list[Reason]:
    if calibration is None:
        found = [Reason(NOT_CALIBRATED, "the model is not calibrated")]
        return found + reasons(options.thresholds(EscalationConfig()), seen, False)
    if target is None:
        thresholds = options.thresholds(calibration.escalation)
        return reasons(thresholds, seen, calibration.empty_set == "escalate")
    asked = target[options.path]
    if asked.threshold is None:
        return [Reason(TARGET_RISK, asked.reason)]
    if seen.confidence >= asked.threshold:
        return []
    text = (
        f"confidence {seen.confidence:.4f} is below {asked.threshold:.4f}, which the target risk "
        "asks for"
    )
    return [Reason(TARGET_RISK, text)]


def _notes(
    seen: Evidence,
    sample: Sample,
    options: Options,
    calibration: Calibration | None,
    has_foils: bool,
) -> list[str]:
    notes = []
    if calibration is None:
        notes.append("the probabilities are not calibrated")
    else:
        notes += calibration.notes
        if options.path == GATED and calibration.gate.gate is None:
            notes.append("the gate for early exit is shut; calibration.json says why")
    if seen.too_few is not None:
        where = f" of source {sample.source!r}" if options.per_source else ""
        notes.append(
            f"the set is all candidates: {seen.too_few} calibration samples{where} are too few "
            f"for level {seen.level:.12g}"
        )
    if options.deliberate and not has_foils:
        notes.append("no foils travel with this model: its stability knows no tournament")
    return notes
