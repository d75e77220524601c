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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from arbiter import files, media
from arbiter.encoders.base import Encoder
from arbiter.errors import StoreError
from arbiter.features import build
from arbiter.features.codec import Int8Codec
from arbiter.features.joint_build import Found, encode_together, one_builder, rounds
from arbiter.features.key_memo import KeyMemo
from arbiter.features.prefetch import map_ahead
from arbiter.features.shard_writer import ShardWriter, codec_files, read_codecs
from arbiter.features.shards import MappedShard, list_shards, shard_is_intact, shard_is_whole
from arbiter.features.table import FeatureTable
from arbiter.hardware.distributed import ALONE, Ranks

log = logging.getLogger(__name__)

# Reading 1 GB to check it takes a second or two. Larger tables are checked in full on request
# (`experiments.features verify=true`), and by their shards' lengths otherwise.
VERIFY_BYTES = 10**9

Progress = Callable[[str, int, int], None]
"""Called with (content kind, contents done, contents to look at)."""

PreparedItems = Iterator[build.Prepared]


class FeatureStore:
    """All tables of one encoder below `root`; safe for several processes at once.

    Args:
        root: the folder shared by all runs.
        encoder: makes what is missing.
        batch_size: contents per call of the encoder.
        progress: told how a build gets on.
        decode_threads: decode and prepare contents ahead of the encoder; 0 for none.
        ranks: the processes that build together; each calls with the same references.
    """

    def __init__(
        self,
        root: Path,
        encoder: Encoder,
        batch_size: int = 64,
        progress: Progress | None = None,
        decode_threads: int = 2,
        ranks: Ranks = ALONE,
    ):
        self.root = root
        self.encoder = encoder
        self._int8 = encoder.config.cache_dtype == "int8"
        self._batch_size, self._decode_threads = batch_size, decode_threads
        self._ranks = ranks
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
        return read_codecs(self.directory(kind)) if self._int8 else {}

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
        directory, ranks = self.directory(kind), self._ranks
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "last_used").touch()
            memo = KeyMemo(self.root / "image_keys.json") if kind == "image" else None
            keys = [self._remembered(kind, ref, memo) for ref in refs]
            # With everything there, no lock is taken: nobody waits for another's long build.
            if ranks.share(ranks.first and not self._complete(kind, keys)):
                with one_builder(directory / ".lock", ranks):
                    if ranks.first:
                        self._clear_up(kind)
                    self._build(kind, refs, keys, memo)
            table = self.open(kind)
        except OSError as error:
            raise StoreError(
                f"features: cannot write {directory}: {error.strerror}; "
                "free space there or set paths.features to another folder"
            ) from error
        return table, table.index(self._agreed(keys))

    def _agreed(self, keys: list[bytes]) -> list[bytes]:
        """The first process's keys; the others' files may just have been too fresh to tell."""
        if self._ranks.size == 1:
            return keys
        joined = self._ranks.share_bytes(b"".join(keys) if self._ranks.first else b"")
        return [joined[start : start + 32] for start in range(0, len(joined), 32)]

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
        ranks, batch_size = self._ranks, self._batch_size
        known = self.open(kind).rows if ranks.first else {}
        todo = ranks.share([i for i, key in enumerate(keys) if key not in known])
        known = known if ranks.first else self.open(kind).rows
        own = [i for _, share in rounds(todo, batch_size, ranks) for i in share]
        threads = 0 if kind == "text" else self._decode_threads
        # Enough to fill the next batch while this one is encoded.
        ahead = batch_size + threads
        prepared = map_ahead(
            lambda i: build.prepare(self.encoder, kind, refs[i], known), own, threads, ahead
        )
        writer = ShardWriter(self.directory(kind), self.encoder, kind, batch_size, self._int8)
        add = self._encode_alone if ranks.size == 1 else self._encode_together
        try:
            for done, found in enumerate(add(kind, todo, prepared, writer), 1):
                keys[found.position] = found.key
                if memo is not None and isinstance(refs[found.position], Path):
                    memo.put(refs[found.position], found.before, found.key)
                if done == len(todo) and ranks.first:
                    writer.finish()
                self._progress(kind, done, len(todo))
        finally:
            prepared.close()
            if memo is not None and ranks.first:
                memo.save()
        # The files are there for all to read.
        ranks.share()

    def _encode_alone(
        self, kind: str, todo: Sequence[int], prepared: PreparedItems, writer: ShardWriter
    ) -> Iterator[Found]:
        """Encode what is new among the references, one after the other."""
        begun: set[bytes] = set()
        for position, item in zip(todo, prepared, strict=True):
            if item.content is not None and item.key not in begun:
                begun.add(item.key)
                writer.add(item.key, item.content)
            yield Found(position, item.key, item.before)

    def _encode_together(
        self, kind: str, todo: Sequence[int], prepared: PreparedItems, writer: ShardWriter
    ) -> Iterator[Found]:
        """The same, shared out among the processes."""
        encode = partial(build.encode, self.encoder, kind)
        per_shard = build.items_per_shard(self.encoder.spec[kind])
        together = encode_together(todo, prepared, encode, self._batch_size, per_shard, self._ranks)
        for found, parts in together:
            for keys, streams in parts:
                writer.put(keys, streams)
            yield from found

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


def damaged_files(directory: Path, int8: bool, verify: bool = False) -> list[Path]:
    """Files of a table that are not what they were when written.

    Args:
        directory: of the table.
        int8: whether it needs a codec.
        verify: check every byte, however much there is.
    """
    shards, codecs = list_shards(directory), codec_files(directory)
    # Without their codec, int8 shards mean nothing.
    if shards and int8 and not (codecs and all(map(shard_is_intact, codecs))):
        return [*codecs, *shards]
    full = verify or sum(path.stat().st_size for path in shards) < VERIFY_BYTES
    check = shard_is_intact if full else shard_is_whole
    return [path for path in shards if not check(path)]
