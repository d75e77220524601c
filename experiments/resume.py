"""`resume=<run dir>`: the run's own command line, in the run's own directory."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import ListConfig

from arbiter.errors import RunError, UsageError
from arbiter.sweeps.names import override_key
from arbiter.training.resume import holds_run
from arbiter.training.run_reading import read_yaml

_MULTIRUN = ("-m", "--multirun")


def _value(arguments: list[str], key: str) -> str | None:
    """The value given for a key, the last one if there are several; None without one."""
    given = [a for a in arguments if a.startswith(f"{key}=")]
    if not given:
        return None
    value = OverridesParser.create().parse_override(given[-1]).value()
    return None if value is None else str(value)


def is_multirun(arguments: list[str]) -> bool:
    """Whether the command line asks for a sweep."""
    return any(a in _MULTIRUN for a in arguments)


def resume_arguments(arguments: list[str]) -> list[str]:
    """Put a run's own overrides before those given beside `resume=<run dir>`.

    Hydra writes the configuration into the directory before the app is asked; so whatever holds a
    run is looked at here, and keeps the .hydra that it began with.

    Raises:
        RunError: a new run or sweep would overwrite another one, or there is none to go on with.
        UsageError: a sweep is to go on with a single run.
    """
    multirun = is_multirun(arguments)
    if any(a.startswith("-") and a not in _MULTIRUN for a in arguments):
        return arguments  # --help, --cfg and the like run nothing
    resume = _value(arguments, "resume")
    if resume is None or resume == "auto":
        place = _value(arguments, "hydra.sweep.dir" if multirun else "hydra.run.dir")
        if place is None:
            return arguments
        if resume is None:
            _refuse_to_overwrite(Path(place), multirun)
        elif not multirun and holds_run(Path(place)) and _overrides(Path(place)) is not None:
            return [*arguments, "hydra.output_subdir=null"]
        return arguments
    run = Path(resume)
    saved = _overrides(run)
    if saved is None and _holds_sweep(run):
        raise RunError(
            f"resume={run}: holds a sweep; give its command again with hydra.sweep.dir={run} "
            "resume=auto, or name one of its runs"
        )
    if multirun:
        raise UsageError(
            f"resume={run}: names one run, which goes on without -m; a sweep goes on with its own "
            "command, hydra.sweep.dir and resume=auto"
        )
    if saved is None:
        missing = ".hydra/overrides.yaml is missing or empty"
        if not run.is_dir():
            missing = "there is no such directory"
        raise RunError(
            f"resume={run}: no run to go on with, {missing}; name a run directory, or give the "
            "run's first command again"
        )
    keys = {override_key(a) for a in arguments}
    own = [override for override in saved if override_key(override) not in keys]
    return [*own, *arguments, f"hydra.run.dir={run}", "hydra.output_subdir=null"]


def _refuse_to_overwrite(place: Path, multirun: bool) -> None:
    """A directory that holds a run or a sweep is left alone."""
    if _holds_sweep(place) if multirun else holds_run(place):
        kind, key = ("sweep", "hydra.sweep.dir") if multirun else ("run", "hydra.run.dir")
        raise RunError(
            f"{place}: holds a {kind} already; give resume=auto to go on with it, or another {key}"
        )


def _holds_sweep(place: Path) -> bool:
    """Whether a sweep has begun there; not every sweeper leaves a multirun.yaml."""
    return (place / "multirun.yaml").exists() or any(place.glob("*/.hydra"))


def _overrides(run: Path) -> list[str] | None:
    """The overrides that a run began with; None where Hydra was killed before it wrote them."""
    saved = read_yaml(run / ".hydra" / "overrides.yaml")
    return list(saved) if isinstance(saved, ListConfig) else None


def overridden_keys() -> list[str]:
    """The keys given now, beyond those that the run began with."""
    hydra = HydraConfig.get()
    own = []
    if hydra.output_subdir is None:
        own = _overrides(Path(hydra.runtime.output_dir)) or []
    return [override_key(override) for override in hydra.overrides.task if override not in own]
