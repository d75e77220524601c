import math

import numpy as np
import pytest

from arbiter.calibration import metrics


def test_wilson_interval_solves_its_equation():
    # The bounds are the p with (successes/n - p)^2 = z^2 p (1 - p) / n.
    for successes, trials in ((8, 10), (0, 20), (20, 20), (9648, 9673)):
        for bound in metrics.wilson_interval(successes, trials):
            left = (successes / trials - bound) ** 2
            assert left == pytest.approx(1.959964**2 * bound * (1 - bound) / trials, abs=1e-12)


def test_ece_of_hand_made_bins():
    # Two bins of two: confidences .6 .6 (one right) and .9 .9 (both right).
    probabilities = np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.9, 0.1]])
    answer = np.array([0, 1, 0, 0])
    expected = 0.5 * abs(0.6 - 0.5) + 0.5 * abs(0.9 - 1.0)
    assert metrics.expected_calibration_error(probabilities, answer, bins=2) == pytest.approx(
        expected
    )


def test_ece_of_honest_confidences_is_small():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 50_000)
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    answer = (rng.random(50_000) > confidence).astype(int)
    assert metrics.expected_calibration_error(probabilities, answer) < 0.01


def test_nll_and_entropy():
    probabilities = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    answer = np.array([1, 0])
    assert metrics.negative_log_likelihood(probabilities, answer) == pytest.approx(math.log(4) / 2)
    np.testing.assert_allclose(metrics.entropy(probabilities), [1.5 * math.log(2), 0], atol=1e-12)


def test_summary_counts():
    summary = metrics.summarize(np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), np.array([0, 0, 0]))
    assert summary["n"] == 3
    assert summary["accuracy"] == pytest.approx(2 / 3)


def test_brier_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0]])
    # (0.3^2 + 0.2^2 + 0.1^2) and (1 + 1), halved.
    assert metrics.brier_score(probabilities, np.array([0, 2])) == pytest.approx((0.14 + 2) / 2)


def test_reliability_bins_hold_every_sample_once():
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet([1, 1, 1], size=103)
    answer = rng.integers(0, 3, 103)
    bins = metrics.reliability_bins(probabilities, answer, 10)
    assert [b.n for b in bins] == [11] * 3 + [10] * 7
    assert sum(b.accuracy * b.n for b in bins) == pytest.approx(
        (probabilities.argmax(1) == answer).sum()
    )
    assert [b.confidence for b in bins] == sorted(b.confidence for b in bins)
    assert len(metrics.reliability_bins(probabilities[:4], answer[:4], 10)) == 4


def test_no_bin_ends_among_equal_confidences():
    """Else the order of samples decides in which bin a right one counts."""
    confidence = np.repeat([0.5, 0.6, 0.8], [4, 7, 1])
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    answer = np.array([0, 1] * 6)
    expected = [(4, 0.5, 0.5), (7, 0.6, 4 / 7), (1, 0.8, 0.0)]
    found = []
    for order in (np.arange(12), np.argsort(answer), np.argsort(-answer)):
        bins = metrics.reliability_bins(probabilities[order], answer[order], 6)
        assert [(b.n, b.confidence, b.accuracy) for b in bins] == [
            pytest.approx(e) for e in expected
        ]
        found.append(metrics.expected_calibration_error(probabilities[order], answer[order], 6))
    assert found == pytest.approx([(0 + 7 * (0.6 - 4 / 7) + 0.8) / 12] * 3)


def test_intervals_of_a_mean_by_hand_and_by_drawing():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    error = 1.959964 * math.sqrt((4 + 1 + 0 + 9) / 3) / 2
    assert metrics.mean_interval(values) == pytest.approx((3 - error, 3 + error))
    assert metrics.mean_interval(values[:1]) == (1.0, 1.0)
    many = np.random.default_rng(0).normal(size=400)
    drawn = metrics.bootstrap_interval(lambda rows: many[rows].mean(), 400, draws=2000)
    assert drawn == pytest.approx(metrics.mean_interval(many), abs=0.01)
    narrow = metrics.bootstrap_interval(lambda rows: many[rows].mean(), 400, 2000, level=0.5)
    assert narrow == pytest.approx(metrics.mean_interval(many, 0.6745), abs=0.01)


def test_risk_coverage_and_its_area_by_hand():
    confidence = np.array([0.2, 0.9, 0.5, 0.7])
    right = np.array([False, True, True, False])
    np.testing.assert_allclose(metrics.risk_coverage(confidence, right), [0, 1 / 2, 1 / 3, 2 / 4])
    assert metrics.aurc(confidence, right) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)


def test_equal_confidences_give_the_mean_over_orders():
    right = np.array([True, False, False, True, True])
    orders = [np.random.default_rng(i).permutation(5) for i in range(4)]
    for order in orders:
        found = metrics.risk_coverage(np.full(5, 0.8), right[order])
        np.testing.assert_allclose(found, [0.4] * 5)
