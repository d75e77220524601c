"""Encoders and pictures that the tests of the store share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from arbiter.encoders.base import Tokens
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig


class CountingEncoder(RawEncoder):
    """The raw encoder, and how many contents of each kind it was given."""

    def __init__(self, **options):
        super().__init__(RawEncoderConfig(**options))
        self.encoded: Counter[str] = Counter()

    def encode_text(self, texts: Sequence[str]) -> dict[str, Tokens]:
        self.encoded["text"] += len(texts)
        return super().encode_text(texts)

    def encode_image(self, images: Sequence[Image.Image]) -> dict[str, Tokens]:
        self.encoded["image"] += len(images)
        return super().encode_image(images)


def picture(seed: int, size: int = 64) -> Image.Image:
    """Noise, different for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def stored_files(root: Path) -> dict[str, bytes]:
    """All that a store keeps for reading, by path: names and bytes."""
    patterns = ("*/0*.safetensors", "*/codec-*.safetensors", "*/fingerprint.json")
    found = [path for pattern in patterns for path in root.glob(pattern)]
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(found)}


def flip_byte(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    contents = bytearray(path.read_bytes())
    contents[offset] ^= 1
    path.write_bytes(contents)
