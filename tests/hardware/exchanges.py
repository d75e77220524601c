"""Processes that exchange what they have, die and hang. See `tests.joint`."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch

from arbiter.errors import ProcessFailed, ProcessLost
from arbiter.hardware import distributed
from tests.joint import Processes, kill, run_tasks, until


def exchanges(folder: Path) -> None:
    """Every exchange, among three."""

    def task(rank: int) -> None:
        ranks = distributed.start()
        assert (ranks.rank, ranks.size, ranks.first) == (rank, 3, rank == 0)
        tensor = torch.tensor([1.5 * rank, -2.0])
        ranks.sum_(tensor)
        assert tensor.tolist() == [4.5, -6.0]
        assert ranks.any(rank == 2) and not ranks.any(False)
        assert ranks.share({"a": [1, None, "é"]} if rank == 0 else None) == {"a": [1, None, "é"]}
        for data in (b"", b"\0from the first\0"):
            assert ranks.share_bytes(data if rank == 0 else b"other") == data
        sent = [b"", b"longer", b"\0\0"]
        assert ranks.all_bytes(sent[rank]) == sent
        assert ranks.collect_bytes(sent[rank]) == (sent if rank == 0 else [])
        weights = [torch.full((2,), float(rank)), torch.tensor(rank)]
        ranks.share_(weights)
        assert all(not part.any() for part in weights)
        shares = ranks.all_bytes(bytes(ranks.deal(range(8))))
        assert sorted(b"".join(shares)) == list(range(8))
        ranks.close()
        # On its own now: nothing waits for anybody.
        assert ranks.share(rank) == rank and ranks.any(rank == 1) == (rank == 1)

    Processes(folder, 3, task).succeed()


def death(folder: Path) -> None:
    """One of four is killed while the others wait for it; they all learn of it."""
    ready = folder / "ready"

    def task(rank: int) -> None:
        ranks = distributed.start()
        ranks.any(False)
        if rank == 2:
            ready.touch()
            time.sleep(1000)
        try:
            ranks.any(False)
        except ProcessLost as error:
            assert "another process of the run died" in str(error)
            return
        raise AssertionError("nobody died")

    processes = Processes(folder, 4, task)
    until(ready.exists)
    kill(processes, [2])
    statuses = processes.wait()
    assert statuses == [0, 0, -signal.SIGKILL, 0], f"{statuses}\n{processes.text()}"


def failure(folder: Path) -> None:
    """One of three says why it fails; the first one is told."""

    def task(rank: int) -> None:
        ranks = distributed.start()
        if rank == 1:
            ranks.report_failure("no such picture")
            os._exit(1)
        try:
            ranks.any(False)
        except ProcessFailed as error:
            assert rank == 0 and str(error) == "process 1: no such picture"
            ranks.report_end(3)
            return
        except ProcessLost:
            assert rank == 2
            assert ranks.end_of_first() in (1, 3)
            return
        raise AssertionError("nobody failed")

    processes = Processes(folder, 3, task)
    statuses = processes.wait()
    assert statuses == [0, 1, 0], f"{statuses}\n{processes.text()}"


def hang(folder: Path) -> None:
    """One of two stops answering; the other gives up after the time there is."""
    ready = folder / "ready"

    def task(rank: int) -> None:
        ranks = distributed.start()
        ranks.any(False)
        if rank == 1:
            ready.touch()
            time.sleep(1000)
        until(ready.exists)
        try:
            ranks.any(False)
        except ProcessLost as error:
            assert "gave no answer for" in str(error)
            (folder / "given-up").touch()
            return
        raise AssertionError("it answered")

    distributed._TIMEOUT = timedelta(seconds=15)
    processes = Processes(folder, 2, task)
    until((folder / "given-up").exists)
    kill(processes, [1])
    assert processes.wait() == [0, -signal.SIGKILL], processes.text()


if __name__ == "__main__":
    run_tasks({f.__name__: f for f in (exchanges, death, failure, hang)})
