"""Filling the shards of one table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from safetensors.numpy import load_file, save_file

from arbiter.encoders.base import Encoder, Tokens
from arbiter.features import build
from arbiter.features.codec import Int8Codec
from arbiter.features.shards import list_shards, next_number, write_shard
from arbiter.files import file_digest, fsync_path, write_json_atomic, write_tensors


def codec_files(directory: Path) -> list[Path]:
    """The files of a table's codecs; there is one, or none before the first shard."""
    return sorted(directory.glob("codec-*.safetensors"))


def read_codecs(directory: Path) -> dict[str, Int8Codec]:
    """A table's codecs, by stream."""
    scales = [load_file(path) for path in codec_files(directory)]
    return {name: Int8Codec(scale) for part in scales for name, scale in part.items()}


def write_codecs(directory: Path, codecs: dict[str, Int8Codec]) -> None:
    """Fix a new table's codecs, for good."""
    temporary = directory / f".writing-{os.getpid()}-codec"
    scales = {name: codec.channel_scale for name, codec in codecs.items()}
    write_tensors(save_file, scales, temporary)
    fsync_path(temporary)
    os.replace(temporary, directory / f"codec-{file_digest(temporary)[:16]}.safetensors")


class ShardWriter:
    """Encodes contents by the batch and writes a shard whenever one is full.

    Batches do not cross shards, so what a shard holds does not depend on where a build began.

    Args:
        directory: of the table.
        encoder: makes the features.
        kind: of content.
        batch_size: contents per call of the encoder.
        int8: whether tokens are stored so, or as float16.
    """

    def __init__(self, directory: Path, encoder: Encoder, kind: str, batch_size: int, int8: bool):
        self._directory, self._encoder, self._kind = directory, encoder, kind
        self._batch_size, self._int8 = batch_size, int8
        self._per_shard = build.items_per_shard(encoder.spec[kind])
        self._codecs = read_codecs(directory) if int8 else {}
        self._batch: list[tuple[bytes, object]] = []
        # Batches that wait for the table's codecs, which are fitted on its first shard.
        self._raw: list[tuple[Sequence[bytes], dict[str, Tokens]]] = []
        self._packed: list[build.Packed] = []
        self._count = 0

    def add(self, key: bytes, content: object) -> None:
        """Take one more content."""
        self._batch.append((key, content))
        full = self._count + len(self._batch) == self._per_shard
        if full or len(self._batch) == self._batch_size:
            self._encode()

    def put(self, keys: Sequence[bytes], streams: dict[str, Tokens]) -> None:
        """Take contents that are encoded already, none of which belong to the next shard."""
        if self._codecs or not self._int8:
            self._packed.append(build.pack(keys, streams, self._codecs))
        else:
            self._raw.append((keys, streams))
        self._count += len(keys)
        if self._count == self._per_shard:
            self._write()

    def finish(self) -> None:
        """Write what does not fill a shard."""
        if self._batch:
            self._encode()
        if self._count:
            self._write()

    def _encode(self) -> None:
        batch, self._batch = self._batch, []
        contents = [content for _, content in batch]
        self.put([key for key, _ in batch], build.encode(self._encoder, self._kind, contents))

    def _write(self) -> None:
        if self._raw:
            self._codecs = build.fit_codecs([streams for _, streams in self._raw])
            write_codecs(self._directory, self._codecs)
            self._packed = [build.pack(k, streams, self._codecs) for k, streams in self._raw]
            self._raw = []
        shards = list_shards(self._directory)
        if not shards:
            fingerprint = self._encoder.fingerprint(self._kind)
            write_json_atomic(self._directory / "fingerprint.json", fingerprint)
            write_json_atomic(self._directory / "encoder.json", self._encoder.describe())
        write_shard(self._directory, next_number(shards), build.join(self._packed))
        self._packed, self._count = [], 0
