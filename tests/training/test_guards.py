"""Which steps are taken, and what is said of the others, from numbers made up for it."""

import math

import pytest

from arbiter.errors import ProcessLost, RunError
from arbiter.training.guards import Guard, GuardsConfig

NAN = math.nan


@pytest.mark.parametrize(
    ("loss", "margin", "norm"), [(NAN, 0.1, 1.0), (1.0, NAN, 1.0), (1.0, 0.1, math.inf)]
)
def test_a_step_needs_finite_terms_and_a_finite_gradient(loss, margin, norm, caplog):
    guard = Guard(GuardsConfig())
    assert not guard.allows(4, {"cross_entropy": loss, "margin_loss": margin}, norm, lambda: "a 1")
    assert (guard.bad_steps, guard.skipped_steps, guard.running_loss) == (1, 1, None)
    assert "step 4: no finite loss or gradient; skipped; samples a 1" in caplog.text


def test_skipped_steps_are_counted_in_all_and_in_a_row():
    guard = Guard(GuardsConfig(max_bad_steps=2), skipped_steps=5)
    taken = [
        guard.allows(step, {"cross_entropy": 1.0}, n, str) for step, n in enumerate((NAN, 1.0))
    ]
    assert taken == [False, True]
    assert (guard.bad_steps, guard.skipped_steps) == (0, 6)
    assert not guard.allows(2, {"cross_entropy": NAN}, 1.0, str)
    with pytest.raises(RunError, match="2 steps in a row without a finite loss or gradient, up to"):
        guard.allows(3, {"cross_entropy": NAN}, 1.0, str)


def test_a_step_is_not_counted_before_its_samples_are_known():
    """Other processes name theirs too, and may be lost; the step is then done again."""
    guard = Guard(GuardsConfig(), bad_steps=1, running_loss=1.0, skipped_steps=5)

    def lost() -> str:
        raise ProcessLost

    for loss in (NAN, 9.0):
        with pytest.raises(ProcessLost):
            guard.allows(3, {"cross_entropy": loss}, 1.0, lost)
        assert (guard.bad_steps, guard.skipped_steps, guard.running_loss) == (1, 5, 1.0)


@pytest.mark.parametrize("mean", [0.0, 0.2])
def test_a_loss_that_jumps_is_logged(mean, caplog):
    guard = Guard(GuardsConfig(spike_factor=5.0), running_loss=mean)
    assert guard.allows(7, {"cross_entropy": 1.5}, 1.0, lambda: "a 1")
    assert f"step 7: loss 1.500, its running mean was {mean:.3f}; samples a 1" in caplog.text
    assert guard.running_loss == pytest.approx(0.98 * mean + 0.02 * 1.5)
