"""Several processes of a run, forked from one that has imported everything.

A program of its own, as only processes can be. `python -m tests.joint <folder> <task> ...` prints
the outcome of each task as JSON: what it returns, or the text of what went wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.children import fork

_LONGEST_SECONDS = 240

needs_fork = pytest.mark.skipif(
    not (hasattr(os, "fork") and Path("/proc/self/environ").exists()), reason="needs fork and /proc"
)


def run_tasks(tasks: dict[str, Callable[[Path], object]]) -> None:
    """The main program of a driver module."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    outcomes = {}
    for name in names:
        (folder / name).mkdir(parents=True)
        try:
            outcomes[name] = tasks[name](folder / name)
        except AssertionError:
            outcomes[name] = traceback.format_exc()
    print(json.dumps(outcomes))


class Processes:
    """Children with the environment that torchrun gives, each of which calls `task(rank)`.

    Attributes:
        children: process ids, by rank.
        output: files that hold what each has printed.
    """

    def __init__(self, folder: Path, size: int, task: Callable[[int], None]):
        folder.mkdir(parents=True, exist_ok=True)
        self._host, port = _host_store()
        self.output = [folder / f"output-{rank}" for rank in range(size)]
        self.children = []
        for rank in range(size):
            self.output[rank].write_text("")
            environment = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
            }  # fmt: skip
            self.children.append(self._fork(rank, environment, task))

    def _fork(self, rank: int, environment: dict[str, str], task: Callable[[int], None]) -> int:
        def of_rank() -> None:
            os.environ.update(environment)
            task(rank)

        return fork(self.output[rank], _LONGEST_SECONDS, of_rank)

    def wait(self) -> list[int]:
        """Exit statuses by rank; minus the signal's number for one that was killed."""
        waited = [os.waitpid(child, 0)[1] for child in self.children]
        os.kill(self._host, signal.SIGKILL)
        os.waitpid(self._host, 0)
        return [os.waitstatus_to_exitcode(status) for status in waited]

    def text(self) -> str:
        """All that was printed."""
        return "\n".join(path.read_text() for path in self.output)

    def succeed(self) -> None:
        """Wait until all have ended well."""
        statuses = self.wait()
        assert not any(statuses), f"{statuses}\n{self.text()}"


def _host_store() -> tuple[int, int]:
    """A process that holds the key-value store, as torchrun's does; its id, and the store's port.

    Not this process: the store has threads, with which it could not be forked from.
    """
    reader, writer = os.pipe()
    host = os.fork()
    if not host:
        signal.alarm(2 * _LONGEST_SECONDS)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        while True:
            signal.pause()
    port = int(os.read(reader, 16))
    os.close(reader)
    os.close(writer)
    return host, port


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, as long as that may take on a busy machine."""
    give_up = time.monotonic() + _LONGEST_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)


def kill(processes: Processes, ranks: Sequence[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to some of the processes."""
    for rank in ranks:
        os.kill(processes.children[rank], number)
