"""Which samples must stay on one side of a split, across sources, and which side that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from arbiter.datasets.base import ALL, HELD_OUT, SPLITS, SplitFractions
from arbiter.seeds import hash_fraction

# Whoever lies in several official parts stays in the one whose contamination would do most harm.
_STRICTEST_FIRST = ("test", "calibration", "val", HELD_OUT, "train")


@dataclass(frozen=True)
class Member:
    """A sample as grouping sees it.

    Attributes:
        node: source and group, as one name.
        part: official split, `ALL` or `HELD_OUT`.
        keys: content keys of its media.
        fractions: the shares of its source.
    """

    node: str
    part: str
    keys: frozenset[bytes]
    fractions: SplitFractions


def assign_split(group: str, fractions: SplitFractions, seed: int) -> str:
    """The split of a group, by hash of (seed, group): independent of all other groups."""
    return _deal(group, {split: getattr(fractions, split) for split in SPLITS}, seed)


def _deal(group: str, shares: dict[str, float], seed: int) -> str:
    # A split without a share gets nothing, also where rounding leaves a gap below the sum.
    splits = [split for split, share in shares.items() if share > 0]
    bounds = np.cumsum([shares[split] for split in splits])
    position = hash_fraction(seed, f"split/{group}") * bounds[-1]
    return splits[min(int(np.searchsorted(bounds, position, side="right")), len(splits) - 1)]


def _official(parts: set[str]) -> str | None:
    return next((part for part in _STRICTEST_FIRST if part in parts), None)


def place(members: Sequence[Member], seed: int) -> list[tuple[str, str | None]]:
    """The group and the split of each sample; equal media link groups, also across sources.

    Official splits are kept. Where linked samples lie in several of them, the strictest wins, and
    the others are left out: nothing tested on is ever trained on.

    Returns:
        for each member the name of its linked group and its split, or None when it is left out.
    """
    groups = _linked(members)
    parts: dict[str, set[str]] = {}
    shares: dict[str, SplitFractions] = {}
    for member, group in zip(members, groups, strict=True):
        parts.setdefault(group, set()).add(member.part)
        shares.setdefault(group, member.fractions)
    placed: list[tuple[str, str | None]] = []
    for member, group in zip(members, groups, strict=True):
        official = _official(parts[group])
        stays = member.part == official or (member.part == ALL and official != "test")
        placed.append((group, _split(group, official, shares[group], seed) if stays else None))
    return placed


def _split(group: str, official: str | None, fractions: SplitFractions, seed: int) -> str:
    if official is None:
        return assign_split(group, fractions, seed)
    if official != HELD_OUT:
        return official
    if fractions.val + fractions.calibration == 0:
        return "val"
    return _deal(group, {"val": fractions.val, "calibration": fractions.calibration}, seed)


def _linked(members: Iterable[Member]) -> list[str]:
    """For each member the first node that it is linked with, in the order given.

    The first node names the whole, so that a source added at the end moves no sample before it.
    """
    parent: dict[object, object] = {}
    rank: dict[object, int] = {}

    def find(item: object) -> object:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    members = list(members)
    for member in members:
        for item in (member.node, *sorted(member.keys)):
            if item not in parent:
                parent[item] = item
                rank[item] = len(rank)
            ends = sorted((find(member.node), find(item)), key=rank.__getitem__)
            parent[ends[1]] = ends[0]
    return [find(member.node) for member in members]
