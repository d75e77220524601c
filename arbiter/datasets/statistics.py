"""What a source contributed to a mix: counted at load, logged, and kept in the run's summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from arbiter.sample import Sample


@dataclass
class SourceStatistics:
    """Counts over one source of a mix.

    Attributes:
        kept: samples in the mix.
        splits: samples by split of the mix.
        skipped: samples left out, by reason; a cap is none.
        groups: distinct groups among the kept.
        candidates: how many samples have 2, 3, ... candidates.
        modalities: how many samples carry each modality.
        carved_from: the official split that all samples come from, for a source without a
            training split; what was carved for training is never in a reported score.
        licence: of the data; None when unknown.
        repositories: of the hub that the data are from.
    """

    kept: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    candidates: dict[int, int] = field(default_factory=dict)
    modalities: dict[str, int] = field(default_factory=dict)
    carved_from: str | None = None
    licence: str | None = None
    repositories: tuple[str, ...] = ()

    @classmethod
    def count(
        cls,
        splits: dict[str, Sequence[Sample]],
        skipped: Counter[str],
        carved_from: str | None = None,
        licence: str | None = None,
        repositories: tuple[str, ...] = (),
    ) -> SourceStatistics:
        """Count the samples of one source in the splits of a mix; what else is given is kept."""
        samples = [sample for part in splits.values() for sample in part]
        candidates = Counter(len(sample.candidates) for sample in samples)
        modalities = Counter(m.value for sample in samples for m in sample.modalities)
        return cls(
            kept=len(samples),
            splits={split: len(part) for split, part in splits.items()},
            skipped=dict(skipped.most_common()),
            groups=len({sample.group for sample in samples}),
            candidates=dict(sorted(candidates.items())),
            modalities=dict(sorted(modalities.items())),
            carved_from=carved_from,
            licence=licence,
            repositories=repositories,
        )

    def to_dict(self) -> dict:
        """As JSON."""
        values = asdict(self)
        values["candidates"] = {str(size): n for size, n in self.candidates.items()}
        return values

    def line(self) -> str:
        """All of it in one line."""
        sizes = list(self.candidates)
        spread = (
            f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}" if sizes else "no"
        )
        parts = [
            f"{self.kept} samples in {self.groups} groups",
            ", ".join(f"{n} {split}" for split, n in self.splits.items() if n),
            f"{spread} candidates",
            ", ".join(f"{n} with {name}" for name, n in self.modalities.items()) or "text only",
        ]
        if self.skipped:
            reasons = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items())
            parts.append(f"skipped {sum(self.skipped.values())} ({reasons})")
        if self.carved_from:
            parts.append(f"carved from {self.carved_from}")
        return "; ".join(part for part in parts if part)
