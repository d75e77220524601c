"""Errors of the disk keep their name; what is replaced is there before, after and in between."""

import errno
import os
import shutil
from itertools import count

import pytest
from safetensors import SafetensorError

from arbiter import files
from arbiter.files import (
    disk_problem,
    holds_replaced,
    naming,
    new_directory,
    remove_leftovers,
    verified_files,
)


@pytest.mark.parametrize(
    "text",
    [
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "..." })',
        "Error while serializing: I/O error: No space left on device (os error 28)",
    ],
)
def test_a_disk_error_of_safetensors_is_one_of_the_system(tmp_path, text):
    with pytest.raises(OSError) as caught, naming(tmp_path / "x"):
        raise SafetensorError(text)
    assert caught.value.errno == errno.ENOSPC
    assert disk_problem(caught.value).startswith(f"{tmp_path / 'x'}: No space left on device")


def test_other_errors_of_safetensors_stay_what_they_are(tmp_path):
    with pytest.raises(SafetensorError), naming(tmp_path / "x"):
        raise SafetensorError("Error while serializing: invalid shape")


def write(path, text):
    with new_directory(path) as directory:
        (directory / "text").write_text(text)


class Killed(BaseException):
    """The process is no more: nothing that it does from here on has an effect."""


def die_at(monkeypatch, number):
    """Be killed at the file operation of this number; of a tree, one file is removed by then."""
    operations = count()

    def mortal(operation):
        def run(path, *arguments, **options):
            if next(operations) < number:
                return operation(path, *arguments, **options)
            if operation is rmtree and next(operations) == number + 1:
                next(path.glob("*"), path / "none").unlink(missing_ok=True)
            raise Killed

        return run

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", mortal(shutil.rmtree))
    monkeypatch.setattr(os, "replace", mortal(os.replace))
    monkeypatch.setattr(files, "fsync_path", mortal(files.fsync_path))


@pytest.mark.parametrize("number", range(11))
def test_a_kill_while_a_directory_is_replaced_loses_neither(tmp_path, monkeypatch, number):
    path = tmp_path / "model"
    write(path, "old")
    with monkeypatch.context() as patch:
        die_at(patch, number)
        killed = True
        try:
            write(path, "new")
            killed = False
        except Killed:
            pass
    assert killed == (number < 10)
    assert path.exists() or holds_replaced(tmp_path)
    remove_leftovers(tmp_path)
    assert verified_files(path) == {"text"}
    assert (path / "text").read_text() in ("old", "new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    path, replace = tmp_path / "model", os.replace
    write(path, "old")

    def full(source, target):
        if target == path and "writing" in source.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write(path, "new")
    assert (path / "text").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
