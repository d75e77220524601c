"""Mixing sources: caps and group-aware splits that stay put when samples are added."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arbiter.config import build, option
from arbiter.datasets.base import SPLITS, LoadedSource, SourceConfig
from arbiter.datasets.grouping import Member, place
from arbiter.datasets.media_check import MediaCheck
from arbiter.datasets.statistics import SourceStatistics
from arbiter.errors import ConfigError, MediaError, SourceError
from arbiter.sample import Sample
from arbiter.seeds import hash_fraction

log = logging.getLogger(__name__)


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
        for name, source in self.sources.items():
            if not (hasattr(source, "_target_") or "_target_" in dict(source or {})):
                raise ConfigError(
                    f"sources.{name}",
                    source,
                    "is no source of this dataset, only settings for one; "
                    f"take them out with ~dataset.sources.{name}",
                )


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


class Mix(dict[str, list[Sample]]):
    """Samples by split: train, val, calibration and test.

    Attributes:
        statistics: what each source contributed.
    """

    def __init__(self) -> None:
        super().__init__({split: [] for split in SPLITS})
        self.statistics: dict[str, SourceStatistics] = {}


def load_mix(
    config: DatasetConfig, seed: int, needed: Sequence[str] = ("train", "val", "calibration")
) -> Mix:
    """Read every source and deal its samples into train, val, calibration and test.

    A cap applies to each official split in proportion to its size. Samples about the same picture,
    in one source or in several, get the same group, and no group is on two sides. A sample's source
    is the name that the mix gives it.

    Args:
        needed: splits that may not come out empty: those that every run needs.

    Raises:
        SourceError: a source cannot be read, too much of it is damaged, or a split that is needed
            came out empty.
        ConfigError: a cap is smaller than any group.
    """
    sources: dict[str, _Checked] = {}
    check = MediaCheck()
    for name, source_config in config.sources.items():
        loaded = build(source_config).load(seed)
        try:
            parts = _capped(loaded, source_config.max_samples, seed)
        except ConfigError as error:
            # A cap is shared between official splits; the person gave the whole.
            key = f"dataset.sources.{name}.max_samples"
            raise ConfigError(key, source_config.max_samples, error.allowed) from None
        sources[name] = _checked(name, parts, loaded, source_config, check)

    members = [member for source in sources.values() for member in source.members]
    placed = iter(place(members, seed))
    mix = Mix()
    for name, source in sources.items():
        own: dict[str, list[Sample]] = {split: [] for split in SPLITS}
        for sample in source.samples:
            group, split = next(placed)
            if split is None:
                source.skipped["shared a picture with a stricter official split"] += 1
            else:
                own[split].append(dataclasses.replace(sample, group=group, source=name))
        for split, part in own.items():
            mix[split] += part
        from_where = config.sources[name]
        mix.statistics[name] = SourceStatistics.count(
            own, source.skipped, source.carved_from, from_where.licence, from_where.repositories
        )
        log.info("%s: %s", name, mix.statistics[name].line())
    for split in needed:
        if not mix[split]:
            names = ", ".join(config.sources)
            sizes = ", ".join(f"{len(part)} {name}" for name, part in mix.items())
            raise SourceError(
                f"{names}: no samples in the {split} split ({sizes}); raise a source's max_samples "
                f"or its split.{split}, or give it samples that name this split"
            )
    return mix


def _capped(loaded: LoadedSource, limit: int | None, seed: int) -> dict[str, list[Sample]]:
    total = sum(map(len, loaded.parts.values()))
    if limit is None or total <= limit:
        return loaded.parts
    return {
        part: cap_by_group(samples, max(1, round(limit * len(samples) / total)), seed)
        for part, samples in loaded.parts.items()
    }


@dataclass
class _Checked:
    """The samples of one source whose media are whole, each with its member for grouping."""

    samples: list[Sample]
    members: list[Member]
    skipped: Counter[str]
    carved_from: str | None


def _checked(
    name: str,
    parts: dict[str, list[Sample]],
    loaded: LoadedSource,
    config: SourceConfig,
    check: MediaCheck,
) -> _Checked:
    """Leave out samples whose media cannot be decoded, unless there are too many."""
    samples, members, damaged = [], [], list(loaded.damaged)
    for part, members_of_part in parts.items():
        for sample in members_of_part:
            try:
                keys = check.keys(sample)
            except MediaError as error:
                damaged.append(f"{sample.id}: {error}")
                continue
            samples.append(sample)
            members.append(Member(f"{name}/{sample.group}", part, keys, config.split))
    read = sum(map(len, loaded.parts.values())) + len(loaded.illegal)
    _limit(name, "illegal samples", loaded.illegal, read, config.max_skipped_share)
    _limit(
        name, "undecodable media", damaged, len(samples) + len(damaged), config.max_skipped_share
    )
    skipped = Counter(loaded.skipped)
    if loaded.illegal:
        skipped["illegal samples"] = len(loaded.illegal)
    if damaged:
        skipped["undecodable media"] = len(damaged)
        log.warning(
            "%s: %d samples with undecodable media, e.g. %s", name, len(damaged), damaged[0]
        )
    if not samples:
        raise SourceError(f"{name}: no samples; skipped: {dict(skipped) or 'none'}")
    return _Checked(samples, members, skipped, loaded.carved_from)


def _limit(name: str, what: str, lines: list[str], total: int, share: float) -> None:
    if len(lines) > share * total:
        raise SourceError(
            f"{name}: {len(lines)} of {total} samples skipped for {what}, more than "
            f"max_skipped_share={share:g}; first: {lines[0]}; repair the data or raise "
            f"dataset.sources.{name}.max_skipped_share"
        )
