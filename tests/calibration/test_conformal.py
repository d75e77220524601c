import math

import numpy as np
import pytest

from arbiter.calibration.conformal import lac_scores, prediction_set, quantile


def test_the_quantile_is_the_ranked_score():
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert quantile(scores, 0.1) == 0.9  # ceil(10 * 0.9) = 9th
    assert quantile(scores, 0.2) == 0.8
    assert quantile(scores, 0.5) == 0.5
    assert quantile(scores, 0.05) == math.inf  # ceil(10 * 0.95) = 10th of 9


def test_too_few_samples_give_the_full_set():
    threshold = quantile([0.1] * 5, 0.1)
    assert sorted(prediction_set(np.array([0.98, 0.01, 0.01]), threshold)) == [0, 1, 2]


def test_sets_are_ordered_and_never_empty():
    probabilities = np.array([0.2, 0.5, 0.3])
    assert prediction_set(probabilities, 0.75) == [1, 2]
    assert prediction_set(probabilities, 0.1) == [1]


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_coverage_over_random_splits(alpha):
    """Mean coverage lies within four standard errors of the guarantee's band."""
    rng = np.random.default_rng(0)
    n, m, splits = 199, 200, 200
    covered = []
    for _ in range(splits):
        logits = rng.normal(size=(n + m, 5)) * 2
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        answer = np.array([rng.choice(5, p=p) for p in probabilities])
        threshold = quantile(lac_scores(probabilities[:n], answer[:n]).tolist(), alpha)
        sets = [prediction_set(p, threshold) for p in probabilities[n:]]
        covered.append(np.mean([a in s for a, s in zip(answer[n:], sets, strict=True)]))
    # 1 - alpha <= E[coverage] <= 1 - alpha + 1 / (n + 1) for continuous scores; the set that is
    # never empty can only add to it.
    error = 4 * np.std(covered) / math.sqrt(splits)
    assert 1 - alpha - error <= np.mean(covered) <= 1 - alpha + 1 / (n + 1) + error
