import math
from dataclasses import replace
from itertools import pairwise

import pytest

from arbiter.errors import ConfigError
from arbiter.training.schedules import ScheduleConfig, SWAConfig, extendable_until, lr_factor


def test_cosine_with_warm_up():
    config = ScheduleConfig(epochs=10, warmup_steps=10, final_lr_factor=0.1)
    factors = [lr_factor(config, step, 11) for step in range(111)]
    assert factors[:10] == pytest.approx([(s + 1) / 11 for s in range(10)])
    assert factors[10] == 1.0
    assert factors[60] == pytest.approx(0.1 + 0.9 * 0.5)
    assert factors[85] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * 0.75)))
    assert factors[110] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(factors[10:]))


def test_constant_stays():
    config = ScheduleConfig(decay="constant", warmup_steps=0)
    assert {lr_factor(config, step, 10) for step in range(100)} == {1.0}


def test_a_run_shorter_than_its_warm_up_only_rises():
    config = ScheduleConfig(warmup_steps=100)
    factors = [lr_factor(config, step, 2) for step in range(20)]
    assert factors == sorted(factors) and factors[-1] < 1


def test_linear_decay_comes_at_the_end_and_can_be_put_off():
    config = ScheduleConfig(
        epochs=5, decay="linear", decay_epochs=2, warmup_steps=0, final_lr_factor=0.1
    )
    factors = [lr_factor(config, step, 10) for step in range(51)]
    assert set(factors[:31]) == {1.0}
    assert factors[40] == pytest.approx(0.1 + 0.9 * 0.5)
    assert factors[50] == pytest.approx(0.1)
    longer = replace(config, epochs=9)
    assert [lr_factor(longer, step, 10) for step in range(31)] == factors[:31]
    assert extendable_until(config, 10) == 30
    assert extendable_until(ScheduleConfig(epochs=5, decay="constant"), 10) == 50
    assert extendable_until(ScheduleConfig(), 10) == -1
    averaged = replace(config, swa=SWAConfig(start_epoch=2))
    assert extendable_until(averaged, 10) == -1


def test_averaging_anneals_in_one_epoch_and_then_holds():
    config = ScheduleConfig(
        epochs=6, decay="constant", warmup_steps=0, swa=SWAConfig(start_epoch=3, lr_factor=0.2)
    )
    factors = [lr_factor(config, step, 10) for step in range(60)]
    assert set(factors[:21]) == {1.0}
    assert factors[25] == pytest.approx(0.6)
    assert factors[30:] == pytest.approx([0.2] * 30)


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("start_epoch", range(1, 11))
@pytest.mark.parametrize("factor", [0.01, 0.1, 1.0])
def test_averaging_never_raises_the_rate_and_keeps_the_warm_up(decay, start_epoch, factor):
    plain = ScheduleConfig(epochs=10, decay=decay, warmup_steps=25)
    config = replace(plain, swa=SWAConfig(start_epoch=start_epoch, lr_factor=factor))
    factors = [lr_factor(config, step, 10) for step in range(100)]
    start = max(10 * (start_epoch - 1), 25)
    assert factors[: start + 1] == [lr_factor(plain, step, 10) for step in range(start + 1)]
    assert all(a >= b for a, b in pairwise(factors[25:]))
    assert factors[start + 10 :] == pytest.approx([min(factor, factors[start])] * (90 - start))


def test_averaging_past_the_end_is_an_error():
    with pytest.raises(ConfigError, match=r"swa\.start_epoch=7: must be at most epochs=6"):
        ScheduleConfig(epochs=6, swa=SWAConfig(start_epoch=7)).check()
