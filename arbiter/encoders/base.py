"""What an encoder is: a light handle that describes its features before it makes any.

The model is built from a `FeatureSpec` and the store is keyed by `fingerprint`, so with a warm
store no weights are ever loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from arbiter.config import option
from arbiter.hardware.device import autocast


@dataclass
class EncoderConfig:
    """Options that every encoder has."""

    cache_dtype: str = option("int8", help="How features are stored.", choices=("int8", "float16"))
    max_frames: int = option(
        8, help="Frames looked at of a video, evenly spread over it.", low=1, high=256
    )
    mel_bins: int = option(64, help="Mel frequency bands of an audio token.", low=8, high=128)
    max_audio_tokens: int = option(
        100, help="Audio tokens per clip, 0.1 s each; longer clips are pooled to fit.", low=1
    )


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

    Attributes:
        streams: content kind -> stream name -> shape.
        aligned: pooled text and pooled image share a space, where a small angle means a match.
        max_frames: places in time that the frames of a video are laid on.
    """

    streams: dict[str, dict[str, StreamSpec]] = field(default_factory=dict)
    aligned: bool = False
    max_frames: int = 8

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


@dataclass(frozen=True)
class Compute:
    """Where and how precisely an encoder with weights runs.

    Attributes:
        device: its device.
        precision: 'float32', 'bfloat16' or 'float16', of the towers' arithmetic.
    """

    device: torch.device = torch.device("cpu")
    precision: str = "float32"

    def autocast(self) -> torch.autocast:
        """A context in which the towers compute in this precision."""
        return autocast(self.device, self.precision)


class Encoder(Protocol):
    """Frozen perception. Media and text in, feature arrays out; nothing is trained.

    Built as `build(config, compute=Compute(...))`; weights are loaded by the first encoding only.
    """

    spec: FeatureSpec
    num_parameters: int
    """Frozen parameters; 0 for an encoder without weights."""

    def describe(self) -> dict:
        """What perceives, for summaries: at least 'name' and whether there are 'random_weights'."""

    def fingerprint(self, kind: str) -> dict:
        """Everything that the features of one content kind depend on, as JSON; loads no weights."""

    def count_patches(self, size: tuple[int, int] | None) -> int:
        """Patch tokens of an image of this width and height; None for the most of any image."""

    def encoding_bytes(self, images: int) -> int:
        """Bytes in use at once, beside the weights, to encode so many images together."""

    def release(self) -> None:
        """Give back the memory of loaded weights; the next encoding loads them again."""

    def prepare(self, kind: str, content: object) -> object:
        """The part of encoding that each content needs by itself; runs in worker threads.

        `encode_<kind>` takes what this returns as well as the content itself.
        """

    def encode_text(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """One entry per stream of 'text'."""

    def encode_image(self, images: Sequence[Image.Image]) -> dict[str, Tokens]:
        """One entry per stream of 'image'; images are RGB."""

    def encode_audio(self, waveforms: Sequence[np.ndarray]) -> dict[str, Tokens]:
        """One entry per stream of 'audio'; mono float32 at 16 kHz."""
