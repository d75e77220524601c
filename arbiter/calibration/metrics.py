"""What predictions are worth. All functions take numpy arrays over N samples and K candidates."""

from __future__ import annotations

import math

import numpy as np

ECE_BINS = 15


def accuracy(probabilities: np.ndarray, answer: np.ndarray) -> float:
    """Share of samples whose most probable candidate is the answer; ties go to the first."""
    return float((probabilities.argmax(axis=-1) == answer).mean())


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson, 1927); 95% by default."""
    if trials == 0:
        return (0.0, 1.0)
    share, z2 = successes / trials, z * z
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    margin = (
        z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    )
    return (max(0.0, centre - margin), min(1.0, centre + margin))


def negative_log_likelihood(probabilities: np.ndarray, answer: np.ndarray) -> float:
    """Mean -log p(answer), in nats."""
    chosen = np.take_along_axis(probabilities, answer[:, None], axis=-1)[:, 0]
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def expected_calibration_error(
    probabilities: np.ndarray, answer: np.ndarray, bins: int = ECE_BINS
) -> float:
    """Mean |accuracy - confidence| over equal-mass bins of confidence (Nguyen and O'Connor, 2015).

    The top-1 confidences are sorted and cut into `bins` parts of nearly equal size.
    """
    confidence = probabilities.max(axis=-1)
    correct = probabilities.argmax(axis=-1) == answer
    order = np.argsort(confidence, kind="stable")
    gaps = [
        abs(confidence[part].mean() - correct[part].mean()) * len(part)
        for part in np.array_split(order, bins)
        if len(part)
    ]
    return float(sum(gaps) / len(answer))


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Shannon entropy of each row, in nats."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1))
    return -(probabilities * logs).sum(axis=-1)


def summarize(probabilities: np.ndarray, answer: np.ndarray) -> dict:
    """n, accuracy with its 95% interval, nll (nats) and ece of samples whose answer is known."""
    right = int((probabilities.argmax(axis=-1) == answer).sum())
    return {
        "n": len(answer),
        "accuracy": right / len(answer),
        "accuracy_interval": list(wilson_interval(right, len(answer))),
        "nll": negative_log_likelihood(probabilities, answer),
        "ece": expected_calibration_error(probabilities, answer),
    }
