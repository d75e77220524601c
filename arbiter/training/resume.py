"""Going on with a run: which state, and which settings may have changed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from arbiter.config import from_dict
from arbiter.errors import ConfigError, RunError
from arbiter.files import holds_replaced
from arbiter.training.checkpoint import State, list_states, load_newest_state
from arbiter.training.run_directory import RunDirectory
from arbiter.training.schedules import ScheduleConfig, extendable_until

FREE = (
    "calibration", "hardware", "logging", "checkpoint", "guards", "paths", "resume", "sweep",
)  # fmt: skip
"""Groups and keys that do not bear on what is learned."""


_NOT_SET = "(not set)"


def holds_run(directory: Path) -> bool:
    """Whether there is anything in a directory that a new run would destroy."""
    resume = directory / "resume"
    if list_states(resume) or (directory / "model").exists():
        return True
    return holds_replaced(directory) or holds_replaced(resume)


def find_state(run: RunDirectory, resume: str | None) -> State | None:
    """The state to go on from; None for a new run.

    Raises:
        RunError: a new run would overwrite one, or no state of an old one is intact.
    """
    if resume is None:
        if holds_run(run.path):
            raise RunError(
                f"{run.path}: holds a run already; give resume=auto to go on with it, or another "
                "hydra.run.dir"
            )
        return None
    state = load_newest_state(run.resume)
    if state is None and list_states(run.resume) and not (run.finished and resume == "auto"):
        raise RunError(f"{run.resume}: no state there is intact; start anew in another directory")
    return state


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested dicts."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from flatten(value, f"{prefix}{key}.")
    else:
        yield prefix.removesuffix("."), config


def settled_values(state: State, composed: dict, given: Iterable[str]) -> dict[str, Any]:
    """The saved values of keys that differ now although nobody asked for it.

    Args:
        state: of the run.
        composed: the configuration as composed now.
        given: keys and groups overridden now.

    Returns:
        Dotted key -> value of the run; recipes may have been edited since it began.

    Raises:
        ConfigError: an override would change what the run has learned so far, or the recipes have
            other components now, such as a further source.
    """
    saved, now = dict(flatten(state.values["config"])), dict(flatten(composed))
    given = tuple(given)
    # A group that is no key itself, such as `experiment`, may set any of them.
    preset = any(key.split(".")[0] not in composed for key in given)
    settled = {}
    for key in {**now, **saved}:
        value, own = now.get(key, _NOT_SET), saved.get(key, _NOT_SET)
        if value == own or key.split(".")[0] in FREE:
            continue
        in_both = key in now and key in saved
        asked = preset or any(key.startswith(f"{group}.") for group in given)
        if key in given or (asked and in_both) or key.endswith("_target_"):
            if not (key == "schedule.epochs" and _may_extend(state, value)):
                problem = f"the run has {key}={own}, which cannot change on resume"
                raise ConfigError(key, value, problem)
        elif in_both:  # else an option that only another version has
            settled[key] = own
    return settled


def _epochs_and_limit(state: State) -> tuple[int, int]:
    """The epochs of a run, and the last step from which it may go on to more of them."""
    schedule = from_dict(ScheduleConfig, state.values["config"]["schedule"])
    return schedule.epochs, extendable_until(schedule, state.values["steps_per_epoch"])


def _may_extend(state: State, epochs: int) -> bool:
    """Whether a run's schedule lets it go on to more epochs without having been another run."""
    own, until = _epochs_and_limit(state)
    return epochs > own and until >= 0


def is_done(run: RunDirectory, resume: str | None, state: State | None, epochs: int) -> bool:
    """Whether `resume=auto` finds a run that has finished, and has all of its epochs."""
    own = epochs if state is None else state.values["config"]["schedule"]["epochs"]
    return resume == "auto" and run.finished and epochs == own


def extendable_state(run: RunDirectory, state: State, epochs: int) -> State:
    """The state from which a run goes on to its epochs: an earlier one, if it has begun to decay.

    Raises:
        ConfigError: it is to have more epochs, and there is no such state.
    """
    own, until = _epochs_and_limit(state)
    if epochs == own or state.values["step"] <= until:
        return state
    earlier = load_newest_state(run.resume, until)
    if earlier is None:
        raise ConfigError(
            "schedule.epochs", epochs,
            f"the run has schedule.epochs={own}, its decay began at step {until}, and no intact "
            f"state up to there is left in {run.resume}",
        )  # fmt: skip
    return earlier
