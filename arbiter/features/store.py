"""The feature store: every distinct content is encoded once per encoder and kept for all runs.

One table per content kind and encoder fingerprint:

    <root>/<kind>-<fingerprint>/
        fingerprint.json       what the features depend on, for people
        codec.safetensors      the channel scales, written before the first shard
        00000-<sha256>.safetensors ...

Content keys address rows, so a changed encoder or a changed pixel can never meet an old feature.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from safetensors.numpy import load_file, save_file

from arbiter.encoders.base import Encoder, StreamSpec, Tokens
from arbiter.errors import StoreError
from arbiter.features.codec import Int8Codec
from arbiter.features.ragged import owners, spans
from arbiter.features.shards import list_shards, map_shard, shard_is_intact, write_shard
from arbiter.files import fsync_path, write_json_atomic

log = logging.getLogger(__name__)

_SHARD_BYTES = 64 * 2**20


class StreamReader:
    """Gathers of one ragged stream over all shards of a table.

    Attributes:
        counts: int64 [rows], tokens of each row.
    """

    def __init__(self, name: str, spec: StreamSpec, shards: list[dict], codec: Int8Codec | None):
        self.spec = spec
        self._values = [shard[f"{name}.values"] for shard in shards]
        self._scales = [shard.get(f"{name}.scales") for shard in shards]
        self._positions = [shard.get(f"{name}.positions") for shard in shards]
        self._channel_scale = None if codec is None else torch.from_numpy(codec.channel_scale)
        offsets = [shard[f"{name}.offsets"] for shard in shards]
        empty = torch.zeros(0, dtype=torch.int64)
        self.counts = torch.cat([o.diff() for o in offsets] or [empty])
        self._starts = torch.cat([o[:-1] for o in offsets] or [empty])
        self._shard = torch.cat(
            [torch.full((len(o) - 1,), i) for i, o in enumerate(offsets)] or [empty]
        )

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All tokens of `rows` int64 [R], one row after another.

        Returns:
            values float32 [N, D] and positions int64 [N, axes] (None without a grid), where
            N = counts[rows].sum().
        """
        counts = self.counts[rows]
        source = spans(self._starts[rows], counts)
        shard_of = self._shard[rows][owners(counts)]
        values = torch.empty(len(source), self.spec.dim)
        positions = None
        if self.spec.grid:
            positions = torch.empty(len(source), len(self.spec.grid), dtype=torch.int64)
        for index in shard_of.unique().tolist():
            chosen = (shard_of == index).nonzero().squeeze(1)
            tokens = source[chosen]
            part = self._values[index][tokens].float()
            if self._channel_scale is not None:
                part *= self._scales[index][tokens, None] * self._channel_scale
            values[chosen] = part
            if positions is not None:
                positions[chosen] = self._positions[index][tokens].long()
        return values, positions


class FeatureTable:
    """The features of one content kind, as they were when the table was opened.

    Attributes:
        rows: content key -> row.
        streams: readers by stream name.
    """

    def __init__(
        self,
        specs: dict[str, StreamSpec],
        shards: list[dict[str, torch.Tensor]],
        codecs: dict[str, Int8Codec],
    ):
        keys = [key.tobytes() for shard in shards for key in shard["keys"].numpy()]
        self.rows = {key: row for row, key in enumerate(keys)}
        self.streams = {
            name: StreamReader(name, spec, shards, codecs.get(name)) for name, spec in specs.items()
        }

    def index(self, keys: Sequence[bytes]) -> torch.Tensor:
        """The row of each content key, int64."""
        return torch.tensor([self.rows[key] for key in keys], dtype=torch.int64)


Progress = Callable[[str, int, int], None]
"""Called with (content kind, contents encoded, contents to encode)."""


