"""Runs that are killed, signalled or starved of disk end as runs that were left alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (hasattr(os, "fork") and Path("/proc/self/fd").exists()), reason="needs fork and /proc"
)


def outcome(folder: Path, *tasks: str, prefix: tuple[str, ...] = ()) -> dict:
    """What the driver says of its tasks."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.apps.interrupted_runs", str(folder), *tasks],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> dict:
    return outcome(tmp_path_factory.mktemp("runs"), "kill:0:3", "full:61", "signals")


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
    result = outcome(tmp_path, "small", prefix=("unshare", "-rm", "sh", "-c", mount, "sh"))
    assert isinstance(result["small"], int), result["small"]
    assert result["small"] >= 5


@pytest.mark.slow
def test_twenty_four_killed_runs(tmp_path):
    result = outcome(tmp_path, "kill:1:24")["kill"]
    assert isinstance(result, int), result
    assert result >= 60


@pytest.mark.slow
def test_a_disk_full_from_every_operation_on(tmp_path):
    result = outcome(tmp_path, "full:1")["full"]
    assert isinstance(result, int), result
    assert result >= 100
