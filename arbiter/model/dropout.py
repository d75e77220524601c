"""Dropout that does not depend on how a step is cut into batches, nor on the device.

Torch's dropout draws one stream over a batch, in the device's own generator: another micro-batch,
another padding or another device is another mask. Here every number has an address (step, layer,
question or media set, token, channel), and its place in the mask is a hash of it. The hash is
linear modulo a prime, so small that every product is exact in float32 on every backend, and made of
operations that DirectML runs itself. Masks of two rows are independent of each other, as those of
two channels are (pairwise, Carter and Wegman, 1979).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from arbiter.features.batch import DecisionBatch

_PRIME = 2039
"""The grain of a dropout probability is 1 / 2039; products stay below 2^23."""


@dataclass(frozen=True)
class Noise:
    """Addresses of what is in a batch, as two numbers below the prime each.

    Attributes:
        seed: of the step.
        question: float32 [B, Q, 2].
        block: float32 [B, 2], of each media set.
        text: float32 [U, 2], of each distinct text.
    """

    seed: int
    question: torch.Tensor
    block: torch.Tensor
    text: torch.Tensor

    @classmethod
    def of(cls, batch: DecisionBatch, seed: int) -> Noise:
        """The addresses of a batch on the CPU."""
        sample = batch.sample.numpy()
        # A block begins with a sample that only it has.
        return cls(
            seed,
            _pairs(sample, seed, "question"),
            _pairs(sample[:, 0], seed, "media"),
            _pairs(batch.text_ids.numpy(), seed, "text"),
        )

    def to(self, device: torch.device) -> Noise:
        """The same on another device."""
        return replace(
            self,
            question=self.question.to(device),
            block=self.block.to(device),
            text=self.text.to(device),
        )

    def tokens(self, rows: torch.Tensor, name: str, count: int) -> torch.Tensor:
        """Addresses [..., count, 2] of the tokens called `name` of rows [..., 2]."""
        place = np.arange(count)
        factor, shift = (
            _pairs(place, self.seed, f"{name} {part}").to(rows.device)
            for part in ("factor", "shift")
        )
        return _remainder(rows[..., None, :] * factor + shift)

    def channels(self, site: str, width: int) -> torch.Tensor:
        """Numbers [2, width] that tell the channels of one dropout from each other."""
        return _pairs(np.arange(width), self.seed, site).T.contiguous().to(self.text.device)


class Dropout(nn.Module):
    """Sets a share of numbers to zero while training, and scales the others up."""

    def __init__(self, probability: float):
        super().__init__()
        self._zeros = round(probability * _PRIME)

    def forward(
        self, x: torch.Tensor, rows: torch.Tensor | None, channels: torch.Tensor | None
    ) -> torch.Tensor:
        """Drop numbers of x [..., H] at addresses `rows` [..., 2] and `channels` [2, H].

        Nothing is dropped without addresses, or in evaluation mode.
        """
        if not self.training or self._zeros == 0 or rows is None:
            return x
        value = _remainder(rows[..., :1] * channels[0] + (rows[..., 1:] + channels[1]))
        return torch.where(value >= self._zeros, x * (_PRIME / (_PRIME - self._zeros)), 0)


def _remainder(x: torch.Tensor) -> torch.Tensor:
    """Of whole numbers in float32 below 2^23, modulo the prime."""
    return x - (x / _PRIME).floor() * _PRIME


def _pairs(keys: np.ndarray, seed: int, salt: str) -> torch.Tensor:
    """Two numbers below the prime for every key, the first not zero: float32 [..., 2].

    SplitMix64 (Steele, Lea and Flood, 2014).
    """
    start = (seed ^ (zlib.crc32(salt.encode()) * 0x9E3779B97F4A7C15)) % 2**64
    z = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z ^= z >> np.uint64(31)
    first = z % np.uint64(_PRIME - 1) + np.uint64(1)
    second = (z >> np.uint64(32)) % np.uint64(_PRIME)
    return torch.from_numpy(np.stack([first, second], axis=-1).astype(np.float32))
