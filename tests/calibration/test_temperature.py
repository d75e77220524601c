import numpy as np
import pytest

from arbiter.calibration.temperature import fit_temperature


def sample_problem(temperature: float, n: int = 20_000):
    """Answers drawn from softmax(logits / temperature), with padded candidates."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, 4)) * 3
    mask = np.ones((n, 4), bool)
    mask[::3, 3] = False
    scaled = np.where(mask, logits / temperature, -np.inf)
    gumbel = -np.log(-np.log(rng.random((n, 4))))
    return np.where(mask, logits, np.finfo(np.float32).min), mask, (scaled + gumbel).argmax(1)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_made_the_data_is_found(temperature):
    assert fit_temperature(*sample_problem(temperature)) == pytest.approx(temperature, rel=0.03)


def test_it_is_the_minimum_of_the_likelihood():
    logits, mask, answer = sample_problem(1.7, 500)

    def nll(temperature: float) -> float:
        scaled = np.where(mask, logits / temperature, -np.inf)
        top = scaled.max(1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(scaled - top).sum(1))
        return float((log_sum - scaled[np.arange(len(answer)), answer]).mean())

    best = fit_temperature(logits, mask, answer)
    assert all(nll(best) <= nll(best * f) + 1e-12 for f in (0.5, 0.9, 0.99, 1.01, 1.1, 2))


def test_perfect_predictions_stay_within_bounds():
    logits = np.array([[9.0, 0.0]] * 10)
    assert fit_temperature(logits, np.ones((10, 2), bool), np.zeros(10, int)) == pytest.approx(0.05)
