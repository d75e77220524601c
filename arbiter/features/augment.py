"""Augmentation of cached features that equals augmentation of the image.

Block transforms such as the DCT commute with whole-patch shifts, and a mirrored image changes only
the sign of odd coefficients. So a moved or mirrored picture can be had from stored features,
exactly, without encoding anything again. Encoders for which this does not hold offer no
`flip_signs`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from arbiter.encoders.base import FeatureSpec, StreamSpec
from arbiter.errors import ConfigError
from arbiter.features.batch import DecisionBatch, MediaTokens, media_specs

# A patch has content if its energy is at least this share of its block's most energetic patch.
_CONTENT_SHARE = 0.05


class Augmenter:
    """Mirrors and shifts the images of a batch, one draw per block.

    Raises:
        ConfigError: an augmentation is asked for that these features cannot express.
    """

    def __init__(self, horizontal_flip: bool, shift_patches: int, spec: FeatureSpec):
        self._flip, self._shift = horizontal_flip, shift_patches
        self._specs = {k: s for k, s in media_specs(spec).items() if k in ("image", "patches")}
        exact = all(s.flip_signs for s in self._specs.values())
        asked = {"horizontal_flip": horizontal_flip, "shift_patches": shift_patches}
        for key, value in asked.items():
            if value and not exact:
                raise ConfigError(
                    f"dataset.augment.{key}", value, "this encoder's features allow no augmentation"
                )

    @property
    def active(self) -> bool:
        """Whether anything is ever changed."""
        return bool(self._flip or self._shift)

    def draw(self, blocks: int, rng: np.random.Generator) -> torch.Tensor:
        """Random choices for a step's blocks, float64 [blocks, 3]: mirror, rows, columns."""
        return torch.from_numpy(rng.random((blocks, 3)))

    def apply(self, batch: DecisionBatch, draws: torch.Tensor) -> DecisionBatch:
        """The batch as if its images had been changed before encoding."""
        mirrored = (draws[:, 0] < 0.5) if self._flip else torch.zeros(len(draws), dtype=torch.bool)
        media = dict(batch.media)
        for kind in self._specs.keys() & media.keys():
            tokens = _mirror(media[kind], self._specs[kind], mirrored)
            if self._shift and tokens.positions is not None:
                tokens = _shift(tokens, self._specs[kind].grid, self._shift, draws[:, 1:])
            media[kind] = tokens
        return replace(batch, media=media)


def _mirror(tokens: MediaTokens, spec: StreamSpec, mirrored: torch.Tensor) -> MediaTokens:
    signs = torch.tensor(spec.flip_signs, dtype=tokens.values.dtype)
    values = torch.where(mirrored[:, None, None], tokens.values * signs, tokens.values)
    positions = tokens.positions
    if positions is not None:
        columns = spec.grid[2]
        flipped = torch.stack(
            [positions[..., 0], positions[..., 1], columns - 1 - positions[..., 2]], dim=-1
        )
        positions = torch.where(mirrored[:, None, None], flipped, positions)
    return MediaTokens(values, tokens.mask, positions)


def _shift(
    tokens: MediaTokens, grid: tuple[int, ...], limit: int, draws: torch.Tensor
) -> MediaTokens:
    """Move all patches of a block together, as far as no patch with content leaves the grid.

    Patches without content, such as plain background, that leave it are dropped.
    """
    energy = torch.where(tokens.mask, tokens.values.square().sum(dim=-1), 0)
    content = tokens.mask & (energy >= _CONTENT_SHARE * energy.amax(dim=1, keepdim=True))
    positions, mask = tokens.positions.clone(), tokens.mask
    for axis in (1, 2):
        place, size = positions[..., axis], grid[axis]
        low = torch.where(content, place, size).amin(dim=1)
        high = torch.where(content, place, -1).amax(dim=1)
        least = (-low).clamp(min=-limit, max=0)
        most = (size - 1 - high).clamp(min=0, max=limit)
        step = least + (draws[:, axis - 1] * (most - least + 1)).floor().long()
        moved = place + step[:, None]
        mask = mask & (moved >= 0) & (moved < size)
        positions[..., axis] = moved.clamp(min=0, max=size - 1)
    return MediaTokens(tokens.values, mask, positions)
