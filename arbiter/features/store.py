"""The feature store: every distinct content is encoded once per encoder and kept for all runs.

One table per content kind and encoder fingerprint:

    <root>/<kind>-<fingerprint>/
        fingerprint.json       what the features depend on, for people
        encoder.json           what the encoder was called, for people
        codec-<sha256>.safetensors     the channel scales, written before the first shard
        00000-<sha256>.safetensors ...
        last_used              touched by every run
    <root>/image_keys.json     content keys of unchanged image files

Content keys address rows, so a changed encoder or a changed pixel can never meet an old feature.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.numpy import load_file, save_file

from arbiter import files, media
from arbiter.encoders.base import Encoder, Tokens
from arbiter.errors import StoreError
from arbiter.features import build
from arbiter.features.codec import Int8Codec
from arbiter.features.key_memo import KeyMemo
from arbiter.features.prefetch import map_ahead
from arbiter.features.shards import (
    MappedShard,
    list_shards,
    next_number,
    shard_is_intact,
    shard_is_whole,
    write_shard,
)
from arbiter.features.table import FeatureTable
from arbiter.files import file_digest, fsync_path, write_json_atomic

log = logging.getLogger(__name__)

# Reading 1 GB to check it takes a second or two. Larger tables are checked in full on request
# (`experiments.features verify=true`), and by their shards' lengths otherwise.
VERIFY_BYTES = 10**9

Progress = Callable[[str, int, int], None]
"""Called with (content kind, contents done, contents to look at)."""


class FeatureStore:
    """All tables of one encoder below `root`; safe for several processes at once.

    Args:
        root: the folder shared by all runs.
        encoder: makes what is missing.
        batch_size: contents per call of the encoder.
        progress: told how a build gets on.
        decode_threads: decode and prepare contents ahead of the encoder; 0 for none.
    """

    def __init__(
        self,
        root: Path,
        encoder: Encoder,
        batch_size: int = 64,
        progress: Progress | None = None,
        decode_threads: int = 2,
    ):
        self.root = root
        self.encoder = encoder
        self._int8 = encoder.config.cache_dtype == "int8"
        self._batch_size, self._decode_threads = batch_size, decode_threads
        self._progress = progress or (lambda kind, done, total: None)

    def directory(self, kind: str) -> Path:
        """Where the table of a content kind lives."""
        canonical = json.dumps(self.encoder.fingerprint(kind), sort_keys=True)
        return self.root / f"{kind}-{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"

    def open(self, kind: str) -> FeatureTable:
        """The table of a content kind as it is now."""
        shards = [MappedShard(path) for path in list_shards(self.directory(kind))]

        def release() -> None:
            for shard in shards:
                shard.release()

        tensors = [shard.tensors for shard in shards]
        return FeatureTable(self.encoder.spec[kind], tensors, self.codecs(kind), release)

    def codecs(self, kind: str) -> dict[str, Int8Codec]:
        """The codecs of a table, by stream; empty for float16 or while nothing is stored."""
        found = _codec_files(self.directory(kind)) if self._int8 else []
        return {n: Int8Codec(scale) for path in found for n, scale in load_file(path).items()}

    def fingerprint(self, kinds: Sequence[str]) -> str:
        """One name for the features of these kinds, codecs included, as a sha256 in hex."""
        digest = hashlib.sha256()
        for kind in sorted(kinds):
            digest.update(self.directory(kind).name.encode())
            for name, codec in sorted(self.codecs(kind).items()):
                digest.update(name.encode() + codec.channel_scale.tobytes())
        return digest.hexdigest()

    def ensure(self, kind: str, refs: Sequence[object]) -> tuple[FeatureTable, torch.Tensor]:
        """Encode what is missing; the table, and each reference's row in it, int64 [len(refs)].

        A table has one builder at a time; a second process waits, then finds the work done.
        Shards are filled in the order of `refs`, so an interrupted build goes on to the same files.

        Args:
            kind: 'text', 'image' or 'audio'.
            refs: texts, image references or waveforms; their contents may repeat.

        Raises:
            MediaError: an image cannot be decoded.
            StoreError: the directory cannot be written.
        """
        directory = self.directory(kind)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "last_used").touch()
            memo = KeyMemo(self.root / "image_keys.json") if kind == "image" else None
            keys = [self._remembered(kind, ref, memo) for ref in refs]
            # With everything there, no lock is taken: nobody waits for another's long build.
            if not self._complete(kind, keys):
                with FileLock(directory / ".lock"):
                    self._clear_up(kind)
                    self._build(kind, refs, keys, memo)
            table = self.open(kind)
        except OSError as error:
            raise StoreError(
                f"features: cannot write {directory}: {error.strerror}; "
                "free space there or set paths.features to another folder"
            ) from error
        return table, table.index(keys)

    def _remembered(self, kind: str, ref: object, memo: KeyMemo | None) -> bytes | None:
        """The key of a reference where that takes no decoding."""
        if kind == "text":
            return media.text_key(ref)
        return memo.get(ref) if memo is not None and isinstance(ref, Path) else None

    def _complete(self, kind: str, keys: Sequence[bytes | None]) -> bool:
        """Whether everything is stored and sound."""
        try:
            if None in keys or self.damaged(kind):
                return False
            known = self.open(kind).rows
        except FileNotFoundError:  # another process is just replacing a damaged shard
            return False
        return all(key in known for key in keys)

    def _build(
        self, kind: str, refs: Sequence[object], keys: list[bytes | None], memo: KeyMemo | None
    ) -> None:
        """Encode what is missing, and fill in the unknown `keys`."""
        known = self.open(kind).rows
        todo = [i for i, key in enumerate(keys) if key not in known]
        threads = 0 if kind == "text" else self._decode_threads
        # Enough to fill the next batch while this one is encoded.
        ahead = self._batch_size + threads
        writer = _ShardWriter(self, kind)
        begun: set[bytes] = set()
        prepared = map_ahead(
            lambda i: build.prepare(self.encoder, kind, refs[i], known), todo, threads, ahead
        )
        try:
            for done, (position, item) in enumerate(zip(todo, prepared, strict=True), 1):
                keys[position] = item.key
                if memo is not None and isinstance(refs[position], Path):
                    memo.put(refs[position], item.before, item.key)
                if item.content is not None and item.key not in begun:
                    begun.add(item.key)
                    writer.add(item.key, item.content)
                if done == len(todo):
                    writer.finish()
                self._progress(kind, done, len(todo))
        finally:
            prepared.close()
            if memo is not None:
                memo.save()

    def damaged(self, kind: str) -> list[Path]:
        """Files of a table that are not what they were when written."""
        return damaged_files(self.directory(kind), self._int8)

    def _clear_up(self, kind: str) -> None:
        """Drop damaged files, and what killed builders left; only under the lock."""
        for path in self.damaged(kind):
            log.warning("features: %s is damaged; its contents are encoded anew", path)
            path.unlink()
        for path in self.directory(kind).glob(".writing-*"):
            path.unlink()
        files.remove_leftovers(self.directory(kind))

    def write_codecs(self, kind: str, codecs: dict[str, Int8Codec]) -> None:
        """Fix a new table's codecs, for good."""
        directory = self.directory(kind)
        temporary = directory / f".writing-{os.getpid()}-codec"
        scales = {name: codec.channel_scale for name, codec in codecs.items()}
        files.write_tensors(save_file, scales, temporary)
        fsync_path(temporary)
        name = f"codec-{file_digest(temporary)[:16]}.safetensors"
        os.replace(temporary, directory / name)


