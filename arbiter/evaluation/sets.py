"""Prediction sets of samples whose answers are known, at any level.

Shape letters: N samples, K candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from arbiter.calibration.conformal import (
    fill_empty,
    prediction_sets,
    quantile,
    quantiles_by_source,
    samples_needed,
)
from arbiter.calibration.exact import coverage_interval

BySource = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class PredictionSets:
    """Scores of N samples, and of the calibration samples that they are compared with.

    Attributes:
        scores: method -> float64 [N, K], infinite where padded.
        calibrated: method -> source -> ascending scores of the right answers.
        probabilities: float64 [N, K], from which an empty set may be filled.
        sources: of the N samples.
        per_source: compare with calibration samples of the same source alone.
        empty_set: what becomes of an empty set; see `conformal.fill_empty`.
    """

    scores: Mapping[str, np.ndarray]
    calibrated: Mapping[str, BySource]
    probabilities: np.ndarray
    sources: Sequence[str]
    per_source: bool
    empty_set: str

    @property
    def methods(self) -> tuple[str, ...]:
        """What sets can be made by, the default first."""
        return tuple(self.scores)

    @cached_property
    def _pooled(self) -> dict[str, np.ndarray]:
        return {
            method: np.sort(np.concatenate([np.asarray(part, float) for part in parts.values()]))
            for method, parts in self.calibrated.items()
        }

    def measure(self, method: str, alpha: float, rows: np.ndarray, answer_N: np.ndarray) -> dict:
        """Coverage and size of the sets of some rows.

        Returns:
            `coverage` and `mean_set_size` of the sets as they are deployed; `empty`, the share of
            empty ones, and `unfilled_coverage` before any was filled, which is what the guarantee
            bounds on both sides; `full`, the share of samples with too few calibration samples for
            this level, whose sets hold every candidate.
        """
        if self.per_source:
            here = [self.sources[row] for row in rows]
            threshold = quantiles_by_source(self.calibrated[method], here, alpha)
        else:
            threshold = np.full(len(rows), quantile(self._pooled[method], alpha))
        sets = prediction_sets(self.scores[method][rows], threshold)
        filled = fill_empty(sets, self.probabilities[rows], self.empty_set)
        answer = answer_N[rows][:, None]
        return {
            "coverage": float(np.take_along_axis(filled, answer, axis=-1).mean()),
            "mean_set_size": float(filled.sum(axis=-1).mean()),
            "unfilled_coverage": float(np.take_along_axis(sets, answer, axis=-1).mean()),
            "empty": float((~sets.any(axis=-1)).mean()),
            "full": float(np.isinf(threshold).mean()),
        }

    def guarantee(
        self, method: str, alpha: float, count: int, sources: list[str] | None
    ) -> tuple[float, float] | None:
        """Where `unfilled_coverage` lies with probability 0.99 if all samples are alike.

        None where nothing is promised: for a part of a source, for sources that were not
        calibrated on, and for some of the sources that were calibrated on together.
        """
        parts = self.calibrated[method]
        if sources is None or (self.per_source and len(sources) > 1):
            return None
        if self.per_source:
            calibrated = len(parts.get(sources[0], ()))
        elif set(sources) == set(parts):
            calibrated = len(self._pooled[method])
        else:
            return None
        return coverage_interval(calibrated, count, alpha) if calibrated else None

    def shortfalls(self, alphas: Sequence[float]) -> list[str]:
        """A line for each level that has too few calibration samples."""
        parts, lines = self.calibrated[self.methods[0]], []
        counts = {"": sum(map(len, parts.values()))}
        if self.per_source:
            counts = {f"{n}: ": len(parts.get(n, ())) for n in dict.fromkeys(self.sources)}
        for name, count in counts.items():
            for alpha in alphas:
                needed = samples_needed(alpha)
                if count < needed:
                    lines.append(
                        f"{name}level {alpha:g} needs {needed} calibration samples, there are "
                        f"{count}; its sets hold all candidates"
                    )
        return lines
