"""Neighbours of texts, kept beside the text features that they were found among.

    <text table>/foils-<digest of what they depend on>-<sha256 of the file>.safetensors

One atomic rename publishes a file under a name that its contents must match. The folder is the
text table's, so whoever removes the features removes what is known about them.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import load, save

from arbiter.errors import StoreError
from arbiter.files import fsync_path

log = logging.getLogger(__name__)


def read_or_make(directory: Path, digest: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The stored neighbours int32 [answers, width], made and stored first if there are none.

    One process makes them; others wait. A damaged file is replaced.

    Args:
        directory: of the text table.
        digest: names what the neighbours depend on.
        make: finds them.

    Raises:
        StoreError: the directory cannot be written.
    """
    try:
        found = _read(directory, digest)
        if found is None:
            with FileLock(directory / ".foils.lock"):
                # Another process may have made them meanwhile.
                found = _read(directory, digest)
                if found is None:
                    _clear_up(directory, digest)
                    found = make().int()
                    _write(directory, digest, found)
    except OSError as error:
        raise StoreError(
            f"foils: cannot write {directory}: {error.strerror}; "
            "free space there or set paths.features to another folder"
        ) from error
    return found


def _files(directory: Path, digest: str) -> list[Path]:
    return sorted(directory.glob(f"foils-{digest[:16]}-*.safetensors"))


def _read(directory: Path, digest: str) -> torch.Tensor | None:
    for path in _files(directory, digest):
        try:
            contents = path.read_bytes()
        except FileNotFoundError:  # another process is just replacing a damaged file
            continue
        if path.stem.split("-")[2] == hashlib.sha256(contents).hexdigest()[:16]:
            return load(contents)["neighbours"]
    return None


def _clear_up(directory: Path, digest: str) -> None:
    """Drop damaged files, and what killed processes left; only under the lock."""
    for path in _files(directory, digest):
        log.warning("foils: %s is damaged; its neighbours are found anew", path)
        path.unlink()
    for path in directory.glob(".foils-writing-*"):
        path.unlink()


def _write(directory: Path, digest: str, neighbours: torch.Tensor) -> None:
    contents = save({"neighbours": neighbours.contiguous()})
    temporary = directory / f".foils-writing-{os.getpid()}"
    try:
        temporary.write_bytes(contents)
        fsync_path(temporary)
        checksum = hashlib.sha256(contents).hexdigest()[:16]
        os.replace(temporary, directory / f"foils-{digest[:16]}-{checksum}.safetensors")
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(directory)
