"""The `raw` encoder: perception without weights or downloads.

Text is hashed n-grams, images are frequency-weighted block DCTs, audio is a log-mel spectrogram.
All three are fixed, exact transforms: nothing random is passed off as perception. It knows no
language and no objects, so it suits small closed worlds; for natural images and open text use an
OpenCLIP encoder.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
from PIL import Image

from arbiter.config import option
from arbiter.encoders import audio
from arbiter.encoders.base import Compute, EncoderConfig, FeatureSpec, StreamSpec, Tokens
from arbiter.errors import ConfigError

# Changing any transform below must change this, so that stored features are never taken for new.
VERSION = 1


@dataclass
class RawEncoderConfig(EncoderConfig):
    """Options of the `raw` encoder."""

    _target_: str = field(default="arbiter.encoders.raw.RawEncoder", metadata={"help": "class"})
    text_dim: int = option(256, help="Buckets that text n-grams are hashed into.", low=16)
    text_tokens: bool = option(False, help="Give each word as a token too, beside the whole text.")
    max_text_tokens: int = option(64, help="Words kept of a text as tokens.", low=1, high=4096)
    image_size: list[int] = option([64, 64], help="Height and width in pixels.", low=8, high=1024)
    patch_size: int = option(8, help="Side of a square patch in pixels.", low=2, high=32)
    max_patches: int = option(
        24, help="Patches kept per image: those with the highest energy.", low=1, high=980
    )

    def check(self) -> None:
        """Patches must tile the image."""
        if len(self.image_size) != 2:
            raise ConfigError("image_size", self.image_size, "must be [height, width] in pixels")
        if any(side % self.patch_size for side in self.image_size):
            raise ConfigError(
                "patch_size", self.patch_size, f"must divide image_size {list(self.image_size)}"
            )


# ---------------------------------------------------------------- text


def split_words(text: str) -> list[str]:
    """Words and single punctuation marks, in lower case."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def _ngrams(text: str) -> list[tuple[str, float]]:
    """Word uni- and bigrams (weight 1) and character 3- and 4-grams (weight 0.5)."""
    words = split_words(text)
    bigrams = [f"{a} {b}" for a, b in pairwise(words)]
    padded = f" {' '.join(words)} "
    characters = [padded[i : i + n] for n in (3, 4) for i in range(len(padded) - n + 1)]
    return [(f"w:{w}", 1.0) for w in words + bigrams] + [(f"c:{c}", 0.5) for c in characters]


def hash_text(text: str, dim: int) -> np.ndarray:
    """Signed feature hashing (Weinberger et al., 2009) of n-grams, float32 [dim], RMS 1.

    Case and white space do not matter. A vector of unit length would start training far below the
    scale of the other inputs, hence the factor sqrt(dim).
    """
    vector = np.zeros(dim, np.float64)
    for gram, weight in _ngrams(text):
        digest = zlib.crc32(gram.encode())
        vector[(digest >> 1) % dim] += weight if digest & 1 else -weight
    return (vector * np.sqrt(dim) / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)


# ---------------------------------------------------------------- images


@cache
def _dct_basis(size: int) -> np.ndarray:
    """The orthonormal DCT-II matrix [size, size]; row u is the frequency."""
    u, x = np.arange(size)[:, None], np.arange(size)[None, :]
    basis = np.sqrt(2 / size) * np.cos(np.pi * (2 * x + 1) * u / (2 * size))
    basis[0] /= np.sqrt(2)
    return basis


