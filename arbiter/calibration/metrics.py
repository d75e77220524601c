"""What predictions are worth. All functions take numpy arrays over N samples and K candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def brier_score(probabilities: np.ndarray, answer: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the answer (Brier, 1950), in [0, 2]."""
    right = np.zeros_like(probabilities)
    np.put_along_axis(right, answer[:, None], 1, axis=-1)
    return float(((probabilities - right) ** 2).sum(axis=-1).mean())


@dataclass(frozen=True)
class Bin:
    """Predictions of about equal confidence.

    Attributes:
        confidence: mean probability of the choices.
        accuracy: share of right ones.
        n: how many.
    """

    confidence: float
    accuracy: float
    n: int


def reliability_bins(
    probabilities: np.ndarray, answer: np.ndarray, bins: int = ECE_BINS
) -> list[Bin]:
    """Equal-mass bins of confidence (Nguyen and O'Connor, 2015), least confident first.

    The top-1 confidences are sorted and cut into `bins` parts of nearly equal size; fewer where
    there are fewer samples.
    """
    confidence = probabilities.max(axis=-1)
    correct = probabilities.argmax(axis=-1) == answer
    order = np.argsort(confidence, kind="stable")
    return [
        Bin(float(confidence[part].mean()), float(correct[part].mean()), len(part))
        for part in np.array_split(order, bins)
        if len(part)
    ]


def expected_calibration_error(
    probabilities: np.ndarray, answer: np.ndarray, bins: int = ECE_BINS
) -> float:
    """Mean |accuracy - confidence| over equal-mass bins of confidence."""
    parts = reliability_bins(probabilities, answer, bins)
    return sum(abs(b.confidence - b.accuracy) * b.n for b in parts) / len(answer)


def risk_coverage(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Share of wrong decisions among the 1, 2, ..., N most confident, float64 [N].

    Among equally confident ones it is the mean over their orders, so order has no influence.
    """
    _, group, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, weights=~right) / size
    return np.cumsum(np.repeat(wrong, size)) / np.arange(1, len(confidence) + 1)


def aurc(confidence: np.ndarray, right: np.ndarray) -> float:
    """Area under the risk-coverage curve: mean over all coverages (Geifman et al., 2019)."""
    return float(risk_coverage(confidence, right).mean())


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Shannon entropy of each row, in nats."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1))
    return -(probabilities * logs).sum(axis=-1)


def summarize(probabilities: np.ndarray, answer: np.ndarray) -> dict:
    """n, accuracy with its 95% interval, nll (nats), brier and ece; every answer is known."""
    right = int((probabilities.argmax(axis=-1) == answer).sum())
    return {
        "n": len(answer),
        "accuracy": right / len(answer),
        "accuracy_interval": list(wilson_interval(right, len(answer))),
        "nll": negative_log_likelihood(probabilities, answer),
        "brier": brier_score(probabilities, answer),
        "ece": expected_calibration_error(probabilities, answer),
    }
