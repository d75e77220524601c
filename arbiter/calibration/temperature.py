"""Temperature scaling (Guo et al., 2017): one number that makes confidences honest."""

from __future__ import annotations

import numpy as np

_LOWEST, _HIGHEST = np.log(0.05), np.log(20.0)


def fit_temperature(logits: np.ndarray, mask: np.ndarray, answer: np.ndarray) -> float:
    """The temperature of maximum likelihood, within [0.05, 20].

    The negative log-likelihood is convex in b = 1 / T; its derivative, the mean over samples of
    sum_k p_k z_k - z_answer, grows with b, so bisection finds its only root.

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
        return float(((weights * scores).sum(axis=-1) - chosen).mean())

    # In terms of log T the slope falls: hotter means a smaller expected score.
    low, high = _LOWEST, _HIGHEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return float(np.exp((low + high) / 2))