def block_dct(image: Image.Image, height: int, width: int, patch: int) -> np.ndarray:
    """Weighted DCT coefficients of each patch, float32 [rows, columns, 3 * patch * patch].

    Pixels are scaled to [-1, 1]; coefficient (u, v) is weighted by sqrt(1 + u^2 + v^2), which
    evens out the falling spectrum of pictures. The feature order is (channel, u, v).
    """
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(image, np.float64) / 127.5 - 1
    blocks = pixels.reshape(height // patch, patch, width // patch, patch, 3)
    basis = _dct_basis(patch)
    coefficients = np.einsum("uy,rycxk,vx->rckuv", basis, blocks, basis, optimize=True)
    u = np.arange(patch)
    weighted = coefficients * np.sqrt(1 + u[:, None] ** 2 + u[None, :] ** 2)
    return weighted.reshape(*weighted.shape[:2], -1).astype(np.float32)


# ---------------------------------------------------------------- the encoder


class RawEncoder:
    """Hashed text, DCT patches and log-mel frames; see the module's docstring."""

    Config = RawEncoderConfig
    num_parameters = 0

    def __init__(self, config: RawEncoderConfig, compute: Compute | None = None):
        # There are no weights, so nothing depends on where and how precisely they would run.
        del compute
        self.config = config
        height, width = config.image_size
        self._rows, self._columns = height // config.patch_size, width // config.patch_size
        patch_dim = 3 * config.patch_size**2
        # A mirrored cosine of odd frequency changes its sign, one of even frequency does not.
        v = np.arange(patch_dim) % config.patch_size
        flip = tuple(int(s) for s in 1 - 2 * (v % 2))
        text = {"pooled": StreamSpec(config.text_dim)}
        if config.text_tokens:
            text["tokens"] = StreamSpec(config.text_dim, (config.max_text_tokens,))
        self.spec = FeatureSpec(
            {
                "text": text,
                "image": {
                    "pooled": StreamSpec(patch_dim, (), flip),
                    "patches": StreamSpec(patch_dim, (1, self._rows, self._columns), flip),
                },
                "audio": audio.streams(config),
            },
            max_frames=config.max_frames,
        )

    def fingerprint(self, kind: str) -> dict:
        """The encoder's version and the options that bear on `kind`."""
        if kind == "audio":
            return audio.fingerprint(self.config)
        words = ("text_tokens", "max_text_tokens") if self.config.text_tokens else ()
        used = {
            "text": ("text_dim", *words),
            "image": ("image_size", "patch_size", "max_patches"),
        }[kind]
        options = dataclasses.asdict(self.config)
        return {
            "encoder": "raw",
            "version": VERSION,
            "kind": kind,
            "dtype": self.config.cache_dtype,
            **{name: options[name] for name in used},
        }

    def describe(self) -> dict:
        """What perceives, for summaries and reports."""
        return {"name": "raw", "random_weights": False}

    def count_patches(self, size: tuple[int, int] | None) -> int:
        """Every image has the same number."""
        return min(self.config.max_patches, self._rows * self._columns)

    def encoding_bytes(self, images: int) -> int:
        """The transforms look at one image after another."""
        del images
        return 0

    def release(self) -> None:
        """There are no weights."""

    def prepare(self, kind: str, content: object) -> object:
        """Nothing to do ahead: the transforms are the whole work."""
        return content

    def encode_text(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """One hashed vector per text and, with `text_tokens`, one per word."""
        dim = self.config.text_dim
        values = np.stack([hash_text(text, dim) for text in texts])
        streams = {"pooled": Tokens(values, np.ones(len(texts), np.int64))}
        if self.config.text_tokens:
            words = [split_words(text)[: self.config.max_text_tokens] for text in texts]
            counts = np.array([len(part) for part in words], np.int64)
            flat = [hash_text(word, dim) for part in words for word in part]
            positions = np.concatenate([np.arange(count) for count in counts])[:, None]
            hashed = np.array(flat, np.float32).reshape(-1, dim)
            streams["tokens"] = Tokens(hashed, counts, positions.astype(np.int16))
        return streams

    def encode_image(self, images: Sequence[Image.Image]) -> dict[str, Tokens]:
        """The mean patch, and the patches of highest energy as differences from it."""
        pooled, patches, positions = [], [], []
        keep = self.count_patches(None)
        for image in images:
            grid = block_dct(image, *self.config.image_size, self.config.patch_size)
            flat = grid.reshape(-1, grid.shape[-1])
            mean = flat.mean(axis=0)
            difference = flat - mean
            energy = np.square(difference).sum(axis=-1)
            # Ties (plain background) are broken by position, and the kept ones stay in order.
            kept = np.sort(np.argsort(-energy, kind="stable")[:keep])
            pooled.append(mean)
            patches.append(difference[kept])
            rows, columns = np.divmod(kept, self._columns)
            positions.append(np.stack([np.zeros_like(rows), rows, columns], axis=-1))
        counts = np.full(len(images), keep, np.int64)
        return {
            "pooled": Tokens(np.stack(pooled), np.ones(len(images), np.int64)),
            "patches": Tokens(
                np.concatenate(patches), counts, np.concatenate(positions).astype(np.int16)
            ),
        }

    def encode_audio(self, waveforms: Sequence[np.ndarray]) -> dict[str, Tokens]:
        """Log-mel frames of 0.1 s."""
        return audio.encode(waveforms, self.config)
