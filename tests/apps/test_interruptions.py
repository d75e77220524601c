"""Runs that are killed, signalled or starved of disk end as runs that were left alone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.children import outcome

pytestmark = pytest.mark.skipif(
    not (hasattr(os, "fork") and Path("/proc/self/fd").exists()), reason="needs fork and /proc"
)


def runs(folder: Path, *tasks: str, prefix: tuple[str, ...] = ()) -> dict:
    """What the driver says of its tasks."""
    return outcome("tests.apps.interrupted_runs", folder, *tasks, prefix=prefix)


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> dict:
    return runs(tmp_path_factory.mktemp("runs"), "kill:0:3", "full:61", "signals")


def test_a_killed_run_ends_with_the_same_bytes(quick):
    """Three runs, each killed while building features, training, writing and finalising."""
    assert isinstance(quick["kill"], int), quick["kill"]
    assert quick["kill"] >= 6


def test_a_full_or_read_only_disk_is_one_line_and_loses_nothing(quick):
    assert isinstance(quick["full"], int), quick["full"]
    assert quick["full"] >= 3


def test_signals_end_a_run_politely(quick):
    """SIGTERM, SIGINT and SIGUSR1, while building features and while training."""
    assert quick["signals"] == 6


def may_mount() -> bool:
    return bool(shutil.which("unshare")) and not subprocess.call(
        ["unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"], stderr=subprocess.DEVNULL
    )


@pytest.mark.slow
def test_a_real_small_disk(tmp_path):
    if not may_mount():
        pytest.skip("mounting is not permitted here")
    disk = tmp_path / "small" / "disk"
    disk.mkdir(parents=True)
    mount = f'mount -t tmpfs -o size=200m tmpfs {disk} && exec "$@"'
    result = runs(tmp_path, "small", prefix=("unshare", "-rm", "sh", "-c", mount, "sh"))
    assert isinstance(result["small"], int), result["small"]
    assert result["small"] >= 5


@pytest.mark.slow
def test_twenty_four_killed_runs(tmp_path):
    result = runs(tmp_path, "kill:1:24")["kill"]
    assert isinstance(result, int), result
    assert result >= 60


@pytest.mark.slow
def test_a_disk_full_from_every_operation_on(tmp_path):
    result = runs(tmp_path, "full:1")["full"]
    assert isinstance(result, int), result
    assert result >= 100
