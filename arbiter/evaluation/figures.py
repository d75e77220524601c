"""Figures about decisions whose answers are known: overall, by source and by question type.

Pure functions of arrays; `measure.py` makes the arrays by running a model.
Shape letters: N samples, K candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from arbiter.calibration.metrics import (
    aurc,
    bootstrap_interval,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_bins,
    risk_coverage,
    summarize,
    wilson_interval,
)
from arbiter.evaluation.sets import PredictionSets
from arbiter.sample import Sample

ALPHAS = (0.05, 0.1, 0.2)
_CURVE_POINTS = 200


@dataclass(frozen=True)
class EarlyExits:
    """Decisions of the draft head.

    Attributes:
        exits: bool [N], whether it answered.
        full: float64 [N, K], probabilities of the full model for all samples.
    """

    exits: np.ndarray
    full: np.ndarray


@dataclass(frozen=True)
class Deliberated:
    """Decisions after deliberation.

    Attributes:
        probabilities: float64 [N, K].
        stability: float64 [N].
        certified_from: stability from which a decision is certified.
    """

    probabilities: np.ndarray
    stability: np.ndarray
    certified_from: float


@dataclass(frozen=True)
class Evidence:
    """What a model made of N samples, in their order; probabilities are 0 where padded.

    Attributes:
        samples: with known answers.
        probabilities: float64 [N, K], of the deployed path.
        uncalibrated: float64 [N, K], the same path at temperature 1; None without calibration.
        question_only: float64 [N, K], with images, video and audio left out.
        majority: int64 [N], choices of the frequency baseline; None where training answers are not
            known.
        sets: prediction sets; None without calibration.
        exits: None where the gate is shut.
        dropped: modality -> float64 [N, K], with it left out.
        deliberated: None when it was not asked for.
    """

    samples: Sequence[Sample]
    probabilities: np.ndarray
    question_only: np.ndarray
    uncalibrated: np.ndarray | None = None
    majority: np.ndarray | None = None
    sets: PredictionSets | None = None
    exits: EarlyExits | None = None
    dropped: Mapping[str, np.ndarray] = field(default_factory=dict)
    deliberated: Deliberated | None = None


def evaluate(evidence: Evidence, alphas: Sequence[float] = ALPHAS) -> dict:
    """All figures, as JSON.

    Returns:
        `overall`, and `sources` with a part for each source, which has `question_types` with a part
        for each type that the source names. The fields of a part are in docs/evaluation.md.
    """
    sources = np.array([sample.source for sample in evidence.samples])
    types = np.array([str(sample.meta.get("question_type", "")) for sample in evidence.samples])
    names = list(dict.fromkeys(sources.tolist()))
    parts = _Parts(evidence, alphas)
    report: dict = {"overall": parts.part(np.arange(len(sources)), names), "sources": {}}
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

    def __init__(self, evidence: Evidence, alphas: Sequence[float]):
        self._e, self._alphas = evidence, alphas
        self._answer = np.array([sample.answer for sample in evidence.samples])
        self._chance = np.array([1 / len(sample.candidates) for sample in evidence.samples])

    def part(self, rows: np.ndarray, sources: list[str] | None) -> dict:
        """Figures of some rows.

        Args:
            sources: all that the rows are from, where they are all rows of them; None for less,
                which has neither curves nor a guarantee of its own.
        """
        e, answer = self._e, self._answer[rows]
        probabilities = e.probabilities[rows]
        confidence, right = probabilities.max(axis=-1), probabilities.argmax(axis=-1) == answer
        uncalibrated = None if e.uncalibrated is None else e.uncalibrated[rows]
        found = {
            **summarize(probabilities, answer),
            "question_only_accuracy": self._accuracy(e.question_only, rows),
            "majority_accuracy": (
                None if e.majority is None else float((e.majority[rows] == answer).mean())
            ),
            "random_accuracy": float(self._chance[rows].mean()),
            "uncalibrated": None if uncalibrated is None else _proper(uncalibrated, answer),
            "conformal": [] if e.sets is None else self._conformal(rows, sources),
            "exit": self._exit(rows),
            "aurc": aurc(confidence, right),
            "aurc_interval": list(
                bootstrap_interval(lambda drawn: aurc(confidence[drawn], right[drawn]), len(rows))
            ),
            "dropped_modalities": {
                name: self._accuracy(without, rows)
                for name, without in e.dropped.items()
                if any(name in {m.value for m in e.samples[row].modalities} for row in rows)
            },
            "certified": self._certified(rows),
        }
        if sources is not None:
            found["curves"] = self._curves(rows, probabilities, uncalibrated, answer)
        return found

    def _accuracy(self, probabilities: np.ndarray, rows: np.ndarray) -> float:
        return float((probabilities[rows].argmax(axis=-1) == self._answer[rows]).mean())

    def _conformal(self, rows: np.ndarray, sources: list[str] | None) -> list[dict]:
        found = []
        for method in self._e.sets.methods:
            for alpha in self._alphas:
                measured = self._e.sets.measure(method, alpha, rows, self._answer)
                covered = wilson_interval(round(measured["coverage"] * len(rows)), len(rows))
                guarantee = self._e.sets.guarantee(method, alpha, len(rows), sources)
                found.append(
                    {
                        "alpha": alpha,
                        "method": method,
                        **measured,
                        "coverage_interval": list(covered),
                        "guarantee_interval": guarantee and list(guarantee),
                    }
                )
        return found

    def _exit(self, rows: np.ndarray) -> dict | None:
        e = self._e
        if e.exits is None:
            return None
        exits, full = e.exits.exits[rows], e.exits.full[rows].argmax(axis=-1)
        agrees = e.probabilities[rows].argmax(axis=-1) == full
        return {
            "rate": float(exits.mean()),
            "agreement": float(agrees[exits].mean()) if exits.any() else None,
            "agreement_interval": list(wilson_interval(int(agrees[exits].sum()), int(exits.sum()))),
            "accuracy_with": self._accuracy(e.probabilities, rows),
            "accuracy_without": self._accuracy(e.exits.full, rows),
        }

    def _certified(self, rows: np.ndarray) -> dict | None:
        if self._e.deliberated is None:
            return None
        thought = self._e.deliberated
        right = thought.probabilities[rows].argmax(axis=-1) == self._answer[rows]
        certified = thought.stability[rows] >= thought.certified_from
        found = {
            "stability_from": thought.certified_from,
            "mean_stability": float(thought.stability[rows].mean()),
            "share": float(certified.mean()),
            "deliberated_accuracy": float(right.mean()),
        }
        for name, part in (("certified", right[certified]), ("uncertified", right[~certified])):
            found[f"{name}_n"] = len(part)
            found[f"{name}_accuracy"] = float(part.mean()) if len(part) else None
            found[f"{name}_interval"] = list(wilson_interval(int(part.sum()), len(part)))
        return found

    def _curves(
        self,
        rows: np.ndarray,
        probabilities: np.ndarray,
        uncalibrated: np.ndarray | None,
        answer: np.ndarray,
    ) -> dict:
        right = probabilities.argmax(axis=-1) == answer
        risk = risk_coverage(probabilities.max(axis=-1), right)
        points = np.unique(np.linspace(1, len(risk), _CURVE_POINTS).round().astype(int))
        curves = {
            "reliability": {
                name: [asdict(b) for b in reliability_bins(p, answer)]
                for name, p in (("before", uncalibrated), ("after", probabilities))
                if p is not None
            },
            "risk_coverage": [[n / len(risk), float(risk[n - 1])] for n in points.tolist()],
            "coverage": [],
        }
        if self._e.sets is not None:
            for alpha in np.arange(1, 51) / 100:
                found = self._e.sets.measure(
                    self._e.sets.methods[0], float(alpha), rows, self._answer
                )
                curves["coverage"].append([float(alpha), found["coverage"], found["mean_set_size"]])
        return curves


def _proper(probabilities: np.ndarray, answer: np.ndarray) -> dict:
    """Figures that a temperature changes."""
    return {
        "nll": negative_log_likelihood(probabilities, answer),
        "brier": brier_score(probabilities, answer),
        "ece": expected_calibration_error(probabilities, answer),
    }


def summary_figures(report: dict) -> dict[str, dict]:
    """What a run's summary keeps of each source: no curves, and one line per question type."""
    kept = (
        "n", "accuracy", "accuracy_interval", "nll", "brier", "ece", "question_only_accuracy",
        "majority_accuracy", "random_accuracy",
    )  # fmt: skip

    def short(part: dict) -> dict:
        found = {key: part[key] for key in kept}
        if "question_types" in part:
            found["question_types"] = {k: short(p) for k, p in part["question_types"].items()}
        return found

    return {source: short(part) for source, part in report["sources"].items()}


def named_parts(report: dict) -> Iterator[tuple[str, dict]]:
    """Every part with its name as a table shows it: all, sources, question types below them."""
    if len(report["sources"]) > 1:
        yield "all", report["overall"]
    for source, part in report["sources"].items():
        yield source, part
        for name, kind in part.get("question_types", {}).items():
            yield f"  {name}", kind
