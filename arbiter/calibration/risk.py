"""How sure a decision must be for the decisions that stand to be wrong seldom enough.

Decisions whose confidence is below a threshold are escalated. The thresholds that are tried are
fixed: 1 - 2^(-i/2) for i = 24 down to 0, that is from 0.99976 to 0, where nothing is escalated. A
sequential test corrects for the search, as in Learn then Test (Angelopoulos, Bates, Candes, Jordan
and Lei, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arbiter.calibration.exact import fallback_test, p_values, upper_bound


def thresholds() -> np.ndarray:
    """The confidences that are tried, float64 [M], from the strictest to the loosest."""
    return 1 - 2.0 ** (-np.arange(25)[::-1] / 2)


@dataclass(frozen=True)
class RiskThreshold:
    """What a target asks for.

    Attributes:
        threshold: decisions below this confidence are escalated; None when no threshold will do.
        reason: why, in one sentence.
        decided: share of the calibration samples that would be decided, 0 without a threshold.
        risk: share of wrong ones among those; None without a threshold.
        bound: upper bound on that share, one-sided, at the confidence asked for, of this threshold
            alone; None without one.
    """

    threshold: float | None
    reason: str
    decided: float
    risk: float | None
    bound: float | None


@dataclass(frozen=True)
class RiskCounts:
    """Calibration samples that each of `thresholds()` would decide.

    Attributes:
        samples: in the split.
        decided: how many are at least as confident, strictest threshold first.
        wrong: how many of those are wrong.
    """

    samples: int
    decided: tuple[int, ...]
    wrong: tuple[int, ...]

    @classmethod
    def count(cls, confidence_N: np.ndarray, right_N: np.ndarray) -> RiskCounts:
        """From deployed decisions.

        Args:
            confidence_N: probability of the choice.
            right_N: bool, whether the choice is the answer.
        """
        decided_MN = confidence_N >= thresholds()[:, None]
        wrong_MN = decided_MN & ~right_N
        return cls(
            len(confidence_N),
            tuple(decided_MN.sum(axis=1).tolist()),
            tuple(wrong_MN.sum(axis=1).tolist()),
        )

    def threshold_for(self, target: float, confidence: float = 0.95) -> RiskThreshold:
        """The loosest threshold whose decisions are wrong in at most a share `target` of cases.

        With probability `confidence` over calibration splits, no threshold is given whose true
        selective risk exceeds the target.

        Args:
            target: in (0, 1).
        """
        error = 1 - confidence
        passed = fallback_test(p_values(self.wrong, self.decided, target), error)
        claim = f"a risk of at most {target:g} with {confidence:g} confidence"
        if not passed.any():
            # Beyond any split; for the smallest targets there is no such number.
            needed = int(np.ceil(np.log(error / len(passed)) / np.log1p(-max(target, 1e-12))))
            reason = f"no threshold reaches {claim}"
            if self.samples < needed:
                reason += f": {self.samples} calibration samples are fewer than the {needed} needed"
            return RiskThreshold(None, reason, 0.0, None, None)
        best = int(np.flatnonzero(passed)[-1])
        decided, wrong = self.decided[best], self.wrong[best]
        return RiskThreshold(
            threshold=float(thresholds()[best]),
            reason=f"{wrong} of {decided} calibration decisions wrong: {claim}",
            decided=decided / self.samples,
            risk=wrong / decided,
            bound=upper_bound(wrong, decided, confidence),
        )
