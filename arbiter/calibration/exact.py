"""Exact statements about shares: no normal approximation, valid for any number of samples.

Samples count as independent. Questions about one picture are not quite, so for them the intervals
are somewhat narrower than the truth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import bdtr, betaincinv, betaln, chdtrc, gammaln


def upper_bound(failures: int, trials: int, confidence: float = 0.95) -> float:
    """The one-sided upper bound on a failure rate (Clopper and Pearson, 1934).

    The largest rate at which at most `failures` failures still have probability 1 - confidence.
    """
    if failures >= trials:
        return 1.0
    return float(betaincinv(failures + 1, trials - failures, confidence))


def p_values(failures: np.ndarray, trials: np.ndarray, limit: float) -> np.ndarray:
    """P(Binomial(trials, limit) <= failures), of hypotheses that the failure rate exceeds `limit`.

    It is at most 1 - confidence exactly where `upper_bound` is at most `limit`; 1 without trials.
    """
    failures, trials = np.asarray(failures, np.float64), np.asarray(trials, np.int64)
    return np.where(failures >= trials, 1.0, bdtr(np.minimum(failures, trials), trials, limit))


def fallback_test(p_values: np.ndarray, error: float) -> np.ndarray:
    """Which hypotheses of a sequence are rejected, bool [M], with P(any false rejection) <= error.

    The fallback procedure (Wiens, 2003): hypotheses are tested in a fixed order, each at error / M
    and what the one before it did not use up: its level if that one was rejected, nothing if not.
    Unlike plain fixed-sequence testing it survives a first hypothesis with too few samples. The
    order may not depend on the data.
    """
    rejected, level = np.zeros(len(p_values), bool), 0.0
    for place, p_value in enumerate(p_values):
        level += error / len(p_values)
        rejected[place] = p_value <= level
        if not rejected[place]:
            level = 0.0
    return rejected


def coverage_interval(
    calibrated: int, tested: int, alpha: float, level: float = 0.99
) -> tuple[float, float]:
    """Where the coverage of a conformal set on held-out samples lies with probability `level`.

    With n calibration samples and continuous scores, the number covered among m test samples is
    BetaBinomial(m, k, n + 1 - k), k = ceil((n + 1)(1 - alpha)) (Vovk, 2012; Angelopoulos and Bates,
    2021, section 3.2). The interval leaves at most (1 - level) / 2 on either side. With too few
    calibration samples the set is full and covers always: (1, 1).

    Args:
        calibrated: n.
        tested: m.
    """
    rank = quantile_rank(calibrated, alpha)
    if rank > calibrated:
        return (1.0, 1.0)
    a, b, covered = rank, calibrated + 1 - rank, np.arange(tested + 1)
    ways = gammaln(tested + 1) - gammaln(covered + 1) - gammaln(tested - covered + 1)
    mass = np.exp(ways + betaln(covered + a, tested - covered + b) - betaln(a, b))
    below, above = np.cumsum(mass), np.cumsum(mass[::-1])[::-1]
    tail = (1 - level) / 2
    lowest = int(np.argmax(below > tail))
    highest = int(tested - np.argmax(above[::-1] > tail))
    return (lowest / tested, highest / tested)


def same_shares(one: Sequence[int], other: Sequence[int], error: float = 0.01) -> bool:
    """Whether two samples' counts by kind may well come from the same shares.

    Pearson's chi-square test of homogeneity; shares that are the same fail it with probability
    `error`.

    Args:
        one, other: counts of the same kinds in the same order, each above 0 in total.
    """
    counts = np.array([one, other], np.float64)
    counts = counts[:, counts.any(axis=0)]
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    kinds = counts.shape[1]
    return kinds == 1 or bool(chdtrc(kinds - 1, statistic) >= error)


def quantile_rank(samples: int, alpha: float) -> int:
    """ceil((n + 1)(1 - alpha)): which of the n ascending scores bounds the set; n + 1 is none."""
    # Guards the ceiling against 1 - alpha being a hair above its decimal; it is never below 1.
    return max(1, int(np.ceil((samples + 1) * (1 - alpha) - 1e-9)))
