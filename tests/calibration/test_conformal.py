import math

import numpy as np
import pytest
from scipy.stats import betabinom

from arbiter.calibration import conformal
from arbiter.calibration.conformal import METHODS, RapsConfig
from arbiter.calibration.exact import coverage_interval

ALPHAS = (0.05, 0.1, 0.2)


def problem(n: int, rng: np.random.Generator, sharpness=1.7):
    """N questions, their answers, and the probabilities of a model that is wrong about both.

    Rows have two to five candidates; answers are drawn from probabilities the model does not have.
    """
    logits = rng.normal(size=(n, 5)) * 1.5
    mask = np.arange(5) < rng.integers(2, 6, size=n)[:, None]
    answer = np.where(mask, logits + rng.gumbel(size=logits.shape), -np.inf).argmax(1)
    believed = np.where(mask, (logits + rng.normal(size=logits.shape)) * sharpness, -np.inf)
    weights = np.exp(believed - believed.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True), mask, answer


def everything(p: np.ndarray) -> np.ndarray:
    return np.ones(p.shape, bool)


def test_scores_by_hand():
    p, u = np.array([[0.3, 0.5, 0.2]]), np.array([0.4])
    found = {m: conformal.scores(m, p, everything(p), u, RapsConfig(1, 0.1))[0] for m in METHODS}
    np.testing.assert_allclose(found["lac"], [0.7, 0.5, 0.8])
    np.testing.assert_allclose(found["aps"], [0.5 + 0.4 * 0.3, 0.4 * 0.5, 0.8 + 0.4 * 0.2])
    np.testing.assert_allclose(found["raps"], [0.62 + 0.1, 0.2, 0.88 + 0.2])


def test_aps_sets_are_those_of_the_paper():
    """Romano, Sesia and Candes (2020), equations 4 and 5, candidate by candidate."""
    rng = np.random.default_rng(0)
    p, mask, _ = problem(40, rng)
    u = rng.random(40)
    found = conformal.scores("aps", p, mask, u)
    for tau in np.linspace(0.013, 0.987, 40):
        sets = conformal.prediction_sets(found, tau)
        for row in range(40):
            ranked = sorted(np.flatnonzero(mask[row]), key=lambda k: -p[row, k])
            count = next(
                c for c in range(1, len(ranked) + 1) if p[row, ranked[:c]].sum() >= tau - 1e-12
            )
            excess = (p[row, ranked[:count]].sum() - tau) / p[row, ranked[count - 1]]
            # The paper drops the last one when its uniform number is at most the excess; ours is
            # one minus that number.
            expected = ranked[: count - 1] if 1 - u[row] <= excess else ranked[:count]
            assert set(np.flatnonzero(sets[row])) == set(expected)


def test_aps_of_honest_probabilities_is_uniform_with_ties_as_well():
    rng = np.random.default_rng(1)
    p = np.tile([0.4, 0.2, 0.2, 0.2, 0.0], (40_000, 1))
    answer = rng.choice(5, size=len(p), p=p[0])
    found = conformal.answer_scores(
        conformal.scores("aps", p, everything(p), rng.random(len(p))), answer
    )
    # Kolmogorov's distance; beyond 1.95 / sqrt(n) has probability 0.001.
    distance = np.abs(found - np.arange(1, len(p) + 1) / len(p)).max()
    assert distance < 1.95 / math.sqrt(len(p))


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_candidates_has_no_influence(method):
    rng = np.random.default_rng(2)
    p = np.array([[0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4]])
    u, order = rng.random(3), np.array([2, 0, 3, 1])
    there = conformal.scores(method, p, everything(p), u)
    back = conformal.scores(method, p[:, order], everything(p), u)
    np.testing.assert_array_equal(there[:, order], back)


@pytest.mark.parametrize("method", METHODS)
def test_padding_and_neighbours_have_no_influence(method):
    rng = np.random.default_rng(3)
    p, mask, _ = problem(30, rng)
    u = rng.random(30)
    together = conformal.scores(method, p, mask, u)
    assert np.isinf(together[~mask]).all()
    for row in range(30):
        real = mask[row]
        alone = conformal.scores(method, p[row : row + 1, real], everything(p[:1, real]), u[[row]])
        np.testing.assert_array_equal(together[row, real], alone[0])
    full = conformal.prediction_sets(together, math.inf)
    np.testing.assert_array_equal(full, mask)


def test_the_quantile_is_the_ranked_score():
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert conformal.quantile(scores, 0.1) == 0.9  # ceil(10 * 0.9) = 9th
    assert conformal.quantile(scores, 0.2) == 0.8
    assert conformal.quantile(scores, 0.5) == 0.5
    assert conformal.quantile(scores, 0.05) == math.inf  # ceil(10 * 0.95) = 10th of 9


