"""Writing files so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from safetensors import SafetensorError

from arbiter.errors import RunError, first_line
from arbiter.strict_json import read_json

MANIFEST, CARD = "MANIFEST.json", "README.md"
_MANIFEST_BYTES = 1 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_TEMPORARY, _REPLACED = ".writing", ".replaced"

_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or ask for a larger quota",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that can be written, or change its permissions",
    errno.EPERM: "choose a folder that can be written, or change its permissions",
    errno.EIO: "check the disk",
    errno.ENAMETOOLONG: "choose a shorter name",
}

# How Rust shows an error of the system: for programmers, and for people.
_OS_ERROR = re.compile(r"(?:Os \{ code: |\(os error )(\d+)")


def disk_problem(error: OSError, where: Path | str | None = None) -> str | None:
    """One line for an error that lies with the disk or its permissions: where, what, what to do.

    Args:
        error: as the system raised it.
        where: named if the error names no file.

    Returns:
        None for any other error, such as a missing file: that is a bug, and keeps its traceback.
    """
    remedy = _REMEDIES.get(error.errno)
    if remedy is None:
        return None
    return f"{error.filename or where or 'the disk'}: {os.strerror(error.errno)}; {remedy}"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system inside the block name `path`, as those of a write to an open file don't.

    Those of safetensors, which come as another type, become what they are.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    except SafetensorError as error:
        code = _OS_ERROR.search(str(error))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def write_tensors(save: Callable[[dict, Path], None], tensors: dict, path: Path) -> None:
    """Write a safetensors file with `save`, the `save_file` of torch's or numpy's flavour.

    Raises:
        OSError: naming the file.
    """
    with naming(path):
        save(tensors, path)


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fsync_path(path: Path) -> None:
    """Force a file, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_text(path: Path) -> Iterator[TextIO]:
    """A text file that appears at `path` in one step, when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        with naming(path):
            with temporary.open("w", encoding="utf-8") as file:
                yield file
            fsync_path(temporary)
            os.replace(temporary, path)
    finally:
        # On a disk turned read-only this fails as well, and must not hide why.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text_atomic(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    with atomic_text(path) as file:
        file.write(text)


def write_json_atomic(path: Path, value: Any) -> None:
    """Replace a JSON file in one step; NaN and infinities are refused, as JSON has none."""
    write_text_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_manifest(directory: Path) -> None:
    """List the sha256 of every file in a directory in its MANIFEST.json, and force all to disk.

    Not that of its README.md: it is for people, who edit it, and nothing depends on it.
    """
    files = sorted(p for p in directory.iterdir() if p.is_file() and p.name != MANIFEST)
    for path in files:
        fsync_path(path)
    digests = {path.name: file_digest(path) for path in files if path.name != CARD}
    write_json_atomic(directory / MANIFEST, digests)
    fsync_path(directory)


def verified_files(directory: Path) -> frozenset[str]:
    """The names that a directory's MANIFEST.json lists, each one a whole file of that directory.

    Directories may come from strangers: a manifest names files of its own directory only, and a
    file is no link to somewhere else. README.md is listed if it is there, whatever it holds.

    Raises:
        RunError: what is wrong; the directory is not named in it.
    """
    try:
        listed = read_json(directory / MANIFEST, _MANIFEST_BYTES)
    except FileNotFoundError:
        raise RunError(f"{MANIFEST} is missing") from None
    except (ValueError, OSError) as error:
        raise RunError(f"{MANIFEST} is damaged ({first_line(error)})") from None
    if not isinstance(listed, dict):
        raise RunError(f"{MANIFEST} is damaged (not an object)")
    for name in listed:
        if not _FILE_NAME.fullmatch(name):
            raise RunError(f"{MANIFEST} names {name[:60]!r}, which is no file of this directory")
        if not (directory / name).is_file() and name != CARD:
            raise RunError(f"{name} is missing")
    # Manifests of former versions list the card, those of this one do not.
    card = {CARD} if (directory / CARD).is_file() else set()
    present = (listed.keys() - {CARD}) | card
    for name in sorted(present):
        path = directory / name
        if not _belongs(path, directory):
            raise RunError(f"{name} is a link out of the directory; put the file itself there")
        if name != CARD and file_digest(path) != listed[name]:
            raise RunError(f"{name} is damaged: its sha256 is not the one in {MANIFEST}")
    return frozenset(present)


def _belongs(path: Path, directory: Path) -> bool:
    """Whether a file lies in a directory; those of the hub's cache are links to its blobs."""
    directory, target = directory.resolve(), path.resolve()
    homes = [directory]
    if directory.parent.name == "snapshots":
        homes.append(directory.parent.parent / "blobs")
    return any(target.parent == home for home in homes)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory that appears at `path` in one step, complete with its manifest.

    The block fills the temporary directory it is given; an error inside leaves `path` as it was.
    A kill while an old directory is replaced leaves one of the two, if need be aside, where
    `remove_leftovers` finds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    aside = path.with_name(f".{path.name}{_REPLACED}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        write_manifest(temporary)
        _settle(aside, path)
        with suppress(FileNotFoundError):
            os.replace(path, aside)
        os.replace(temporary, path)
        fsync_path(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        # On a disk turned read-only this fails as well, and must not hide why.
        with suppress(OSError):
            _settle(aside, path)


def _settle(aside: Path, path: Path) -> None:
    """Put back a directory that was moved aside to be replaced, unless the new one is there."""
    if not aside.exists():
        return
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.replace(aside, path)


def holds_replaced(directory: Path) -> bool:
    """Whether something in a directory is being replaced, or was when a kill came."""
    return any(directory.glob(f".*{_REPLACED}"))


def remove_leftovers(directory: Path) -> None:
    """Remove what killed writers left in a directory that nobody writes to now.

    What one of them was just replacing is put back.
    """
    for path in directory.glob(f".*{_TEMPORARY}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for aside in directory.glob(f".*{_REPLACED}"):
        _settle(aside, directory / aside.name.removeprefix(".").removesuffix(_REPLACED))
