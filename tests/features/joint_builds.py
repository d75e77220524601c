"""Builds by several processes. See `tests.joint`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from filelock import FileLock

from arbiter.errors import ArbiterError
from arbiter.features import build, joint_build
from arbiter.features.store import FeatureStore
from arbiter.hardware import distributed
from tests.features.helpers import CountingEncoder, picture, stored_files
from tests.joint import Processes, kill, run_tasks, until

# 40 contents under 54 references: repeats in one share, across shares and across rounds.
IMAGES = [*range(10), 3, *range(6, 40), *range(9)]
TEXTS = [f"text {number}" for number in range(37)]
BATCH = 3


def one_build(root: Path, ranks: distributed.Ranks, images: list = IMAGES) -> dict:
    """Images, then texts; how many of each were encoded here, and the rows of all references."""
    encoder = CountingEncoder()
    store = FeatureStore(root, encoder, BATCH, ranks=ranks)
    refs = [picture(i, size=32) if isinstance(i, int) else i for i in images]
    rows = [store.ensure("image", refs)[1].tolist(), store.ensure("text", TEXTS)[1].tolist()]
    return {"encoded": dict(encoder.encoded), "rows": rows, "files": len(stored_files(root))}


def built(folder: Path, size: int) -> list[dict]:
    """The same by several processes, of which each reports."""

    def task(rank: int) -> None:
        found = one_build(folder / "store", distributed.start())
        (folder / f"report-{rank}").write_text(json.dumps(found))

    Processes(folder, size, task).succeed()
    return [json.loads((folder / f"report-{rank}").read_text()) for rank in range(size)]


def once(folder: Path) -> None:
    """Two and three processes encode each content once, and write what one would."""
    alone = one_build(folder / "alone", distributed.ALONE)
    assert alone["encoded"] == {"image": 40, "text": 37}
    for size in (2, 3):
        reports = built(folder / str(size), size)
        for kind, count in alone["encoded"].items():
            shares = [report["encoded"].get(kind, 0) for report in reports]
            assert sum(shares) == count, shares
            assert all(share >= count // size - 2 * BATCH for share in shares), shares
        assert all(report["rows"] == alone["rows"] for report in reports)
        assert stored_files(folder / str(size) / "store") == stored_files(folder / "alone")
        # With everything there, nothing is encoded.
        again = built(folder / str(size), size)
        assert all(not report["encoded"] for report in again)


def killed(folder: Path) -> int:
    """A build that loses a process ends, and goes on from its last shard."""
    one_build(folder / "alone", distributed.ALONE)
    ready = folder / "ready"

    def task(rank: int) -> None:
        encode = CountingEncoder.encode_image

        def slowly(self: CountingEncoder, images: object) -> object:
            # Past the first shard of 16.
            if rank == 1 and self.encoded["image"] > 9:
                ready.touch()
                time.sleep(1000)
            return encode(self, images)

        CountingEncoder.encode_image = slowly
        try:
            one_build(folder / "store", distributed.start())
        except ArbiterError:
            os._exit(9)

    processes = Processes(folder / "lost", 2, task)
    until(ready.exists)
    kill(processes, [1])
    assert processes.wait() == [9, -signal.SIGKILL], processes.text()
    left = one_build(folder / "store", distributed.ALONE)["encoded"]["image"]
    assert stored_files(folder / "store") == stored_files(folder / "alone")
    return left


def broken(folder: Path) -> None:
    """A picture that cannot be read is named by the first process, whoever met it."""
    bad = folder / "broken.png"
    bad.write_bytes(b"no image")

    def task(rank: int) -> None:
        ranks = distributed.start()
        try:
            one_build(folder / "store", ranks, [*range(5), bad])
        except ArbiterError as error:
            assert rank or str(error).startswith("process 1: ")
            assert "broken.png" in str(error) or rank == 2, str(error)
            if rank == 1:
                ranks.report_failure(str(error))
            return
        raise AssertionError("nobody met it")

    Processes(folder, 2, task).succeed()


def waiting(folder: Path) -> None:
    """While another program builds the table, all wait, however long."""
    joint_build._STILL_WAITING_SECONDS = 0.1
    store = folder / "store"
    directory = FeatureStore(store, CountingEncoder()).directory("image")
    directory.mkdir(parents=True)
    lock = FileLock(directory / ".lock")

    def task(rank: int) -> None:
        ranks = distributed.start()
        (folder / f"there-{rank}").touch()
        one_build(store, ranks)
        assert (folder / "released").exists()

    with lock:
        processes = Processes(folder, 2, task)
        until(lambda: all((folder / f"there-{rank}").exists() for rank in range(2)))
        time.sleep(1)
        (folder / "released").touch()
    processes.succeed()


if __name__ == "__main__":
    build._SHARD_BYTES = 1  # 16 contents a shard
    run_tasks({f.__name__: f for f in (once, killed, broken, waiting)})
