import math
from itertools import pairwise

import pytest

from arbiter.training.schedules import ScheduleConfig, lr_factor


def test_cosine_with_warm_up():
    config = ScheduleConfig(warmup_steps=10, final_lr_factor=0.1)
    factors = [lr_factor(config, step, 110) for step in range(111)]
    assert factors[:10] == pytest.approx([(s + 1) / 11 for s in range(10)])
    assert factors[10] == 1.0
    assert factors[60] == pytest.approx(0.1 + 0.9 * 0.5)
    assert factors[85] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * 0.75)))
    assert factors[110] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(factors[10:]))


def test_constant_stays():
    config = ScheduleConfig(decay="constant", warmup_steps=0)
    assert {lr_factor(config, step, 100) for step in range(100)} == {1.0}


def test_a_run_shorter_than_its_warm_up_only_rises():
    config = ScheduleConfig(warmup_steps=100)
    factors = [lr_factor(config, step, 20) for step in range(20)]
    assert factors == sorted(factors) and factors[-1] < 1
