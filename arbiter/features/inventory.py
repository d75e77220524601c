"""What a feature store holds, whether it is sound, and making room in it."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from arbiter.errors import StoreError
from arbiter.features.shards import list_shards, read_header, shard_is_whole
from arbiter.features.store import damaged_files

_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class TableInfo:
    """One table of a store.

    Attributes:
        directory: where it lies; its name is '<kind>-<fingerprint>'.
        kind: 'text', 'image' or 'audio'.
        encoder: 'raw' or 'openclip'.
        model: what the encoder was called, e.g. 'ViT-B-16-SigLIP'; the encoder's name for others.
        dtype: 'int8' or 'float16'.
        contents: stored, in shards that are whole.
        size_mb: on disk, in 10^6 bytes.
        idle_days: since a run last used it.
    """

    directory: Path
    kind: str
    encoder: str
    model: str
    dtype: str
    contents: int
    size_mb: float
    idle_days: float

    def matches(self, encoder: str) -> bool:
        """Whether a person may mean this table by `encoder`."""
        return encoder in (self.encoder, self.model, self.directory.name)


def list_tables(root: Path) -> list[TableInfo]:
    """Every table below a store's root, the largest first; those without a shard are left out."""
    paths = [path.parent for path in root.glob("*/fingerprint.json")]
    return sorted(map(_read, paths), key=lambda table: -table.size_mb)


def _read(directory: Path) -> TableInfo:
    fingerprint = json.loads((directory / "fingerprint.json").read_text(encoding="utf-8"))
    described = json.loads((directory / "encoder.json").read_text(encoding="utf-8"))
    whole = [path for path in list_shards(directory) if shard_is_whole(path)]
    return TableInfo(
        directory=directory,
        kind=fingerprint["kind"],
        encoder=described["name"],
        model=described.get("model", described["name"]),
        dtype=fingerprint["dtype"],
        contents=sum(read_header(path)[0]["keys"]["shape"][0] for path in whole),
        size_mb=sum(path.stat().st_size for path in directory.iterdir()) / 1e6,
        idle_days=(time.time() - (directory / "last_used").stat().st_mtime) / _DAY_SECONDS,
    )


def verify(table: TableInfo) -> list[str]:
    """Check every byte of a table. Damaged files are removed, so that the next run makes them anew.

    Returns:
        the names of the damaged files.

    Raises:
        StoreError: another process is building it.
    """
    with _locked(table.directory):
        damaged = damaged_files(table.directory, table.dtype == "int8", verify=True)
        for path in damaged:
            path.unlink()
    return [path.name for path in damaged]


def remove(table: TableInfo) -> None:
    """Delete a table.

    Raises:
        StoreError: another process is building it.
    """
    with _locked(table.directory):
        shutil.rmtree(table.directory)


def _locked(directory: Path) -> FileLock:
    lock = FileLock(directory / ".lock", timeout=0)
    try:
        return lock.acquire()
    except Timeout:
        raise StoreError(f"features: {directory} is being built; wait until that is done") from None
