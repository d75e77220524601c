from collections import defaultdict

import pytest

from arbiter.datasets.base import SPLITS, SplitFractions
from arbiter.datasets.mix import assign_split, cap_by_group
from arbiter.errors import ConfigError
from arbiter.sample import Sample

FRACTIONS = SplitFractions(train=0.6, val=0.2, calibration=0.1, test=0.1)


def samples(groups: int, per_group: int) -> list[Sample]:
    return [
        Sample("q", ("a", "b"), group=str(g), id=f"{g}.{i}")
        for g in range(groups)
        for i in range(per_group)
    ]


def test_shares_are_met_on_average():
    counts = defaultdict(int)
    for group in range(20_000):
        counts[assign_split(str(group), FRACTIONS, seed=0)] += 1
    for split in SPLITS:
        # Four standard deviations of a binomial of 20,000.
        assert abs(counts[split] / 20_000 - getattr(FRACTIONS, split)) < 0.014


def test_a_group_stays_where_it_is_and_seeds_differ():
    first = [assign_split(str(g), FRACTIONS, seed=0) for g in range(300)]
    assert first == [assign_split(str(g), FRACTIONS, seed=0) for g in range(300)]
    assert first != [assign_split(str(g), FRACTIONS, seed=1) for g in range(300)]


def test_empty_shares_get_nothing():
    only = SplitFractions(train=0.0, val=0.0, calibration=0.0, test=1.0)
    assert {assign_split(str(g), only, 0) for g in range(1000)} == {"test"}
    none_last = SplitFractions(train=0.5, val=0.5, calibration=0.0, test=0.0)
    assert {assign_split(str(g), none_last, 0) for g in range(1000)} == {"train", "val"}


def test_shares_must_add_up():
    with pytest.raises(ConfigError, match=r"add up to 0\.9"):
        SplitFractions(0.5, 0.2, 0.1, 0.1).check()


def test_a_cap_takes_whole_groups_in_their_order():
    all_samples = samples(50, 3)
    capped = cap_by_group(all_samples, 20, seed=0)
    assert len(capped) == 18
    assert [s.id for s in capped] == [s.id for s in all_samples if s in capped]
    for group in {s.group for s in capped}:
        assert sum(s.group == group for s in capped) == 3


def test_a_larger_cap_keeps_what_a_smaller_one_took():
    all_samples = samples(50, 3)
    small = {s.id for s in cap_by_group(all_samples, 30, seed=0)}
    large = {s.id for s in cap_by_group(all_samples, 60, seed=0)}
    assert small < large


def test_a_cap_below_every_group_is_an_error():
    with pytest.raises(ConfigError, match="smallest has 3"):
        cap_by_group(samples(5, 3), 2, seed=0)
