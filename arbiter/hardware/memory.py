"""How much memory there is, and telling that it ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

# What torch's backends say when an allocation fails, where they raise no type of their own.
_OUT_OF_MEMORY = (
    "out of memory",  # CUDA, HIP, MPS
    "not enough memory",  # CPU; DirectML: "not enough GPU video memory"
    "not enough gpu",
    "can't allocate memory",  # CPU
    "could not allocate",  # DirectML
    "failed to allocate",  # cuBLAS and cuDNN workspaces
    "alloc_failed",
)


class OutOfMemory(Exception):
    """A device or the host had no memory left for a piece of work; it may be done in smaller ones.

    Not a user's error yet: whoever can do the work in smaller pieces catches it.
    """


@contextmanager
def noticing_out_of_memory() -> Iterator[None]:
    """Raise `OutOfMemory`, with the backend's first line, for whatever a backend raises."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise OutOfMemory(lines[0]) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the host had no memory left."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY)


def free_host_mb() -> float:
    """Host memory that programs can still have, in MB (10^6 bytes)."""
    return psutil.virtual_memory().available / 1e6


def free_device_mb(device: torch.device) -> float | None:
    """Free memory of a device of its own, in MB; None where torch cannot tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] / 1e6
    return None


def release_cached(device: torch.device) -> None:
    """Give memory that torch keeps for later back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
