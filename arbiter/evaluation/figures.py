"""Figures about decisions whose answers are known: overall, by source and by question type.

Pure functions of arrays; `measure.py` makes the arrays by running a model.
Shape letters: N samples, K candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from arbiter.calibration.conformal import METHODS
from arbiter.calibration.deliberation import CERTIFIED
from arbiter.calibration.deployed import FULL, GATED, Outcome
from arbiter.calibration.metrics import aurc, bootstrap_interval, summarize, wilson_interval
from arbiter.evaluation.curves import curves
from arbiter.evaluation.sets import DeployedSets
from arbiter.sample import Sample

ALPHAS = (0.05, 0.1, 0.2)
DEFAULT_METHOD = METHODS[0]


@dataclass(frozen=True)
class Evidence:
    """What a model made of N samples, in their order; probabilities are 0 where padded.

    Attributes:
        samples: with known answers.
        outcome: of the path that is deployed by default.
        uncalibrated: float64 [N, K], that path's probabilities at temperature 1; None without
            calibration.
        escalated: codes of the reasons why each decision is escalated; empty where it stands.
        question_only: float64 [N, K], with images, video and audio left out.
        full: the full model's; None where the gate is shut.
        deliberated: None when it was not asked for.
        sets: prediction sets; None without calibration.
        majority: int64 [N], choices of the frequency baseline; None where training answers are not
            known.
        dropped: modality -> float64 [N, K], with it left out.
        seconds: path -> seconds per question, features aside.
    """

    samples: Sequence[Sample]
    outcome: Outcome
    escalated: Sequence[tuple[str, ...]]
    question_only: np.ndarray
    uncalibrated: np.ndarray | None = None
    full: Outcome | None = None
    deliberated: Outcome | None = None
    sets: DeployedSets | None = None
    majority: np.ndarray | None = None
    dropped: Mapping[str, np.ndarray] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


def evaluate(evidence: Evidence, alphas: Sequence[float] = ALPHAS, held_out: bool = True) -> dict:
    """All figures, as JSON; what they mean is in docs/evaluation.md.

    Args:
        alphas: error levels of the prediction sets.
        held_out: whether the run is known to have used none of the samples; nothing is promised of
            others.

    Returns:
        `overall`, and `sources` with a part for each source, which has `question_types` with a part
        for each type that the source names.
    """
    sources = np.array([sample.source for sample in evidence.samples])
    types = np.array([str(sample.meta.get("question_type", "")) for sample in evidence.samples])
    names = list(dict.fromkeys(sources.tolist()))
    parts = _Parts(evidence, alphas, held_out)
    report: dict = {"overall": parts.part(np.arange(len(sources)), names), "sources": {}}
    if evidence.full is not None and evidence.seconds:
        times = {"seconds_with": evidence.seconds[GATED], "seconds_without": evidence.seconds[FULL]}
        report["overall"]["exit"].update(times)
    for source in names:
        here = sources == source
        part = parts.part(np.flatnonzero(here), [source])
        named = sorted(set(types[here].tolist()) - {""})
        if named:
            part["question_types"] = {
                name: parts.part(np.flatnonzero(here & (types == name)), None) for name in named
            }
        report["sources"][source] = part
    return report


class _Parts:
    """Figures of subsets of the evidence."""

    def __init__(self, evidence: Evidence, alphas: Sequence[float], held_out: bool):
        self._e, self._alphas, self._held_out = evidence, alphas, held_out
        self._answer = np.array([sample.answer for sample in evidence.samples])
        self._chance = np.array([1 / len(sample.candidates) for sample in evidence.samples])
        self._modalities = {
            name: np.array([name in {m.value for m in s.modalities} for s in evidence.samples])
            for name in evidence.dropped
        }

    def part(self, rows: np.ndarray, sources: list[str] | None) -> dict:
        """Figures of some rows.

        Args:
            sources: where they are all rows of these sources; None where they are less, which has
                neither curves nor a guarantee of its own.
        """
        e, answer = self._e, self._answer[rows]
        probabilities = e.outcome.probabilities[rows]
        confidence, right = probabilities.max(axis=-1), probabilities.argmax(axis=-1) == answer
        uncalibrated = None if e.uncalibrated is None else e.uncalibrated[rows]
        found = {
            **summarize(probabilities, answer),
            "question_only_accuracy": self._accuracy(e.question_only, rows),
            "majority_accuracy": (
                None if e.majority is None else float((e.majority[rows] == answer).mean())
            ),
            "random_accuracy": float(self._chance[rows].mean()),
            "uncalibrated": None,
            "conformal": self._conformal(rows, sources),
            "exit": self._exit(rows),
            "aurc": aurc(confidence, right),
            "aurc_interval": list(
                bootstrap_interval(lambda drawn: aurc(confidence[drawn], right[drawn]), len(rows))
            ),
            "escalation": self._escalation(rows, right),
            "dropped_modalities": {
                name: self._accuracy(without, rows)
                for name, without in e.dropped.items()
                if self._modalities[name][rows].any()
            },
            "certified": self._certified(rows),
        }
        if uncalibrated is not None:
            before = summarize(uncalibrated, answer)
            found["uncalibrated"] = {key: before[key] for key in ("nll", "brier", "ece")}
        if sources is not None:
            found["curves"] = curves(probabilities, uncalibrated, answer)
            found["curves"]["coverage"] = self._coverage(rows)
        return found

    def _accuracy(self, probabilities: np.ndarray, rows: np.ndarray) -> float:
        return float((probabilities[rows].argmax(axis=-1) == self._answer[rows]).mean())

    def _conformal(self, rows: np.ndarray, sources: list[str] | None) -> list[dict]:
        if self._e.sets is None:
            return []
        found = []
        for method in METHODS:
            for alpha in self._alphas:
                measured = self._e.sets.measure(method, alpha, rows, self._answer)
                covered = wilson_interval(round(measured["coverage"] * len(rows)), len(rows))
                promised = None
                if self._held_out:
                    promised = self._e.sets.guarantee(alpha, len(rows), sources)
                found.append(
                    {
                        "alpha": alpha,
                        "method": method,
                        **measured,
                        "coverage_interval": list(covered),
                        "guarantee_interval": None if promised is None else list(promised),
                    }
                )
        return found

    def _coverage(self, rows: np.ndarray) -> list[list[float]]:
        """[alpha, coverage, mean set size] of the default method, for alphas up to one half."""
        if self._e.sets is None:
            return []
        found = []
        for alpha in (np.arange(1, 51) / 100).tolist():
            measured = self._e.sets.measure(DEFAULT_METHOD, alpha, rows, self._answer)
            found.append([alpha, measured["coverage"], measured["mean_set_size"]])
        return found

    def _escalation(self, rows: np.ndarray, right: np.ndarray) -> dict:
        """What becomes of decisions under the model's own thresholds."""
        reasons = [self._e.escalated[row] for row in rows]
        asks = np.array([bool(codes) for codes in reasons])
        counts = Counter(code for codes in reasons for code in codes)
        found = {
            "rate": float(asks.mean()),
            "reasons": {code: n / len(rows) for code, n in counts.most_common()},
        }
        for name, part in (("standing", right[~asks]), ("escalated", right[asks])):
            found[f"{name}_accuracy"] = float(part.mean()) if len(part) else None
            found[f"{name}_interval"] = list(wilson_interval(int(part.sum()), len(part)))
        return found

    def _exit(self, rows: np.ndarray) -> dict | None:
        e = self._e
        if e.full is None:
            return None
        exits = e.outcome.early_exit[rows]
        chosen, full = (o.probabilities[rows].argmax(axis=-1) for o in (e.outcome, e.full))
        agreed = int((chosen == full)[exits].sum())
        return {
            "rate": float(exits.mean()),
            "agreement": agreed / int(exits.sum()) if exits.any() else None,
            "agreement_interval": list(wilson_interval(agreed, int(exits.sum()))),
            "accuracy_with": self._accuracy(e.outcome.probabilities, rows),
            "accuracy_without": self._accuracy(e.full.probabilities, rows),
        }

    def _certified(self, rows: np.ndarray) -> dict | None:
        thought = self._e.deliberated
        if thought is None:
            return None
        right = thought.probabilities[rows].argmax(axis=-1) == self._answer[rows]
        certified = thought.stability[rows] >= CERTIFIED
        found = {
            "stability_from": CERTIFIED,
            "mean_stability": float(thought.stability[rows].mean()),
            "share": float(certified.mean()),
            "collisions": (
                None if thought.collision is None else float(thought.collision[rows].mean())
            ),
            "accuracy": float(right.mean()),
        }
        for name, part in (("certified", right[certified]), ("uncertified", right[~certified])):
            found[f"{name}_n"] = len(part)
            found[f"{name}_accuracy"] = float(part.mean()) if len(part) else None
            found[f"{name}_interval"] = list(wilson_interval(int(part.sum()), len(part)))
        return found


_SUMMARY = (
    "n", "accuracy", "accuracy_interval", "nll", "brier", "ece", "question_only_accuracy",
    "majority_accuracy", "random_accuracy",
)  # fmt: skip


def summary_figures(report: dict) -> dict[str, dict]:
    """What a run's summary keeps: the main figures of each source and its question types."""

    def short(part: dict) -> dict:
        return {key: part[key] for key in _SUMMARY}

    found = {source: short(part) for source, part in report["sources"].items()}
    for source, part in report["sources"].items():
        if "question_types" in part:
            types = part["question_types"].items()
            found[source]["question_types"] = {name: short(kind) for name, kind in types}
    return found


def named_parts(report: dict) -> Iterator[tuple[str, dict]]:
    """Every part with its name as a table shows it: all, sources, question types below them."""
    if len(report["sources"]) > 1:
        yield "all", report["overall"]
    for source, part in report["sources"].items():
        yield source, part
        for name, kind in part.get("question_types", {}).items():
            yield f"  {name}", kind
