"""Jobs that share a process, each in the state that a process of its own would begin in."""

from __future__ import annotations

import gc
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def isolated() -> Iterator[None]:
    """Whatever a job changes for its whole process ends with the block.

    Restored: torch's number of threads, the global random generators (nothing of Arbiter's draws
    from them unseeded; a library may) and the filters of warnings, so that a job's warnings are
    shown although an earlier job had the same. Freed: what the job left in reference cycles, such
    as a model that an error's traceback held, and the devices' caches of free memory. Peaks of
    device memory are counted anew.
    """
    threads = torch.get_num_threads()
    python, numpy, states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    _reset_peaks()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(states)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        _free()


def _reset_peaks() -> None:
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)


def _free() -> None:
    """Give memory back, so that the next job has as much as the first one."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
