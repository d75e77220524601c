"""What an encoder is: a light handle that describes its features before it makes any.

The model is built from a `FeatureSpec` and the store is keyed by `fingerprint`, so with a warm
store no weights are ever loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class StreamSpec:
    """The shape of one ragged stream of tokens.

    Attributes:
        dim: features per token.
        grid: sizes of the position axes: () for none, (T,) for time, (tiles, rows, columns).
        flip_signs: per feature, +1 or -1: what a horizontal flip of the image does to it; empty
            when a flip cannot be expressed on the features.
    """

    dim: int
    grid: tuple[int, ...] = ()
    flip_signs: tuple[int, ...] = ()


@dataclass(frozen=True)
class FeatureSpec:
    """All streams of an encoder, by content kind ('text', 'image', 'audio') and stream name.

    'text' and 'image' have the stream 'pooled' with exactly one token per content.
    """

    streams: dict[str, dict[str, StreamSpec]] = field(default_factory=dict)

    def __getitem__(self, kind: str) -> dict[str, StreamSpec]:
        return self.streams[kind]

    def __contains__(self, kind: str) -> bool:
        return kind in self.streams


@dataclass(frozen=True)
class Tokens:
    """A ragged stream for a batch of contents: tokens of all contents, one after another.

    Attributes:
        values: float32 [N, D].
        counts: int64 [contents], summing to N.
        positions: int16 [N, axes], or None for a stream without positions.
    """

    values: np.ndarray
    counts: np.ndarray
    positions: np.ndarray | None = None


class Encoder(Protocol):
    """Frozen perception. Media and text in, feature arrays out; nothing is trained."""

    spec: FeatureSpec
    num_parameters: int
    """Frozen parameters; 0 for an encoder without weights."""

    def fingerprint(self, kind: str) -> dict:
        """Everything that the features of one content kind depend on, as JSON; loads no weights."""

    def encode_text(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """One entry per stream of 'text'."""

    def encode_image(self, images: Sequence[Image.Image]) -> dict[str, Tokens]:
        """One entry per stream of 'image'; images are RGB."""

    def encode_audio(self, waveforms: Sequence[np.ndarray]) -> dict[str, Tokens]:
        """One entry per stream of 'audio'; mono float32 at 16 kHz."""
