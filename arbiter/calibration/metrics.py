"""What predictions are worth. All functions take numpy arrays over N samples and K candidates."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def log_losses(probabilities: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """-log p(answer) of each sample, float64 [N], in nats."""
    chosen = np.take_along_axis(probabilities, answer[:, None], axis=-1)[:, 0]
    return -np.log(np.maximum(chosen, np.finfo(np.float64).tiny))


def negative_log_likelihood(probabilities: np.ndarray, answer: np.ndarray) -> float:
    """Mean -log p(answer), in nats."""
    return float(log_losses(probabilities, answer).mean())


def squared_losses(probabilities: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Squared distance of each sample's probabilities from its answer, float64 [N], in [0, 2]."""
    right = np.zeros_like(probabilities)
    np.put_along_axis(right, answer[:, None], 1, axis=-1)
    return ((probabilities - right) ** 2).sum(axis=-1)


def brier_score(probabilities: np.ndarray, answer: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the answer (Brier, 1950), in [0, 2]."""
    return float(squared_losses(probabilities, answer).mean())


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

    The top-1 confidences are sorted and cut into `bins` parts of nearly equal size. A cut that
    would part equal confidences is made after them, so the order of samples has no influence; there
    are fewer bins where there are fewer confidences.
    """
    confidence = probabilities.max(axis=-1)
    correct = probabilities.argmax(axis=-1) == answer
    order = np.argsort(confidence, kind="stable")
    ascending = confidence[order]
    last = [part[-1] for part in np.array_split(ascending, bins) if len(part)]
    cuts = np.unique(np.searchsorted(ascending, last, side="right"))[:-1]
    return [
        Bin(float(confidence[part].mean()), float(correct[part].mean()), len(part))
        for part in np.split(order, cuts)
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


def mean_interval(values: np.ndarray, z: float = 1.959964) -> tuple[float, float]:
    """Normal interval of a mean; 95% by default. Of one value, it is that value."""
    error = z * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return (float(values.mean() - error), float(values.mean() + error))


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float], samples: int, draws: int = 200, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of a statistic over resampled samples (Efron, 1979); always the same.

    Args:
        statistic: given the drawn samples' indices, int64 [samples].
        samples: how many there are.
    """
    rng = np.random.default_rng(0)
    values = [statistic(rng.integers(0, samples, samples)) for _ in range(draws)]
    low, high = np.quantile(values, ((1 - level) / 2, (1 + level) / 2))
    return (float(low), float(high))


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Shannon entropy of each row, in nats."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1))
    return -(probabilities * logs).sum(axis=-1)


def summarize(probabilities: np.ndarray, answer: np.ndarray) -> dict:
    """n, accuracy, nll (nats), brier and ece, the first three with 95% intervals."""
    right = int((probabilities.argmax(axis=-1) == answer).sum())
    return {
        "n": len(answer),
        "accuracy": right / len(answer),
        "accuracy_interval": list(wilson_interval(right, len(answer))),
        "nll": negative_log_likelihood(probabilities, answer),
        "nll_interval": list(mean_interval(log_losses(probabilities, answer))),
        "brier": brier_score(probabilities, answer),
        "brier_interval": list(mean_interval(squared_losses(probabilities, answer))),
        "ece": expected_calibration_error(probabilities, answer),
    }
