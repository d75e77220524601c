"""Remembering the content keys of image files, so that unchanged ones are not decoded again.

An entry holds as long as the file's size, times, inode and device do. A file that was changed only
moments before it was read gets no entry: a second change within the clock's grain would not show.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import PIL
from filelock import FileLock

from arbiter.files import write_text_atomic

# How decoded pixels come about; changing `load_image` must change this.
_DECODER = f"2, pillow {PIL.__version__}"
_GRAIN_SECONDS = 2.5

Stamp = tuple[int, int, int, int, int]


def stamp(path: Path) -> Stamp | None:
    """What a file's state is recognised by; None when it cannot be read or is too fresh to tell.

    The time of the last change of the inode is part of it: a copy that keeps the modification
    time of what it replaces shows in that.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    if time.time() - max(found.st_mtime, found.st_ctime) < _GRAIN_SECONDS:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


class KeyMemo:
    """Content keys of files, kept in one JSON file; processes add to it in turn."""

    def __init__(self, path: Path):
        self._path = path
        self._known = self._read()
        self._new: dict[str, list] = {}

    def get(self, path: Path) -> bytes | None:
        """The key of a file that is certainly unchanged, or None."""
        entry = self._known.get(os.path.abspath(path))
        if entry is None:
            return None
        found = stamp(path)
        return bytes.fromhex(entry[0]) if found is not None and list(found) == entry[1] else None

    def put(self, path: Path, before: Stamp | None, key: bytes) -> None:
        """Remember a key. `before` is the stamp taken before the file was read."""
        if before is not None:
            self._new[os.path.abspath(path)] = [key.hex(), list(before)]

    def save(self) -> None:
        """Write what is new, beside what other processes wrote meanwhile."""
        if not self._new:
            return
        with FileLock(self._path.with_name(f".{self._path.name}.lock")):
            self._known = {**self._read(), **self._new}
            whole = {"decoder": _DECODER, "files": self._known}
            write_text_atomic(self._path, json.dumps(whole, separators=(",", ":")))
        self._new = {}

    def _read(self) -> dict[str, list]:
        # Only a memory of work done: without it, or with one from another decoder, work is redone.
        try:
            whole = json.loads(self._path.read_text(encoding="utf-8"))
            return whole["files"] if whole["decoder"] == _DECODER else {}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}
