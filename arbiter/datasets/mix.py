"""Mixing sources: caps and group-aware splits that stay put when samples are added."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from arbiter.config import build, option
from arbiter.datasets.base import SPLITS, SplitFractions
from arbiter.errors import ConfigError, SourceError
from arbiter.sample import Sample
from arbiter.seeds import hash_fraction


@dataclass
class AugmentConfig:
    """What may be done to a training image without changing any answer."""

    horizontal_flip: bool = option(False, help="Mirror images left to right, half of the time.")
    shift_patches: int = option(
        0, help="Move image content by up to this many whole patches, each way.", low=0, high=16
    )


@dataclass
class DatasetConfig:
    """A mix of sources."""

    sources: dict[str, Any] = option({}, help="The sources of the mix, by name.")
    augment: AugmentConfig = option(
        AugmentConfig(), help="Changes to training images that keep every answer right."
    )

    def check(self) -> None:
        """A mix needs something in it."""
        if not self.sources:
            raise ConfigError("sources", "{}", "name at least one source, e.g. dataset=easy_vqa")


def cap_by_group(samples: list[Sample], limit: int | None, seed: int) -> list[Sample]:
    """At most `limit` samples: whole groups in hashed order while they fit, original order kept."""
    if limit is None or len(samples) <= limit:
        return samples
    sizes = Counter(sample.group for sample in samples)
    kept, total = set(), 0
    for group in sorted(sizes, key=lambda g: hash_fraction(seed, f"cap/{g}")):
        if total + sizes[group] <= limit:
            kept.add(group)
            total += sizes[group]
    if not kept:
        raise ConfigError(
            "max_samples", limit, f"every group is larger; the smallest has {min(sizes.values())}"
        )
    return [sample for sample in samples if sample.group in kept]


def assign_split(group: str, fractions: SplitFractions, seed: int) -> str:
    """The split of a group, by hash of (seed, group): independent of all other groups."""
    position = hash_fraction(seed, f"split/{group}")
    bounds = np.cumsum([getattr(fractions, split) for split in SPLITS])
    return SPLITS[min(int(np.searchsorted(bounds, position, side="right")), len(SPLITS) - 1)]


def load_mix(config: DatasetConfig, seed: int) -> dict[str, list[Sample]]:
    """Read every source and deal its samples into train, val, calibration and test.

    A cap applies to each official split in proportion to its size.

    Raises:
        SourceError: a source cannot be read, or a split that every run needs came out empty.
        ConfigError: a cap is smaller than any group.
    """
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for name, source_config in config.sources.items():
        parts = build(source_config).load(seed)
        total = sum(map(len, parts.values()))
        for part, samples in parts.items():
            limit = source_config.max_samples
            if limit is not None:
                limit = max(1, round(limit * len(samples) / total))
            try:
                samples = cap_by_group(samples, limit, seed)
            except ConfigError as error:
                raise error.under(f"dataset.sources.{name}") from None
            for sample in samples:
                split = part
                if part == "all":
                    split = assign_split(f"{name}/{sample.group}", source_config.split, seed)
                splits[split].append(sample)
    for split in ("train", "val", "calibration"):
        if not splits[split]:
            names = ", ".join(config.sources)
            raise SourceError(
                f"{names}: no samples in the {split} split; raise max_samples or its share in split"
            )
    return splits
