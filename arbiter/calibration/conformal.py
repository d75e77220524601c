"""Split conformal prediction with the LAC score (Sadinle, Lei and Wasserman, 2019).

A candidate's score is 1 - p. The set at level alpha holds every candidate whose score is at most
the ceil((n + 1)(1 - alpha))-th smallest score that the right answers had on n calibration samples;
for exchangeable data it contains the answer with probability at least 1 - alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def lac_scores(probabilities: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """The right answers' scores 1 - p, float64 [N], ascending."""
    chosen = np.take_along_axis(probabilities, answer[:, None], axis=-1)[:, 0]
    return np.sort(1 - chosen)


def quantile(scores: Sequence[float], alpha: float) -> float:
    """The score up to which candidates belong to the set; infinite with too few samples.

    Args:
        scores: ascending.
        alpha: in (0, 1).
    """
    # Guards the ceiling against 1 - alpha being a hair above its decimal.
    rank = math.ceil((len(scores) + 1) * (1 - alpha) - 1e-9)
    return scores[rank - 1] if rank <= len(scores) else math.inf


def prediction_set(probabilities: np.ndarray, threshold: float) -> list[int]:
    """Indices of the candidates within the threshold, most probable first; at least the first.

    Args:
        probabilities: float64 [K].
        threshold: from `quantile`.
    """
    order = np.argsort(-probabilities, kind="stable")
    chosen = [int(k) for k in order if 1 - probabilities[k] <= threshold]
    # An empty set would claim that no candidate is right. Adding one never lowers coverage.
    return chosen or [int(order[0])]
