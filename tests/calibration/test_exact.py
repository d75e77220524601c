import math

import numpy as np
import pytest
from scipy.stats import betabinom, chi2_contingency

from arbiter.calibration import exact


def at_most(failures: int, trials: int, rate: float) -> float:
    """P(Binomial(trials, rate) <= failures), term by term."""
    return sum(
        math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(failures + 1)
    )


@pytest.mark.parametrize(("failures", "trials"), [(0, 299), (3, 40), (17, 18), (1, 1810)])
def test_the_upper_bound_solves_its_equation(failures, trials):
    bound = exact.upper_bound(failures, trials, 0.95)
    assert at_most(failures, trials, bound) == pytest.approx(0.05, rel=1e-9)


def test_nothing_is_known_where_all_failed_or_none_was_tried():
    assert exact.upper_bound(5, 5) == 1
    assert exact.upper_bound(0, 0) == 1
    np.testing.assert_array_equal(exact.p_values([5, 0], [5, 0], 0.1), [1, 1])


def test_p_values_are_the_binomial_tail_and_agree_with_the_bound():
    failures, trials = np.array([0, 0, 3, 6, 12]), np.array([298, 299, 400, 2000, 1100])
    found = exact.p_values(failures, trials, 0.01)
    expected = [at_most(int(k), int(n), 0.01) for k, n in zip(failures, trials, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    bounds = [exact.upper_bound(int(k), int(n)) for k, n in zip(failures, trials, strict=True)]
    np.testing.assert_array_equal(found <= 0.05, np.array(bounds) <= 0.01)
    # The rule of three: 299 samples without a failure show 1% at 95%, 298 do not.
    assert list(found[:2] <= 0.05) == [False, True]


def test_the_fallback_procedure_by_hand():
    # Levels: .01; .01 + .01 (kept from the first); .01 (the second kept nothing); .02; .03.
    p_values = np.array([0.01, 0.021, 0.009, 0.02, 0.031])
    expected = [True, False, True, True, False]
    assert exact.fallback_test(p_values, 0.05).tolist() == expected


def test_the_fallback_procedure_keeps_its_error_when_all_is_false():
    # Uniform p-values that move together are its worst case; independent ones are another.
    rng = np.random.default_rng(0)
    together = np.repeat(rng.random((4000, 1)), 12, axis=1)
    for p_values in (together, rng.random((4000, 12))):
        wrong = np.mean([exact.fallback_test(row, 0.05).any() for row in p_values])
        assert wrong <= 0.05


@pytest.mark.parametrize(("n", "m", "alpha"), [(199, 200, 0.1), (1810, 9673, 0.05), (20, 50, 0.2)])
def test_the_coverage_interval_is_that_of_the_beta_binomial(n, m, alpha):
    rank = math.ceil(round((n + 1) * (1 - alpha), 6))
    law = betabinom(m, rank, n + 1 - rank)
    low, high = exact.coverage_interval(n, m, alpha)
    assert (low * m, high * m) == pytest.approx((law.ppf(0.005), law.ppf(0.995)), abs=1e-6)
    inside = law.cdf(round(high * m)) - law.cdf(round(low * m) - 1)
    assert inside >= 0.99


def test_shares_are_told_apart_as_often_as_they_may():
    """Pearson's test by scipy, and how often it parts what is the same."""
    for one, other in (([30, 70], [50, 50]), ([5, 15, 80], [20, 80, 300]), ([0, 3, 4], [0, 9, 1])):
        used = np.array([one, other])[:, np.add(one, other) > 0]
        p_value = chi2_contingency(used, correction=False).pvalue
        assert exact.same_shares(one, other, p_value * 0.99)
        assert not exact.same_shares(one, other, p_value * 1.01)
    assert exact.same_shares([7], [900]) and not exact.same_shares([100, 0], [0, 100])
    rng = np.random.default_rng(0)
    drawn = (rng.multinomial((300, 900), [0.2, 0.3, 0.5]) for _ in range(2000))
    assert sum(not exact.same_shares(*pair) for pair in drawn) < 2000 * 0.01 + 4 * math.sqrt(20)


@pytest.mark.parametrize("alpha", [1 - 1e-11, 1 - 1e-16])
def test_the_rank_of_an_alpha_near_1_is_the_first(alpha):
    assert exact.quantile_rank(9, alpha) == 1


def test_a_full_set_always_covers():
    assert exact.coverage_interval(8, 100, 0.1) == (1.0, 1.0)
