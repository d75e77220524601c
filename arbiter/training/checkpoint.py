"""Resume states: complete directories that appear in one step.

    resume/state-00000123/    model.safetensors optimizer.safetensors ... state.json MANIFEST.json

A state is written under another name, forced to disk and renamed; the one before it is kept, and
the last one from which the run may be extended.
"""

from __future__ import annotations

import logging
import math
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file

from arbiter.config import option
from arbiter.errors import RunError, first_line
from arbiter.files import new_directory, verified_files, write_json_atomic, write_tensors
from arbiter.hardware.distributed import Ranks
from arbiter.strict_json import read_json

log = logging.getLogger(__name__)

_KEEP = 2
_STATE_BYTES = 1 << 26


@dataclass
class CheckpointConfig:
    """When resume states are written, beside the end of every epoch."""

    every_minutes: float = option(10.0, help="Minutes between states within an epoch.", above=0)
    every_steps: int | None = option(None, help="Optimizer steps between states as well.", low=1)
    max_minutes: float | None = option(
        None, help="Stop with a state after this time, to fit a queue's limit.", above=0
    )


@dataclass(frozen=True)
class State:
    """Everything that a run needs to go on.

    Attributes:
        tensors: file name without suffix -> contiguous CPU tensors by name.
        values: JSON.
    """

    tensors: dict[str, dict[str, torch.Tensor]]
    values: dict


def save_state(directory: Path, step: int, state: State) -> Path:
    """Write a state of optimizer step `step`; afterwards `keep_states` decides which are kept."""
    path = directory / f"state-{step:08d}"
    with new_directory(path) as temporary:
        for name, tensors in state.tensors.items():
            write_tensors(save_file, tensors, temporary / f"{name}.safetensors")
        write_json_atomic(temporary / "state.json", state.values)
    keep_states(directory, step, state.values.get("extendable_until", -1))
    return path


def keep_states(directory: Path, step: int, extendable_until: int) -> None:
    """Remove all states that a run at a step has no use for.

    The newest two are kept, and the newest one from which the run may be extended. Later ones are
    damaged or come from before it was gone on with; they would take the places of those that are
    still to be written.

    Args:
        directory: of the states.
        step: of the newest state that counts.
        extendable_until: the last step from which the run may be extended.
    """
    states = list_states(directory)
    past = [path for path in states if state_step(path) <= step]
    extendable = [path for path in past if state_step(path) <= extendable_until]
    kept = past[-_KEEP:] + extendable[-1:]
    for path in states:
        if path not in kept:
            shutil.rmtree(path)


class StateWriter:
    """Writes states in a thread, one at a time, from host copies made when they are handed over.

    An error of the thread is raised by the next call.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._pending: Future | None = None

    def submit(self, step: int, state: State) -> None:
        """Copy the state to host memory and write it in the background."""
        self.wait()
        tensors = {name: host_copy(part) for name, part in state.tensors.items()}
        copied = State(tensors, state.values)
        self._pending = self._thread.submit(save_state, self._directory, step, copied)

    def wait(self) -> None:
        """Until the state handed over last is on disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finish writing."""
        self._thread.shutdown(wait=True)
        self.wait()


def list_states(directory: Path) -> list[Path]:
    """Published states, oldest first."""
    return sorted(directory.glob("state-[0-9]*"))


def state_step(path: Path) -> int:
    """The optimizer step of a published state."""
    return int(path.name.removeprefix("state-"))


def load_newest_state(directory: Path, until: float = math.inf) -> State | None:
    """The newest intact state up to step `until`; damaged ones are passed over and logged."""
    for path in reversed(list_states(directory)):
        if state_step(path) > until:
            continue
        try:
            verified_files(path)
            tensors = {file.stem: load_file(file) for file in path.glob("*.safetensors")}
            return State(tensors, read_json(path / "state.json", _STATE_BYTES))
        except (RunError, SafetensorError, OSError, ValueError) as error:
            problem = first_line(error)
        log.warning("resume: %s: %s; taking the state before it", path, problem)
    return None


def share_state(state: State | None, ranks: Ranks) -> State | None:
    """The first process's state, or None if it has none; the others need not see its files."""
    header = ranks.share(None if state is None else [state.values, list(state.tensors)])
    if header is None or ranks.size == 1:
        return state
    values, names = header
    parts = [save(state.tensors[name]) if state else b"" for name in names]
    tensors = {n: load(ranks.share_bytes(p)) for n, p in zip(names, parts, strict=True)}
    return State(tensors, values)


def host_copy(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous copies on the CPU, moved one tensor at a time (DirectML dies of larger moves)."""
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """An optimizer's per-parameter state as flat tensors named '<parameter>.<entry>'."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Put back what `optimizer_tensors` took."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        index, entry = name.split(".", 1)
        state.setdefault(int(index), {})[entry] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
