import numpy as np
import pytest

from arbiter.calibration.risk import RiskCounts, thresholds


def test_counts_by_hand():
    confidence = np.array([0.999, 0.8, 0.8, 0.4, 0.1])
    counts = RiskCounts.count(confidence, np.array([True, True, False, False, True]))
    assert counts.samples == 5
    for threshold, decided, wrong in zip(thresholds(), counts.decided, counts.wrong, strict=True):
        kept = confidence >= threshold
        assert (decided, wrong) == (kept.sum(), (kept & [False, False, True, True, False]).sum())
    assert (counts.decided[-1], counts.wrong[-1]) == (5, 2)


def test_nothing_is_escalated_where_everything_is_right():
    found = RiskCounts.count(np.full(3000, 0.9999999), np.ones(3000, bool)).threshold_for(0.01)
    assert (found.threshold, found.decided, found.risk) == (0.0, 1.0, 0.0)
    assert found.bound == pytest.approx(1 - 0.05 ** (1 / 3000))


def test_it_says_that_no_threshold_will_do():
    few = RiskCounts.count(np.full(60, 0.99), np.ones(60, bool)).threshold_for(0.01)
    # 619 = log(0.05 / 25) / log(0.99), rounded up.
    assert few.threshold is None
    assert "60 calibration samples are fewer than the 619 needed" in few.reason
    guesses = RiskCounts.count(np.full(5000, 0.99), np.arange(5000) % 2 == 0).threshold_for(0.1)
    assert guesses.threshold is None and guesses.decided == 0
    assert guesses.reason == "no threshold reaches a risk of at most 0.1 with 0.95 confidence"


@pytest.mark.parametrize(
    ("wrong", "found_at_least"),
    [
        (lambda c: 0.4 * (1 - c), 0.95),  # grows with doubt: strict thresholds will do
        (lambda c: np.full_like(c, 0.0501), 0.0),  # every threshold is barely too bad
    ],
)
def test_the_true_risk_exceeds_the_target_in_at_most_5_percent_of_splits(wrong, found_at_least):
    target, n, trials = 0.05, 2000, 400
    grid = 1 - ((np.arange(200_000) + 0.5) / 200_000) ** 1.5
    truth = {float(t): wrong(grid[grid >= t]).mean() for t in thresholds() if (grid >= t).any()}
    rng = np.random.default_rng(0)
    found = []
    for _ in range(trials):
        confidence = 1 - rng.random(n) ** 1.5
        right = rng.random(n) >= wrong(confidence)
        found.append(RiskCounts.count(confidence, right).threshold_for(target).threshold)
    given = [t for t in found if t is not None]
    assert sum(truth[t] > target for t in given) / trials <= 0.05
    assert len(given) / trials >= found_at_least


def test_the_smallest_target_has_no_threshold():
    few = RiskCounts.count(np.full(60, 0.99), np.ones(60, bool)).threshold_for(1e-320)
    assert few.threshold is None and "60 calibration samples are fewer than" in few.reason
