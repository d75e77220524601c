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


def losses(logits, mask, answer, temperature: float) -> np.ndarray:
    """-log p(answer) of each sample."""
    scaled = np.where(mask, logits / temperature, -np.inf)
    top = scaled.max(1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(scaled - top).sum(1))
    return log_sum - scaled[np.arange(len(answer)), answer]


@pytest.mark.parametrize("count", [1, 3, 500])
def test_it_is_the_maximum_of_the_posterior(count):
    problem = sample_problem(1.7, count)

    def surprise(temperature: float) -> float:
        b = 1 / temperature
        return losses(*problem, temperature).sum() + (b - np.log(b)) / 2

    best = fit_temperature(*problem)
    assert all(surprise(best) <= surprise(best * f) for f in (0.5, 0.9, 0.99, 1.01, 1.1, 2))


def test_a_few_samples_cannot_make_new_ones_much_worse():
    """As maximum likelihood would, which runs to a bound where all of the few are right."""
    logits, mask, answer = sample_problem(1.0)
    before = losses(logits, mask, answer, 1.0).mean()
    worst = 0.0
    for start in range(0, 200, 2):
        few = (part[start : start + 2] for part in (logits, mask, answer))
        worst = max(worst, losses(logits, mask, answer, fit_temperature(*few)).mean())
    assert before < worst < before + 0.5


def test_much_evidence_outweighs_the_prior():
    right, wrong = np.zeros(1000, int), np.arange(1000) % 2
    slight, strong = np.array([[0.1, 0.0]] * 1000), np.array([[9.0, 0.0]] * 1000)
    mask = np.ones((1000, 2), bool)
    assert fit_temperature(slight, mask, right) == pytest.approx(0.05)
    assert fit_temperature(strong, mask, wrong) == pytest.approx(20.0)
    assert fit_temperature(strong, mask, right) == pytest.approx(1.0, abs=0.3)
