"""A build by several processes: each decodes and encodes its share, the first one writes.

In rounds: each process takes a batch of references in turn; what is new in the round is agreed on
by its keys, so that a picture under two names is encoded once; the tokens go to the first process,
which fills the shards in the order of the references. The files are those of a single process, so
the channel scales, too, do not depend on how many there were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from safetensors.numpy import load, save

from arbiter.encoders.base import Tokens
from arbiter.features.build import Prepared
from arbiter.features.key_memo import Stamp
from arbiter.hardware.distributed import Ranks

_STILL_WAITING_SECONDS = 10.0


class Found(NamedTuple):
    """What all processes know of one reference after its round.

    position: among the references.
    key: its content key.
    before: see `Prepared`.
    """

    position: int
    key: bytes
    before: Stamp | None


Encoded = tuple[list[bytes], dict[str, Tokens]]


def rounds(
    todo: Sequence[int], batch_size: int, ranks: Ranks
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The positions of each round, and this process's share of them.

    Shares are consecutive, so that in the order of ranks they are in the order of the references.
    """
    for start in range(0, len(todo), batch_size * ranks.size):
        positions = todo[start : start + batch_size * ranks.size]
        yield positions, positions[ranks.rank * batch_size :][:batch_size]


def encode_together(
    todo: Sequence[int],
    prepared: Iterator[Prepared],
    encode: Callable[[list[object]], dict[str, Tokens]],
    batch_size: int,
    per_shard: int,
    ranks: Ranks,
) -> Iterator[tuple[list[Found], list[Encoded]]]:
    """One item for each round: all its references, and at the first process what is new.

    Args:
        todo: positions of references, the same in all processes.
        prepared: this process's shares, in order.
        encode: one call of the encoder.
        batch_size: references of a share at most.
        per_shard: encoded parts do not cross multiples of this many new contents.
    """
    begun: set[bytes] = set()
    for positions, share in rounds(todo, batch_size, ranks):
        own = list(islice(prepared, len(share)))
        found, mine = _agree(positions, own, begun, ranks)
        contents = {item.key: item.content for item in reversed(own)}
        parts = [
            (keys, encode([contents[key] for key in keys])) for keys in _chunks(mine, per_shard)
        ]
        collected = ranks.collect_bytes(_to_bytes(parts))
        yield found, [part for data in collected for part in _from_bytes(data)]


def _agree(
    positions: Sequence[int], own: Sequence[Prepared], begun: set[bytes], ranks: Ranks
) -> tuple[list[Found], list[tuple[int, bytes]]]:
    """All references of a round, and what this process is to encode: numbers from 1, and keys.

    `begun` grows by the new contents of all processes.
    """
    told = [[item.key.hex(), item.before, item.content is None] for item in own]
    found: list[Found] = []
    mine: list[tuple[int, bytes]] = []
    for rank, share in enumerate(ranks.all_bytes(json.dumps(told).encode())):
        for name, before, stored in json.loads(share):
            key = bytes.fromhex(name)
            found.append(Found(positions[len(found)], key, before and tuple(before)))
            if stored or key in begun:
                continue
            begun.add(key)
            if rank == ranks.rank:
                mine.append((len(begun), key))
    return found, mine


def _chunks(numbered: Sequence[tuple[int, bytes]], per_shard: int) -> Iterator[list[bytes]]:
    """Keys, cut after each one whose number fills a shard."""
    chunk: list[bytes] = []
    for number, key in numbered:
        chunk.append(key)
        if number % per_shard == 0:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _to_bytes(parts: Sequence[Encoded]) -> bytes:
    tensors = {}
    for number, (keys, streams) in enumerate(parts):
        tensors[f"{number:04d}.keys"] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)
        for name, tokens in streams.items():
            for field, array in vars(tokens).items():
                if array is not None:
                    tensors[f"{number:04d}.{name}.{field}"] = np.ascontiguousarray(array)
    return save(tensors) if tensors else b""


def _from_bytes(data: bytes) -> list[Encoded]:
    parts: dict[str, tuple[list[bytes], dict[str, dict[str, np.ndarray]]]] = {}
    for path, array in sorted(load(data).items() if data else ()):
        number, *rest = path.split(".")
        keys, streams = parts.setdefault(number, ([], {}))
        if rest == ["keys"]:
            keys += [key.tobytes() for key in array]
        else:
            streams.setdefault(rest[0], {})[rest[1]] = array
    return [
        (keys, {name: Tokens(**fields) for name, fields in streams.items()})
        for keys, streams in parts.values()
    ]


@contextmanager
def one_builder(lock: Path, ranks: Ranks) -> Iterator[None]:
    """Hold a table's lock, which the first process takes for all.

    The others are told now and then that it still waits, as a build by others may take hours.
    """
    held = FileLock(lock)
    waiting = True
    while waiting:
        if ranks.first:
            with suppress(Timeout):
                held.acquire(timeout=-1 if ranks.size == 1 else _STILL_WAITING_SECONDS)
        waiting = ranks.share(ranks.first and not held.is_locked)
    try:
        yield
    finally:
        held.release()
