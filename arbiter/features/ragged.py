"""Lists of varying length, laid end to end, and their padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def owners(lengths: torch.Tensor) -> torch.Tensor:
    """Which list each element of the flat layout belongs to, int64 [sum of lengths]."""
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def spans(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The indices start, start + 1, ... of each span, end to end, int64 [sum of lengths]."""
    shift = starts - (lengths.cumsum(0) - lengths)
    return torch.arange(int(lengths.sum())) + shift[owners(lengths)]


def pad(values: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lay lists out as a rectangle.

    Args:
        values: [N, ...], the elements of all lists, end to end.
        lengths: int64 [B], summing to N.

    Returns:
        padded [B, longest, ...], zero where padded, and its mask [B, longest].
    """
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    padded = values.new_zeros(*mask.shape, *values.shape[1:])
    padded[mask] = values
    return padded, mask


@dataclass(frozen=True)
class Ragged:
    """Lists of integers.

    Attributes:
        flat: int64 [sum of lengths].
        offsets: int64 [lists + 1].
    """

    flat: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        """From Python lists."""
        lengths = torch.tensor([0] + [len(part) for part in lists], dtype=torch.int64)
        flat = torch.tensor([element for part in lists for element in part], dtype=torch.int64)
        return cls(flat, lengths.cumsum(0))

    def take(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The chosen lists [R] end to end: (elements [N], lengths [R])."""
        starts = self.offsets[index]
        lengths = self.offsets[index + 1] - starts
        return self.flat[spans(starts, lengths)], lengths

    def select(self, index: torch.Tensor) -> Ragged:
        """The chosen lists, in the order of `index` int64 [R]."""
        flat, lengths = self.take(index)
        return Ragged(flat, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))

    def lists(self) -> list[list[int]]:
        """As Python lists."""
        return [part.tolist() for part in self.flat.split(self.offsets.diff().tolist())]
