"""Shard files: immutable, checksummed, memory-mapped.

A shard is one safetensors file named `<number>-<first 16 hex digits of its sha256>.safetensors`.
One atomic rename publishes contents and checksum together, so a reader sees a whole shard or none.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from arbiter.files import file_digest, fsync_path


def write_shard(directory: Path, number: int, tensors: dict[str, np.ndarray]) -> Path:
    """Write a shard to a temporary name, force it to disk, then rename it into place."""
    temporary = directory / f".writing-{os.getpid()}-{number:05d}"
    try:
        save_file(tensors, temporary)
        fsync_path(temporary)
        path = directory / f"{number:05d}-{file_digest(temporary)[:16]}.safetensors"
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(directory)
    return path


def list_shards(directory: Path) -> list[Path]:
    """The published shards, in order of their number."""
    return sorted(directory.glob("[0-9]*-*.safetensors"))


def shard_is_intact(path: Path) -> bool:
    """Whether a shard's contents are still those that its name promises."""
    return path.stem.split("-")[1] == file_digest(path)[:16]


def map_shard(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a shard, backed by the file: pages are read when they are touched."""
    with safe_open(path, framework="pt") as shard:
        return {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
