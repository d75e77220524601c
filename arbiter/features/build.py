"""Making features: decoding ahead, encoding by the batch, packing shard by shard."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from arbiter import media
from arbiter.encoders.base import Encoder, StreamSpec, Tokens
from arbiter.features.codec import Int8Codec
from arbiter.features.key_memo import Stamp, stamp

_SHARD_BYTES = 64 * 2**20

Packed = dict[str, np.ndarray]


class Prepared(NamedTuple):
    """A content on its way to the encoder.

    key: its content key.
    before: the stamp of its file, taken before it was read; None without a file.
    content: what the encoder takes; None for a content that is stored already.
    """

    key: bytes
    before: Stamp | None
    content: object | None


def prepare(encoder: Encoder, kind: str, ref: object, known: Container[bytes]) -> Prepared:
    """Decode a reference once, for its key and for the encoder; runs in worker threads.

    Raises:
        MediaError: it cannot be decoded.
    """
    before = stamp(ref) if isinstance(ref, Path) else None
    content = media.load(kind, ref)
    key = media.content_key(kind, content)
    return Prepared(key, before, None if key in known else encoder.prepare(kind, content))


def items_per_shard(specs: dict[str, StreamSpec]) -> int:
    """Contents per shard, so that a full shard of int8 tokens takes about 64 MiB."""
    item_bytes = sum(spec.dim * int(np.prod(spec.grid)) for spec in specs.values())
    return int(np.clip(_SHARD_BYTES // item_bytes, 16, 16384))


def encode(encoder: Encoder, kind: str, contents: Sequence[object]) -> dict[str, Tokens]:
    """One call of the encoder."""
    return getattr(encoder, f"encode_{kind}")(contents)


def fit_codecs(parts: Sequence[dict[str, Tokens]]) -> dict[str, Int8Codec]:
    """Codecs for every stream, from the tokens of some batches."""
    return {
        name: Int8Codec.fit(np.concatenate([part[name].values for part in parts]))
        for name in parts[0]
    }


def pack(keys: Sequence[bytes], streams: dict[str, Tokens], codecs: dict[str, Int8Codec]) -> Packed:
    """The tensors of one batch: int8 with scales where there is a codec, else float16."""
    tensors = {"keys": np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32).copy()}
    for name, tokens in streams.items():
        if name in codecs:
            values, scales = codecs[name].encode(tokens.values)
            tensors[f"{name}.values"], tensors[f"{name}.scales"] = values, scales
        else:
            tensors[f"{name}.values"] = tokens.values.astype(np.float16)
        if tokens.positions is not None:
            tensors[f"{name}.positions"] = tokens.positions
        tensors[f"{name}.offsets"] = np.concatenate([[0], np.cumsum(tokens.counts)])
    return tensors


def join(parts: Sequence[Packed]) -> Packed:
    """The tensors of one shard, from those of its batches."""
    joined = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        if name.endswith(".offsets"):
            counts = np.concatenate([np.diff(offsets) for offsets in arrays])
            joined[name] = np.concatenate([[0], np.cumsum(counts)])
        else:
            joined[name] = np.concatenate(arrays)
    return joined
