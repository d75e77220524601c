"""Shard files: immutable, checksummed, memory-mapped.

A shard is one safetensors file named `<number>-<first 16 hex digits of its sha256>.safetensors`.
One atomic rename publishes contents and checksum together, so a reader sees a whole shard or none.
"""

from __future__ import annotations

import json
import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from arbiter.errors import StoreError
from arbiter.files import file_digest, fsync_path, write_tensors

_DTYPES = {
    "U8": np.uint8, "I8": np.int8, "I16": np.int16, "I64": np.int64,
    "F16": np.float16, "F32": np.float32,
}  # fmt: skip


def write_shard(directory: Path, number: int, tensors: dict[str, np.ndarray]) -> Path:
    """Write a shard to a temporary name, force it to disk, then rename it into place."""
    temporary = directory / f".writing-{os.getpid()}-{number:05d}"
    try:
        write_tensors(save_file, tensors, temporary)
        fsync_path(temporary)
        path = directory / f"{number:05d}-{file_digest(temporary)[:16]}.safetensors"
        os.replace(temporary, path)
    finally:
        # On a disk turned read-only this fails as well, and must not hide why.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    fsync_path(directory)
    return path


def list_shards(directory: Path) -> list[Path]:
    """The published shards, in order of their number."""
    return sorted(directory.glob("[0-9]*-*.safetensors"))


def next_number(shards: list[Path]) -> int:
    """The lowest number that no shard has: a rebuilt shard takes the place of the lost one."""
    taken = {int(path.name.split("-")[0]) for path in shards}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def shard_is_intact(path: Path) -> bool:
    """Whether a shard's contents are still those that its name promises; reads all of it."""
    return path.stem.split("-")[1] == file_digest(path)[:16]


def shard_is_whole(path: Path) -> bool:
    """Whether a shard has the length that its header promises; reads the header only."""
    try:
        return path.stat().st_size == read_header(path)[1]
    except StoreError:
        return False


def read_header(path: Path) -> tuple[dict[str, dict], int]:
    """The tensors' descriptions, with offsets into the file, and the length of the file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        # A damaged length must not make us read the whole file as a header.
        text = file.read(length) if length < 2**20 else b""
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        start = 8 + length
        for entry in header.values():
            entry["data_offsets"] = [start + offset for offset in entry["data_offsets"]]
        end = max(entry["data_offsets"][1] for entry in header.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreError(
            f"features: {path} has a damaged header; python -m experiments.features verify=true"
        ) from None
    return header, end


class MappedShard:
    """A shard's tensors, backed by the file: pages are read when they are touched.

    Attributes:
        tensors: by name.
    """

    def __init__(self, path: Path):
        header, end = read_header(path)
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < end:
                raise StoreError(
                    f"features: {path} is cut short; python -m experiments.features verify=true"
                )
            # Copy-on-write only because torch wants writable memory; nothing is ever written.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.tensors = {
            name: torch.from_numpy(
                np.frombuffer(
                    self._map,
                    _DTYPES[entry["dtype"]],
                    int(np.prod(entry["shape"])),
                    entry["data_offsets"][0],
                ).reshape(entry["shape"])
            )
            for name, entry in header.items()
        }

    def release(self) -> None:
        """Give back the memory of pages that were read; they are read again when needed."""
        # Where there is no madvise (Windows), the system trims mapped files by itself.
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
