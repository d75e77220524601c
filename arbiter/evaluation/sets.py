"""Prediction sets of samples whose answers are known, as they are deployed, at any level.

Shape letters: N samples, K candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from arbiter.calibration.calibration import Calibration, Sets
from arbiter.calibration.conformal import METHODS, samples_needed
from arbiter.calibration.deployed import Outcome
from arbiter.calibration.exact import coverage_interval, same_shares


class DeployedSets:
    """The sets of N samples that took a path.

    Args:
        calibration: what they are made by.
        outcome: of the path.
        path: its name.
        sources: of the N samples.
        per_source: calibrate each within its own source.
    """

    def __init__(
        self,
        calibration: Calibration,
        outcome: Outcome,
        path: str,
        sources: Sequence[str],
        per_source: bool,
    ):
        self._calibration, self._outcome, self._path = calibration, outcome, path
        self._sources = sources if per_source else None
        self._evaluated = Counter(sources)
        self._at = lru_cache(maxsize=None)(self._make)

    def _make(self, method: str, alpha: float) -> Sets:
        return self._calibration.prediction_sets(
            self._outcome, self._path, method, alpha, self._sources
        )

    def measure(self, method: str, alpha: float, rows: np.ndarray, answer_N: np.ndarray) -> dict:
        """Coverage and size of the sets of some rows.

        Returns:
            `coverage` and `mean_set_size` of the sets as they are deployed; `empty`, the share of
            empty ones, and `unfilled_coverage` before any of them was filled, which is what the
            guarantee bounds on both sides; `full`, the share of samples with too few calibration
            samples for this level, whose sets hold every candidate.
        """
        sets = self._at(method, alpha)
        deployed, unfilled = sets.deployed[rows], sets.unfilled[rows]
        answer = answer_N[rows][:, None]
        return {
            "coverage": float(np.take_along_axis(deployed, answer, axis=-1).mean()),
            "mean_set_size": float(deployed.sum(axis=-1).mean()),
            "unfilled_coverage": float(np.take_along_axis(unfilled, answer, axis=-1).mean()),
            "empty": float((~unfilled.any(axis=-1)).mean()),
            "full": float(sets.too_few[rows].mean()),
        }

    def _counts(self) -> dict[str, int]:
        """Calibration samples by source."""
        scores = self._calibration.paths[self._path].scores[METHODS[0]]
        return {name: len(part) for name, part in scores.items()}

    def guarantee(
        self, alpha: float, count: int, sources: list[str] | None
    ) -> tuple[float, float] | None:
        """Where `unfilled_coverage` lies with probability 0.99 if all samples are alike.

        None where nothing is promised: for a part of a source, for sources that were not
        calibrated on, and for sources that were calibrated on together unless all of them are
        there, in the same shares (`same_shares`, at 1%).

        Args:
            count: samples whose coverage it is.
            sources: all sources that they are from, or None for less than whole sources.
        """
        counts = self._counts()
        if sources is None:
            return None
        if self._sources is None:
            whole = set(sources) == set(counts) and self._alike()
            calibrated = sum(counts.values()) if whole else 0
        else:
            calibrated = counts.get(sources[0], 0) if len(sources) == 1 else 0
        return coverage_interval(calibrated, count, alpha) if calibrated else None

    def _alike(self) -> bool:
        """Whether the samples come from the sources calibrated on, in the same shares."""
        known, evaluated = self._counts(), self._evaluated
        if known.keys() != evaluated.keys():
            return False
        return same_shares(list(known.values()), [evaluated[name] for name in known])

    def notes(self, alphas: Sequence[float]) -> list[str]:
        """A line for each level that has too few calibration samples, for a temperature from too
        few, for sets without a promise over all sources, and for a gate kept shut.
        """
        counts, lines = self._counts(), list(self._calibration.notes)
        groups = {"": sum(counts.values())}
        if self._sources is not None:
            groups = {f"{name}: ": counts.get(name, 0) for name in self._evaluated}
        for name, count in groups.items():
            for alpha in alphas:
                needed = samples_needed(alpha)
                if count < needed:
                    lines.append(
                        f"{name}level {alpha:g} needs {needed} calibration samples, there are "
                        f"{count}; its sets hold all candidates"
                    )
        if self._sources is None and not self._alike():
            lines.append(
                "no coverage is promised: sets were calibrated on other sources, or other shares "
                "of them"
            )
        gate = self._calibration.gate
        if gate.gate is None:
            lines.append(f"the gate for early exit is shut: {gate.reason}")
        return lines
