"""Split conformal prediction sets over candidate answers.

A score says how strange a candidate would be as the answer. The set at level alpha holds every
candidate whose score is at most the ceil((n + 1)(1 - alpha))-th smallest score that the right
answers had on n calibration samples. For exchangeable samples and continuous scores it contains the
answer with probability between 1 - alpha and 1 - alpha + 1 / (n + 1), whatever the model is worth.

Shape letters: N samples, K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arbiter.calibration.exact import quantile_rank
from arbiter.config import option

METHODS = ("lac", "aps", "raps")
EMPTY_SETS = ("top1", "allow", "escalate")


@dataclass
class RapsConfig:
    """Regularisation of RAPS: what a candidate's score gains for each rank beyond the first few.

    The paper's ImageNet sets pay from the sixth rank on. Decisions have a handful of candidates, so
    here the third is the first to pay.
    """

    k_reg: int = option(2, help="Ranks that cost nothing.", low=0)
    penalty: float = option(0.01, help="Added for each rank beyond k_reg (lambda).", low=0)


def scores(
    method: str,
    probabilities_NK: np.ndarray,
    mask_NK: np.ndarray,
    uniform_N: np.ndarray,
    raps: RapsConfig | None = None,
) -> np.ndarray:
    """Each candidate's nonconformity score, float64 [N, K]; infinite where padded.

    - `lac`: 1 - p (Sadinle, Lei and Wasserman, 2019). Smallest sets on average; not randomised.
    - `aps`: mass of the more probable candidates + u p (Romano, Sesia and Candes, 2020). Sets adapt
      to how hard a question is. u makes the score uniform on [0, 1] under honest probabilities.
    - `raps`: that + penalty (rank - k_reg)+ (Angelopoulos et al., 2021). Fewer large sets.

    Candidates of equal probability get equal scores, for u times the mass that they share, which
    keeps the score uniform: so the order of candidates has no influence.

    Args:
        method: one of `METHODS`.
        probabilities_NK: rows sum to 1.
        mask_NK: true where a candidate is real.
        uniform_N: one number in [0, 1) a sample, the same whenever the sample comes; `lac` reads
            none of it.
        raps: of `raps` only; its defaults if None.
    """
    p_NK = np.where(mask_NK, probabilities_NK, 0).astype(np.float64)
    if method == "lac":
        return np.where(mask_NK, 1 - p_NK, np.inf)
    order_NK = np.argsort(-p_NK, axis=-1, kind="stable")
    sorted_NK = np.take_along_axis(p_NK, order_NK, axis=-1)
    first_NK, last_NK = _ties(sorted_NK)
    total_NK = np.concatenate([np.zeros((len(p_NK), 1)), np.cumsum(sorted_NK, axis=-1)], axis=-1)
    above_NK = np.take_along_axis(total_NK, first_NK, axis=-1)
    tied_NK = np.take_along_axis(total_NK, last_NK + 1, axis=-1) - above_NK
    values_NK = above_NK + np.asarray(uniform_N, np.float64)[:, None] * tied_NK
    if method == "raps":
        raps = raps or RapsConfig()
        values_NK = values_NK + raps.penalty * np.maximum(first_NK + 1 - raps.k_reg, 0)
    elif method != "aps":
        raise ValueError(f"method {method!r}: there are {', '.join(METHODS)}")
    scores_NK = np.empty_like(p_NK)
    np.put_along_axis(scores_NK, order_NK, values_NK, axis=-1)
    return np.where(mask_NK, scores_NK, np.inf)


def _ties(sorted_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last place of each place's run of equal values, int64 [N, K] each."""
    places = np.broadcast_to(np.arange(sorted_NK.shape[1]), sorted_NK.shape)
    changes = sorted_NK[:, 1:] != sorted_NK[:, :-1]
    edge = np.ones((len(sorted_NK), 1), bool)
    starts, ends = np.concatenate([edge, changes], 1), np.concatenate([changes, edge], 1)
    first = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    beyond = sorted_NK.shape[1] - 1
    last = np.minimum.accumulate(np.where(ends, places, beyond)[:, ::-1], axis=1)[:, ::-1]
    return first, last


def answer_scores(scores_NK: np.ndarray, answer_N: np.ndarray) -> np.ndarray:
    """The right answers' scores, float64 [N], ascending: what `quantile` reads."""
    return np.sort(np.take_along_axis(scores_NK, answer_N[:, None], axis=-1)[:, 0])


def quantile(ascending_scores: Sequence[float], alpha: float) -> float:
    """The score up to which candidates belong to the set.

    Args:
        ascending_scores: of the right answers on the calibration samples.
        alpha: error level, in (0, 1).

    Returns:
        Infinity with fewer than `samples_needed(alpha)` scores: the set is all candidates.
    """
    rank = quantile_rank(len(ascending_scores), alpha)
    return float(ascending_scores[rank - 1]) if rank <= len(ascending_scores) else math.inf


def quantiles_by_source(
    ascending_scores: Mapping[str, Sequence[float]], sources: Sequence[str], alpha: float
) -> np.ndarray:
    """Each sample's own threshold, float64 [N] (Mondrian conformal prediction; Vovk, 2003).

    The guarantee then holds within each source. A source without calibration samples has an
    infinite one.

    Args:
        ascending_scores: of the right answers, by source.
        sources: of the N samples.
    """
    found = {name: quantile(ascending_scores.get(name, ()), alpha) for name in set(sources)}
    return np.array([found[name] for name in sources])


def samples_needed(alpha: float) -> int:
    """The fewest calibration samples with which a set at this level can leave anything out."""
    # Bounded beyond any split: the reciprocal of the smallest numbers is infinite.
    return math.ceil(1 / max(alpha, 1e-12) - 1e-9) - 1


def prediction_sets(scores_NK: np.ndarray, threshold: float | np.ndarray) -> np.ndarray:
    """Which candidates are in the set, bool [N, K]; sets may be empty.

    Args:
        scores_NK: infinite where padded.
        threshold: one for all samples, or one for each [N].
    """
    threshold = np.asarray(threshold, np.float64)
    within = scores_NK <= (threshold[:, None] if threshold.ndim else threshold)
    return within & np.isfinite(scores_NK)


def fill_empty(sets_NK: np.ndarray, probabilities_NK: np.ndarray, policy: str) -> np.ndarray:
    """The sets under a policy for empty ones, bool [N, K].

    `top1` puts the most probable candidate in, which can only add coverage. `allow` and `escalate`
    leave them empty; with `escalate`, whoever decides also asks someone slower.
    """
    if policy not in EMPTY_SETS:
        raise ValueError(f"policy {policy!r}: there are {', '.join(EMPTY_SETS)}")
    if policy != "top1":
        return sets_NK
    filled = sets_NK.copy()
    empty = np.flatnonzero(~sets_NK.any(axis=-1))
    filled[empty, probabilities_NK[empty].argmax(axis=-1)] = True
    return filled
