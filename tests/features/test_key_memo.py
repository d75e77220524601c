"""The memory of image files' keys: never wrong for a file that changed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from arbiter.features import key_memo
from arbiter.features.key_memo import KeyMemo, stamp

KEY = bytes(range(32))


@pytest.fixture
def at_once(monkeypatch):
    """Files count as settled as soon as they are written."""
    monkeypatch.setattr(key_memo, "_GRAIN_SECONDS", -1)


def remember(folder: Path, path: Path) -> None:
    memo = KeyMemo(folder / "keys.json")
    memo.put(path, stamp(path), KEY)
    memo.save()


def recall(folder: Path, path: Path) -> bytes | None:
    return KeyMemo(folder / "keys.json").get(path)


def test_an_unchanged_file_is_recalled(tmp_path, at_once):
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    remember(tmp_path, path)
    assert recall(tmp_path, path) == KEY
    assert recall(tmp_path, tmp_path / "b.png") is None


@pytest.mark.parametrize("change", ["longer", "rewritten", "times restored", "replaced", "removed"])
def test_a_changed_file_is_not(tmp_path, at_once, change):
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    remember(tmp_path, path)
    before = path.stat()
    time.sleep(0.02)  # more than a tick of the file system's clock
    if change == "removed":
        path.unlink()
    elif change == "replaced":
        (tmp_path / "other").write_bytes(b"two")
        os.utime(tmp_path / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(tmp_path / "other", path)
    else:
        path.write_bytes(b"longer" if change == "longer" else b"two")
        if change == "times restored":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert recall(tmp_path, path) is None


def test_a_file_that_was_just_written_is_not_remembered(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    remember(tmp_path, path)
    assert not (tmp_path / "keys.json").exists()


def test_two_processes_keep_each_other_s_entries(tmp_path, at_once):
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        path.write_bytes(b"one")
    memos = [KeyMemo(tmp_path / "keys.json") for _ in paths]
    for memo, path in zip(memos, paths, strict=True):
        memo.put(path, stamp(path), KEY)
    for memo in memos:
        memo.save()
    assert [recall(tmp_path, path) for path in paths] == [KEY, KEY]


def test_another_decoder_or_a_damaged_file_starts_afresh(tmp_path, at_once):
    path, keys = tmp_path / "a.png", tmp_path / "keys.json"
    path.write_bytes(b"one")
    remember(tmp_path, path)
    whole = json.loads(keys.read_text())
    keys.write_text(json.dumps({**whole, "decoder": "older"}))
    assert recall(tmp_path, path) is None
    keys.write_text("{")
    assert recall(tmp_path, path) is None
