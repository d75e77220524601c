"""Temperature scaling (Guo et al., 2017): one number that makes confidences honest."""

from __future__ import annotations

import numpy as np

LOWEST, HIGHEST = 0.05, 20.0
FEW_SAMPLES = 50
"""With fewer, a temperature is uncertain by a fifth at best: a decision between two tells at most
0.44 about the logarithm of T (Fisher's information), and 1 / sqrt(50 * 0.44) is 0.21."""

_PRIOR = 0.5


def fit_temperature(logits: np.ndarray, mask: np.ndarray, answer: np.ndarray) -> float:
    """The most probable temperature within [0.05, 20], under a prior that a few samples outweigh.

    Maximum likelihood alone runs to a bound where the samples happen to be all right, as a few
    often are. So b = 1 / T has a weak Gamma prior: its density sqrt(b e^(-b)) is highest at 1, and
    the logarithm of T has a standard deviation of 0.97 under it.

    The negative logarithm of the posterior is convex in b; its derivative, the sum over samples of
    sum_k p_k z_k - z_answer, plus (1 - 1 / b) / 2, grows with b, so bisection finds its only root.

    Args:
        logits: float [N, K].
        mask: bool [N, K], true for real candidates.
        answer: int [N].
    """
    scores = np.where(mask, logits.astype(np.float64), 0)
    chosen = np.take_along_axis(scores, answer[:, None], axis=-1)[:, 0]

    def slope(log_temperature: float) -> float:
        scaled = np.where(mask, scores * np.exp(-log_temperature), -np.inf)
        weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        excess = (weights * scores).sum(axis=-1) - chosen
        return float(excess.sum() + _PRIOR * (1 - np.exp(log_temperature)))

    # In terms of log T the slope falls: hotter means a smaller expected score.
    low, high = np.log(LOWEST), np.log(HIGHEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return float(np.clip(np.exp((low + high) / 2), LOWEST, HIGHEST))
