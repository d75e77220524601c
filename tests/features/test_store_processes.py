"""Builds that are killed at any moment, and builds at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arbiter.features import build
from tests.features.builds import CONTENTS, run
from tests.features.helpers import stored_files

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


def start(*arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.features.builds", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> int:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return int(out)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_SHARD_BYTES", build._SHARD_BYTES)  # restores what `run` sets
        assert run(root) == CONTENTS
    return stored_files(root)


def test_a_killed_build_goes_on_to_the_same_bytes(tmp_path, uninterrupted):
    kills = finish(start("kill", tmp_path / "killed", 7))
    assert kills >= 3
    assert stored_files(tmp_path / "killed") == uninterrupted
    assert not list((tmp_path / "killed").glob("*/.writing-*"))


def test_two_builds_at_once_share_the_work(tmp_path, uninterrupted):
    processes = [start("plain", tmp_path) for _ in range(2)]
    assert sum(map(finish, processes)) == CONTENTS
    assert stored_files(tmp_path) == uninterrupted
