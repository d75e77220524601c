"""What a source is: something that yields the samples of one data set, in official splits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from arbiter.config import option
from arbiter.errors import ConfigError, SampleError
from arbiter.sample import Sample

SPLITS = ("train", "val", "calibration", "test")

ALL = "all"
"""The part whose samples have no official place: dealt out by `SplitFractions`."""

HELD_OUT = "validation"
"""The part that is officially for validation: dealt out between val and calibration."""


@dataclass
class SplitFractions:
    """How the samples that have no official place are dealt out, by group."""

    train: float = option(0.8, help="Share trained on.", low=0, high=1)
    val: float = option(0.1, help="Share for model selection.", low=0, high=1)
    calibration: float = option(0.1, help="Share for calibration only.", low=0, high=1)
    test: float = option(0.0, help="Share for the final report only.", low=0, high=1)

    def check(self) -> None:
        """The shares are a partition."""
        shares = {split: getattr(self, split) for split in SPLITS}
        total = sum(shares.values())
        if abs(total - 1) > 1e-6:
            raise ConfigError("", shares, f"the four shares add up to {total:g}, not 1")


@dataclass
class SourceConfig:
    """Options that every source has."""

    _target_: str = option(help="The source's class.")
    max_samples: int | None = option(
        None, help="Cap on samples, drawn by whole groups; null takes all.", low=1
    )
    split: SplitFractions = option(
        default=SplitFractions(), help="Shares of the samples outside official splits."
    )
    max_skipped_share: float = option(
        0.01,
        help="Share of samples that may be skipped as damaged or illegal; more is an error.",
        low=0,
        below=1,
    )


@dataclass
class LoadedSource:
    """What a source read, and what it left out.

    Attributes:
        parts: samples by official split; `ALL` and `HELD_OUT` are dealt out by the mix.
        skipped: how many were left out, by reason, as the options ask (not damaged ones).
        illegal: a line for each one that is no legal sample; too many of them are an error.
        damaged: a line for each one whose media cannot be decoded, as far as the source looked.
        carved_from: for a source that has no training split, the split that all samples are from.
    """

    parts: dict[str, list[Sample]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    illegal: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    carved_from: str | None = None

    def add(self, part: str, **fields: Any) -> bool:
        """Make a sample of `fields` and keep it; an illegal one is noted. True when kept."""
        try:
            sample = Sample(**fields)
        except SampleError as error:
            self.illegal.append(str(error))
            return False
        if sample.answer is None:
            self.illegal.append(f"{sample.source} {sample.id}: there is no answer")
            return False
        self.parts.setdefault(part, []).append(sample)
        return True


class Source(Protocol):
    """Reads one data set. Knows nothing of tensors."""

    name: str

    def load(self, seed: int) -> LoadedSource:
        """Read the samples.

        A source that streams draws no more than `max_samples`; from others the mix does.

        Raises:
            SourceError: it cannot be read: what, where, and what to do.
        """