def _codec_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("codec-*.safetensors"))


def damaged_files(directory: Path, int8: bool, verify: bool = False) -> list[Path]:
    """Files of a table that are not what they were when written.

    Args:
        directory: of the table.
        int8: whether it needs a codec.
        verify: check every byte, however much there is.
    """
    shards, codecs = list_shards(directory), _codec_files(directory)
    # Without their codec, int8 shards mean nothing.
    if shards and int8 and not (codecs and all(map(shard_is_intact, codecs))):
        return [*codecs, *shards]
    full = verify or sum(path.stat().st_size for path in shards) < VERIFY_BYTES
    check = shard_is_intact if full else shard_is_whole
    return [path for path in shards if not check(path)]


class _ShardWriter:
    """Encodes contents by the batch and writes a shard whenever one is full.

    Batches do not cross shards, so what a shard holds does not depend on where a build began.
    """

    def __init__(self, store: FeatureStore, kind: str):
        self._store, self._kind = store, kind
        self._directory = store.directory(kind)
        self._per_shard = build.items_per_shard(store.encoder.spec[kind])
        self._codecs = store.codecs(kind)
        self._batch: list[tuple[bytes, object]] = []
        # Batches that wait for the table's codecs, which are fitted on its first shard.
        self._raw: list[tuple[list[bytes], dict[str, Tokens]]] = []
        self._packed: list[build.Packed] = []
        self._count = 0

    def add(self, key: bytes, content: object) -> None:
        self._batch.append((key, content))
        self._count += 1
        if len(self._batch) == self._store._batch_size or self._count == self._per_shard:
            self._encode()
        if self._count == self._per_shard:
            self._write()

    def finish(self) -> None:
        """Write what does not fill a shard."""
        if self._batch:
            self._encode()
        if self._count:
            self._write()

    def _encode(self) -> None:
        keys = [key for key, _ in self._batch]
        streams = build.encode(self._store.encoder, self._kind, [c for _, c in self._batch])
        self._batch = []
        if self._codecs or not self._store._int8:
            self._packed.append(build.pack(keys, streams, self._codecs))
        else:
            self._raw.append((keys, streams))

    def _write(self) -> None:
        encoder = self._store.encoder
        if self._raw:
            self._store.write_codecs(
                self._kind, build.fit_codecs([streams for _, streams in self._raw])
            )
            self._codecs = self._store.codecs(self._kind)
            self._packed = [build.pack(k, streams, self._codecs) for k, streams in self._raw]
            self._raw = []
        shards = list_shards(self._directory)
        if not shards:
            write_json_atomic(self._directory / "fingerprint.json", encoder.fingerprint(self._kind))
            write_json_atomic(self._directory / "encoder.json", encoder.describe())
        write_shard(self._directory, next_number(shards), build.join(self._packed))
        self._packed, self._count = [], 0
