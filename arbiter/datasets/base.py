"""What a source is: something that yields the samples of one data set, in official splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.sample import Sample

SPLITS = ("train", "val", "calibration", "test")


@dataclass
class SplitFractions:
    """How the samples that have no official place are dealt out, by group."""

    train: float = option(0.8, help="Share trained on.", low=0, high=1)
    val: float = option(0.1, help="Share for model selection.", low=0, high=1)
    calibration: float = option(0.1, help="Share for calibration only.", low=0, high=1)
    test: float = option(0.0, help="Share for the final report only.", low=0, high=1)

    def check(self) -> None:
        """The shares are a partition."""
        total = self.train + self.val + self.calibration + self.test
        if abs(total - 1) > 1e-6:
            raise ConfigError("train", self.train, f"the four shares add up to {total:g}, not 1")


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


class Source(Protocol):
    """Reads one data set. Knows nothing of tensors."""

    def load(self, seed: int) -> dict[str, list[Sample]]:
        """Samples by official split; those under 'all' are dealt out by `SplitFractions`.

        Raises:
            SourceError: it cannot be read: what, where, and what to do.
        """