@pytest.mark.parametrize("alpha", [*ALPHAS, 0.01, 1 / 3])
def test_too_few_samples_are_known_as_such(alpha):
    needed = conformal.samples_needed(alpha)
    assert conformal.quantile([0.5] * needed, alpha) == 0.5
    assert conformal.quantile([0.5] * (needed - 1), alpha) == math.inf


def test_the_smallest_level_needs_more_than_there_can_be():
    assert conformal.samples_needed(1e-320) > 1e9


def test_empty_sets_follow_the_policy():
    p = np.array([[0.2, 0.5, 0.3], [0.6, 0.4, 0.0]])
    sets = np.array([[False] * 3, [True, False, False]])
    filled = conformal.fill_empty(sets, p, "top1")
    assert filled.tolist() == [[False, True, False], [True, False, False]]
    for policy in ("allow", "escalate"):
        np.testing.assert_array_equal(conformal.fill_empty(sets, p, policy), sets)
    with pytest.raises(ValueError, match="top1, allow, escalate"):
        conformal.fill_empty(sets, p, "drop")


def covered(method: str, alpha: float, calibrated, tested, rng) -> int:
    """How many test samples' answers are in their sets; no filling of empty ones."""
    raps = RapsConfig(1, 0.05)
    (p, mask, answer), (q, mask_q, answer_q) = calibrated, tested
    known = conformal.answer_scores(
        conformal.scores(method, p, mask, rng.random(len(p)), raps), answer
    )
    found = conformal.scores(method, q, mask_q, rng.random(len(q)), raps)
    sets = conformal.prediction_sets(found, conformal.quantile(known, alpha))
    return int(sets[np.arange(len(q)), answer_q].sum())


def interval_of_sum(n: int, m: int, alpha: float, splits: int) -> tuple[int, int]:
    """The exact 99% interval of what `splits` independent splits cover together.

    The tests below look at 27 of them, so one in four seeds leaves one outside.
    """
    rank = math.ceil(round((n + 1) * (1 - alpha), 6))
    mass = betabinom(m, rank, n + 1 - rank).pmf(np.arange(m + 1))
    size = m * splits + 1
    law = np.cumsum(np.fft.irfft(np.fft.rfft(mass, size) ** splits, size))
    return int(np.searchsorted(law, 0.005)), int(np.searchsorted(law, 0.995))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("method", METHODS)
def test_coverage_over_200_random_splits_is_as_guaranteed(method, alpha):
    n, m, splits = 150, 100, 200
    rng = np.random.default_rng(4)
    counts = []
    for _ in range(splits):
        pool, mask, answer = problem(n + m, rng)
        place = rng.permutation(n + m)
        parts = [(pool[r], mask[r], answer[r]) for r in (place[:n], place[n:])]
        counts.append(covered(method, alpha, *parts, rng))
    low, high = interval_of_sum(n, m, alpha, splits)
    assert low <= sum(counts) <= high
    # Each split lies outside its own 99% interval with probability 0.01; 8 of 200 do with 0.001.
    low, high = coverage_interval(n, m, alpha)
    assert sum(not low <= count / m <= high for count in counts) < 8


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("method", METHODS)
def test_mondrian_coverage_holds_within_each_source(method, alpha):
    n, m, splits, rng = 80, 60, 200, np.random.default_rng(6)
    counts, pooled = np.zeros(2, int), np.zeros(2, int)
    for _ in range(splits):
        # One source's model is far too sure, the other's far from sure enough.
        data = {"sure": problem(n + m, rng, 4.0), "unsure": problem(n + m, rng, 0.3)}
        found = {
            k: conformal.scores(method, p, w, rng.random(n + m)) for k, (p, w, _) in data.items()
        }
        known = {k: conformal.answer_scores(found[k][:n], data[k][2][:n]) for k in data}
        sources = ["sure"] * m + ["unsure"] * m
        held = np.concatenate([found["sure"][n:], found["unsure"][n:]])
        answer = np.concatenate([data["sure"][2][n:], data["unsure"][2][n:]])
        own = conformal.quantiles_by_source(known, sources, alpha)
        together = conformal.quantile(np.sort(np.concatenate(list(known.values()))), alpha)
        for total, threshold in ((counts, own), (pooled, together)):
            sets = conformal.prediction_sets(held, threshold)
            total += sets[np.arange(2 * m), answer].reshape(2, m).sum(axis=1)
    low, high = interval_of_sum(n, m, alpha, splits)
    assert (low <= counts).all() and (counts <= high).all()
    # One threshold for both sources does not do that.
    assert not ((low <= pooled) & (pooled <= high)).all()


def test_a_source_without_calibration_samples_gets_all_candidates():
    found = conformal.quantiles_by_source({"known": [0.1] * 99}, ["known", "new"], 0.1)
    assert found.tolist() == [0.1, math.inf]