class FeatureStore:
    """All tables of one encoder below `root`; safe for several processes at once.

    Args:
        root: the folder shared by all runs.
        encoder: makes what is missing.
        batch_size: contents per call of the encoder.
        progress: told how a build gets on.
    """

    def __init__(
        self, root: Path, encoder: Encoder, batch_size: int = 64, progress: Progress | None = None
    ):
        self.root = root
        self.encoder = encoder
        self._int8 = encoder.config.cache_dtype == "int8"
        self._batch_size = batch_size
        self._progress = progress or (lambda kind, done, total: None)

    def directory(self, kind: str) -> Path:
        """Where the table of a content kind lives."""
        canonical = json.dumps(self.encoder.fingerprint(kind), sort_keys=True)
        return self.root / f"{kind}-{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"

    def open(self, kind: str) -> FeatureTable:
        """The table of a content kind as it is now."""
        shards = [map_shard(path) for path in list_shards(self.directory(kind))]
        return FeatureTable(self.encoder.spec[kind], shards, self.codecs(kind))

    def codecs(self, kind: str) -> dict[str, Int8Codec]:
        """The codecs of a table, by stream; empty for float16 or while nothing is stored."""
        path = self.directory(kind) / "codec.safetensors"
        if not self._int8 or not path.exists():
            return {}
        return {name: Int8Codec(scale) for name, scale in load_file(path).items()}

    def fingerprint(self, kinds: Sequence[str]) -> str:
        """One name for the features of these kinds, codecs included, as a sha256 in hex."""
        digest = hashlib.sha256()
        for kind in sorted(kinds):
            digest.update(self.directory(kind).name.encode())
            for name, codec in sorted(self.codecs(kind).items()):
                digest.update(name.encode() + codec.channel_scale.tobytes())
        return digest.hexdigest()

    def ensure(
        self, kind: str, keys: Sequence[bytes], load: Callable[[int], object]
    ) -> FeatureTable:
        """Encode what is missing and return the table.

        A table has one builder at a time; a second process waits, then finds the work done.
        Shards are filled in the order of `keys`, so an interrupted build goes on to the same files.

        Args:
            kind: 'text', 'image' or 'audio'.
            keys: content keys, which may repeat.
            load: decodes the content of `keys[i]`; called for missing ones only.

        Raises:
            StoreError: the directory cannot be written.
        """
        directory = self.directory(kind)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with FileLock(directory / ".lock"):
                self._drop_damaged(directory)
                known = self.open(kind).rows
                missing = [i for key, i in _first_positions(keys).items() if key not in known]
                if missing:
                    write_json_atomic(
                        directory / "fingerprint.json", self.encoder.fingerprint(kind)
                    )
                per_shard = items_per_shard(self.encoder.spec[kind])
                for start in range(0, len(missing), per_shard):
                    chosen = missing[start : start + per_shard]
                    streams = encode(self.encoder, kind, chosen, load, self._batch_size)
                    codecs = self._fit_codecs(kind, streams) if self._int8 else {}
                    shards = list_shards(directory)
                    number = int(shards[-1].name.split("-")[0]) + 1 if shards else 0
                    write_shard(directory, number, pack([keys[i] for i in chosen], streams, codecs))
                    self._progress(kind, start + len(chosen), len(missing))
        except OSError as error:
            raise StoreError(
                f"features: cannot write {directory}: {error.strerror}; "
                "free space there or set paths.features to another folder"
            ) from error
        return self.open(kind)

    def _drop_damaged(self, directory: Path) -> None:
        for path in list_shards(directory):
            if not shard_is_intact(path):
                log.warning("features: %s is damaged; its contents are encoded anew", path)
                path.unlink()

    def _fit_codecs(self, kind: str, streams: dict[str, Tokens]) -> dict[str, Int8Codec]:
        """The table's codecs; those of a new table are fitted on its first shard."""
        path = self.directory(kind) / "codec.safetensors"
        if not path.exists():
            fitted = {name: Int8Codec.fit(tokens.values) for name, tokens in streams.items()}
            temporary = path.with_name(f".codec-{os.getpid()}")
            save_file({name: codec.channel_scale for name, codec in fitted.items()}, temporary)
            fsync_path(temporary)
            os.replace(temporary, path)
        return self.codecs(kind)


class MemoryStore:
    """Features of a few contents, made on the spot and kept nowhere: how an engine answers.

    Args:
        encoder: makes all of it.
        codecs: content kind -> stream -> the codec that the model was trained behind; the same
            rounding is applied, so a decision on stored and on fresh features is the same.
    """

    def __init__(self, encoder: Encoder, codecs: dict[str, dict[str, Int8Codec]]):
        self.encoder = encoder
        self._codecs = codecs

    def ensure(
        self, kind: str, keys: Sequence[bytes], load: Callable[[int], object]
    ) -> FeatureTable:
        """Encode each distinct content once; see `FeatureStore.ensure`."""
        first = _first_positions(keys)
        codecs = self._codecs.get(kind, {})
        shards = []
        if first:
            streams = encode(self.encoder, kind, list(first.values()), load, len(first))
            packed = pack(list(first), streams, codecs)
            shards = [{name: torch.from_numpy(array) for name, array in packed.items()}]
        return FeatureTable(self.encoder.spec[kind], shards, codecs)


def items_per_shard(specs: dict[str, StreamSpec]) -> int:
    """Contents per shard, so that a full shard of int8 tokens takes about 64 MiB."""
    item_bytes = sum(spec.dim * int(np.prod(spec.grid)) for spec in specs.values())
    return int(np.clip(_SHARD_BYTES // item_bytes, 16, 16384))


def encode(
    encoder: Encoder,
    kind: str,
    chosen: Sequence[int],
    load: Callable[[int], object],
    batch_size: int,
) -> dict[str, Tokens]:
    """Load and encode the contents `chosen`, a batch at a time, joined by stream."""
    encode_batch = getattr(encoder, f"encode_{kind}")
    batches = [
        encode_batch([load(i) for i in chosen[start : start + batch_size]])
        for start in range(0, len(chosen), batch_size)
    ]
    return {name: _join([batch[name] for batch in batches]) for name in batches[0]}


def pack(
    keys: Sequence[bytes], streams: dict[str, Tokens], codecs: dict[str, Int8Codec]
) -> dict[str, np.ndarray]:
    """The tensors of one shard: int8 with scales where there is a codec, else float16."""
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


def _first_positions(keys: Sequence[bytes]) -> dict[bytes, int]:
    positions: dict[bytes, int] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, position)
    return positions


def _join(parts: list[Tokens]) -> Tokens:
    positions = None
    if parts[0].positions is not None:
        positions = np.concatenate([part.positions for part in parts])
    return Tokens(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.counts for part in parts]),
        positions,
    )
