import numpy as np
import pytest

from arbiter.calibration.gate import Gate, GateConfig, fit_gate, gates

CONFIG = GateConfig(max_disagreement=0.02)


def drafts(confidence: np.ndarray) -> np.ndarray:
    return np.stack([confidence, 1 - confidence, np.zeros_like(confidence)], axis=1)


def test_a_gate_by_hand():
    p = np.array([[0.8, 0.15, 0.05], [0.72, 0.28, 0.0], [0.72, 0.14, 0.14]])
    margin, entropy = [0.65, 0.44, 0.58], [0.6127, 0.5930, 0.7871]
    for value in (0.43, 0.5, 0.6, 0.7):
        assert Gate(value, 9, 0).opens(p).tolist() == [m >= value for m in margin]
    for value in (0.55, 0.6, 0.7, 0.8):
        assert Gate(0, value, 0).opens(p).tolist() == [e <= value for e in entropy]
    assert Gate(0, 9, 0.75).opens(p).tolist() == [True, False, False]
    assert Gate(0.45, 0.7, 0.65).opens(p).tolist() == [True, False, False]


def test_the_sequence_is_nested_and_passes_through_the_known_thresholds():
    tried = gates()
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.3] * 4, size=2000)
    opened = np.array([gate.opens(p) for gate in tried])
    assert (opened[:-1] <= opened[1:]).all()
    assert opened[0].sum() < opened[-1].sum()
    for gate in tried:
        step = gate.entropy / 0.40
        assert (gate.margin, gate.confidence) == pytest.approx((1 - 0.55 * step, 1 - 0.35 * step))


def test_the_loosest_is_taken_where_nothing_differs():
    fit = fit_gate(drafts(np.full(2000, 0.9999)), np.zeros(2000, bool), CONFIG)
    assert fit.gate == gates()[-1]
    assert (fit.exits, fit.disagreements) == (2000, 0)
    assert fit.bound == pytest.approx(1 - 0.05 ** (1 / 2000))


def test_it_stays_shut_and_says_why():
    few = fit_gate(drafts(np.full(50, 0.99)), np.zeros(50, bool), CONFIG)
    assert few.gate is None and few.exits == 0
    # 320 = log(0.05 / 32) / log(0.98), rounded up.
    assert "50 of 50 samples could exit; 320 are needed" in few.reason
    wrong = fit_gate(drafts(np.full(900, 0.99)), np.arange(900) % 10 == 0, CONFIG)
    assert wrong.gate is None
    assert "no gate kept disagreement within 0.02" in wrong.reason


def test_just_enough_samples_open_it():
    assert fit_gate(drafts(np.full(320, 0.99)), np.zeros(320, bool), CONFIG).gate is not None
    assert fit_gate(drafts(np.full(319, 0.99)), np.zeros(319, bool), CONFIG).gate is None


def share_over_the_limit(rate, trials: int = 250, n: int = 1500) -> tuple[float, float]:
    """Over calibration splits: how often the true disagreement is too large, and the gate open.

    `rate` gives the probability of a disagreement at a confidence; confidences are 1 - 0.5 u^3.
    """
    grid = 1 - 0.5 * ((np.arange(200_000) + 0.5) / 200_000) ** 3
    opened = [gate.opens(drafts(grid)) for gate in gates()]
    truth = {g: float(rate(grid[o]).mean()) for g, o in zip(gates(), opened, strict=True)}
    rng = np.random.default_rng(1)
    over = is_open = 0
    for _ in range(trials):
        confidence = 1 - 0.5 * rng.random(n) ** 3
        fit = fit_gate(drafts(confidence), rng.random(n) < rate(confidence), CONFIG)
        is_open += fit.gate is not None
        over += fit.gate is not None and truth[fit.gate] > CONFIG.max_disagreement
    return over / trials, is_open / trials


@pytest.mark.parametrize(
    ("rate", "opens"),
    [
        # Growing with doubt: strict gates keep the limit, loose ones do not.
        (lambda c: 0.2 * (1 - c), 0.95),
        # Worst in the middle, so that a gate beyond it can be good again.
        (lambda c: 0.05 * np.exp(-(((c - 0.97) / 0.02) ** 2)), 0.0),
        # All gates barely too bad: every open one is an error.
        (lambda c: np.full_like(c, 0.0201), 0.0),
    ],
)
def test_the_true_disagreement_exceeds_the_limit_in_at_most_5_percent_of_splits(rate, opens):
    over, is_open = share_over_the_limit(rate)
    assert over <= 0.05
    assert is_open >= opens
