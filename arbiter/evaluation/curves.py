"""Curves for plots: reliability, and risk against coverage."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from arbiter.calibration.metrics import reliability_bins, risk_coverage

_POINTS = 200


def curves(
    probabilities: np.ndarray, uncalibrated: np.ndarray | None, answer: np.ndarray
) -> dict[str, object]:
    """As JSON.

    Args:
        probabilities: float64 [N, K], as deployed.
        uncalibrated: the same at temperature 1; None without calibration.
        answer: int [N].

    Returns:
        reliability: `before` and `after` calibration, the bins; `after` alone is what there is of
            an uncalibrated model's probabilities.
        risk_coverage: [coverage, risk] at up to 200 coverages, when the least confident decisions
            are left to someone else.
    """
    risk = risk_coverage(probabilities.max(axis=-1), probabilities.argmax(axis=-1) == answer)
    points = np.unique(np.linspace(1, len(risk), _POINTS).round().astype(int))
    before = probabilities if uncalibrated is None else uncalibrated
    return {
        "reliability": {
            "before": [asdict(b) for b in reliability_bins(before, answer)],
            "after": [asdict(b) for b in reliability_bins(probabilities, answer)],
        },
        "risk_coverage": [[n / len(risk), float(risk[n - 1])] for n in points.tolist()],
    }
