"""Several processes that train one model: who they are, and what they tell each other.

torchrun starts the processes and says in their environment which is which; without it there is one
process, and every exchange is a no-op.

Everything that lies on the host goes through gloo, also where gradients go through NCCL. A process
that has died closes its connections, so the others learn of it at their next exchange; a process
that hangs is given up on after half an hour. Nothing is pickled: what travels is tensors, JSON and
bytes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from arbiter.errors import ConfigError, ProcessFailed, ProcessLost

_TIMEOUT = timedelta(minutes=30)
# For word of why another process has gone.
_PATIENCE_OF_FIRST, _PATIENCE = timedelta(seconds=1), timedelta(seconds=5)

Item = TypeVar("Item")


class Ranks:
    """The processes of a run, seen from one of them; by default there is no other.

    Every exchange must be made by all of them, in the same order.

    Attributes:
        rank: this process's number, from 0.
        size: how many there are.

    Raises:
        ProcessLost: (any exchange) another process has died, or gives no answer.
        ProcessFailed: the same, on the first process, where the other one has said why.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: dist.Store | None = None):
        self.rank, self.size = rank, size
        self._store = store
        self._parted: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def deal(self, items: Sequence[Item]) -> Sequence[Item]:
        """This process's share of items that all have: each goes to exactly one."""
        return items[self.rank :: self.size]

    # ------------------------------------------------------------ exchanges

    def sum_(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over all processes; the same bits everywhere."""
        if self.size > 1:
            with self._exchange():
                dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        flags = torch.tensor([int(flag)])
        self.sum_(flags)
        return bool(flags.item())

    def share_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by those of the first process."""
        if self.size > 1:
            with self._exchange():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def share(self, value: Any = None) -> Any:
        """The first process's JSON value; what others give is not looked at."""
        if self.size == 1:
            return value
        return json.loads(self.share_bytes(json.dumps(value).encode() if self.first else b""))

    def share_bytes(self, data: bytes = b"") -> bytes:
        """The first process's bytes."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        self.share_([length])
        message = _tensor(data, int(length)) if self.first else _tensor(b"", int(length))
        self.share_([message])
        return _bytes(message)

    def all_bytes(self, data: bytes) -> list[bytes]:
        """What each process gives, in the order of their ranks."""
        if self.size == 1:
            return [data]
        lengths = self._lengths(data)
        messages = [_tensor(b"", max(lengths)) for _ in lengths]
        with self._exchange():
            dist.all_gather(messages, _tensor(data, max(lengths)))
        return [_bytes(m)[:n] for m, n in zip(messages, lengths, strict=True)]

    def collect_bytes(self, data: bytes) -> list[bytes]:
        """What each process gives, at the first one; nothing at the others."""
        if self.size == 1:
            return [data]
        lengths = self._lengths(data)
        messages = [_tensor(b"", max(lengths)) for _ in lengths] if self.first else None
        with self._exchange():
            dist.gather(_tensor(data, max(lengths)), messages)
        return [_bytes(m)[:n] for m, n in zip(messages or [], lengths, strict=False)]

    def _lengths(self, data: bytes) -> list[int]:
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(data)
        self.sum_(lengths)
        return lengths.tolist()

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Part when nothing more is exchanged: from here on each process is on its own."""
        if self.size > 1:
            self.any(False)
            # Kept to the end of the process: torch 2.4 frees a group by waiting for gloo's threads
            # with the interpreter locked, and a thread that lets go of a tensor needs that lock.
            self._parted = dist.group.WORLD
            dist.destroy_process_group()
            self.size = 1

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            # Closing the own connections wakes those that wait for this process.
            with suppress(RuntimeError):
                dist.destroy_process_group()
            if self.first:
                self._tell("first", "1")
                reason = self._told("failure", _PATIENCE_OF_FIRST)
                if reason is not None:
                    raise ProcessFailed(reason) from error
            raise ProcessLost(
                f"another process of the run died, or gave no answer for "
                f"{_TIMEOUT.total_seconds() / 60:g} minutes"
            ) from error

    def report_failure(self, line: str) -> None:
        """Leave word of why this process fails, for the first one to print."""
        self._tell("failure", f"process {self.rank}: {line}")

    def report_end(self, status: int) -> None:
        """Leave word, as the first process, that it ends and has said all that is to be said."""
        self._tell("first", str(status))

    def end_of_first(self) -> int | None:
        """The first process's exit status, or 1 while it is ending; None if it died unsaid."""
        told = self._told("first", _PATIENCE)
        return None if told is None else int(told)

    # The key-value store belongs to torchrun and outlives the processes.

    def _tell(self, key: str, value: str) -> None:
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(key, value)

    def _told(self, key: str, patience: timedelta) -> str | None:
        give_up = time.monotonic() + patience.total_seconds()
        try:
            # Asked again and again, because the store's own waiting says so when it ends in vain.
            while self._store is not None and time.monotonic() < give_up:
                if self._store.check([key]):
                    return self._store.get(key).decode()
                time.sleep(0.05)
        except RuntimeError:
            pass
        return None


def _tensor(data: bytes, length: int) -> torch.Tensor:
    """Bytes as uint8 [length], zero past their end."""
    tensor = torch.zeros(length, dtype=torch.uint8)
    if data:
        tensor[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return tensor


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


ALONE = Ranks()
_ranks = ALONE


def ranks() -> Ranks:
    """The processes that `start` found; without it, this one alone."""
    return _ranks


def start() -> Ranks:
    """Meet the other processes that torchrun started, if there are any.

    Each gets its share of the processors, unless OMP_NUM_THREADS says otherwise.

    Raises:
        ProcessLost: they did not all come.
    """
    global _ranks
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        return _ranks
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=_TIMEOUT))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT, store=store, rank=rank, world_size=size)
    except RuntimeError as error:
        raise ProcessLost("the processes of the run did not find each other") from error
    # torchrun itself sets 1, which would leave most of a large processor idle.
    if os.environ.get("OMP_NUM_THREADS", "1") == "1":
        here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        torch.set_num_threads(max(1, _cpus() // here))
    _ranks = Ranks(rank, size, store)
    return _ranks


def _cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_device(device: torch.device, key: str) -> torch.device:
    """The one among devices of a kind that this process computes on.

    Raises:
        ConfigError: there are fewer than processes, or several processes cannot share this kind.
    """
    if _ranks.size == 1 or device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ConfigError(key, device.type, "several processes compute on cpu or cuda only")
    if device.index is not None:
        raise ConfigError(key, device, "each process takes a GPU of its own; give cuda")
    place, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= found:
        allowed = f"there are {found} here; start one process each: torchrun --nproc-per-node"
        raise ConfigError(key, f"cuda:{place}", f"{allowed}={found}")
    torch.cuda.set_device(place)
    return torch.device("cuda", place)
