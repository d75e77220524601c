"""int8 storage of tokens: one fixed scale per channel, one scale per token.

The large channels of a vision transformer are the same for every image, so a per-channel scale,
estimated once, takes them out of the way; the per-token scale then follows the token's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A channel that was silent while the scale was estimated may speak later; this keeps its share of
# the token's range bounded.
_LEAST_CHANNEL_SHARE = 0.05


@dataclass(frozen=True)
class Int8Codec:
    """Maps float32 tokens [N, D] to int8 [N, D] with scales float32 [N], and back.

    value = int8 * token_scale * channel_scale.

    Attributes:
        channel_scale: float32 [D], positive.
    """

    channel_scale: np.ndarray

    @classmethod
    def fit(cls, values: np.ndarray) -> Int8Codec:
        """Estimate the channel scale, the root mean square of each channel, from tokens [N, D]."""
        mean_square = np.square(values, dtype=np.float64).mean(axis=0)
        overall = np.sqrt(mean_square.mean())
        scale = np.maximum(np.sqrt(mean_square), max(overall * _LEAST_CHANNEL_SHARE, 1e-12))
        return cls(scale.astype(np.float32))

    def encode(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Quantise, rounding to nearest: (int8 [N, D], token scale float32 [N])."""
        normalised = values / self.channel_scale
        peak = np.abs(normalised).max(axis=-1, initial=0)
        scale = (np.maximum(peak, 1e-12) / 127).astype(np.float32)
        return np.rint(normalised / scale[:, None]).astype(np.int8), scale

    def decode(self, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The float32 tokens that `values` and `scale` stand for."""
        return values.astype(np.float32) * (scale[:, None] * self.channel_scale)
