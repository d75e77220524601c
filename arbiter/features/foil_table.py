"""Foils of samples as rows of the text table, ready to be gathered by batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class FoilTable:
    """The foils of N samples; samples with the same answer and candidates share them.

    Attributes:
        rows: int32 [P, F], text rows, the most similar to the answer first, -1 where there is none.
        place: int64 [N], which of the P lists a sample has.
        digest: names everything that the table depends on.
    """

    rows: torch.Tensor
    place: torch.Tensor
    digest: str

    def take(self, samples: torch.Tensor) -> torch.Tensor | None:
        """Text rows int64 [R, F] of the chosen samples [R]; None when none of them has a foil."""
        rows = self.rows[self.place[samples]].long()
        return rows if bool((rows >= 0).any()) else None
