"""Sweeps: `python -m experiments.train -m key=value,value`.

Hydra runs the jobs. What it leaves to be done is here: a job that fails, or whose configuration
does not even compose, is recorded and the others go on; jobs leave nothing behind for each other;
a signal ends the sweep; and at the end there is a table, made from the sweep's directory.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from arbiter.console import say
from arbiter.errors import ArbiterError, ConfigError, RunError, RunInterrupted, UsageError
from arbiter.report.sweep import write_sweep
from arbiter.sweeps.isolation import isolated
from arbiter.sweeps.names import job_directory, override_key, override_value
from arbiter.sweeps.ranking import SweepConfig, check_metric, objective, rank
from arbiter.sweeps.runs import check_unchanged, find_runs, read_run
from arbiter.sweeps.terminal import print_ranking
from arbiter.training.resume import holds_run
from arbiter.training.run_directory import RunDirectory
from arbiter.training.run_reading import read_status
from experiments.app import explain

_FIXED = "hydra.job.config.override_dirname.exclude_keys"


class SweepStopped(BaseException):
    """Ends a sweep from inside a job; Hydra goes on after an `Exception`.

    Args:
        line: why.
        interrupted: whether somebody asked for it, rather than made a mistake.
    """

    def __init__(self, line: str, interrupted: bool):
        super().__init__(line, interrupted)
        self.line, self.interrupted = line, interrupted


# ---------------------------------------------------------------- before the jobs


def sweep_arguments(arguments: list[str]) -> list[str]:
    """Tell Hydra which keys are the same in all jobs of a sweep, so that names leave them out.

    `hydra/sweeper=optuna` means this house's preset of it.

    Raises:
        UsageError: a sweeper that is not installed.
        ConfigError: a metric that no job will have.
    """
    for argument in arguments:
        if override_key(argument) == "sweep.metric":
            check_metric(override_value(argument))
    if "hydra/sweeper=optuna" in arguments:
        _need_optuna()
        # Hydra takes no file with the name under which the sweeper registers itself.
        arguments = [a.replace("sweeper=optuna", "sweeper=optuna_tpe") for a in arguments]
    if not {"-m", "--multirun"} & set(arguments):
        return arguments
    if any(argument.startswith(f"{_FIXED}=") for argument in arguments):
        return arguments
    fixed = [QuotedString(key, Quote.single).with_quotes() for key in fixed_keys(arguments)]
    return [*arguments, f"{_FIXED}=[{','.join(fixed)}]"]


def fixed_keys(arguments: list[str]) -> list[str]:
    """The keys that have one value in all jobs of a sweep."""
    fixed, swept = [], set()
    for argument in arguments:
        try:
            override = OverridesParser.create().parse_override(argument)
        except HydraException:
            continue  # a flag; or a mistake, which Hydra reports
        if override.is_sweep_override():
            swept.add(override_key(argument))
        elif not override.is_hydra_override():
            fixed.append(override_key(argument))
    return [key for key in fixed if key not in swept]


def _need_optuna() -> None:
    plugins = importlib.util.find_spec("hydra_plugins")
    if plugins is None or importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is None:
        raise UsageError(
            "hydra/sweeper=optuna: the sweeper is not installed; pip install -e '.[optuna]'"
        )


class BeforeSweep(Callback):
    """Called by Hydra when a sweep begins; conf/train.yaml names it."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note where the sweep lies, and let it survive jobs that do not compose."""
        directory = Path(config.hydra.sweep.dir)
        _current["directory"] = directory
        _current["config"] = OmegaConf.to_object(config.sweep)
        _current["outcomes"] = directory.absolute() / f".outcomes-{uuid4().hex}"
        hydra = GlobalHydra.instance().hydra
        hydra.config_loader = JobLoader(hydra.config_loader, _current["outcomes"])


_current: dict[str, Any] = {}
"""Of the sweep that runs in this process: its directory, its objective's config, and the folder
where its jobs, in whatever process they run, leave word of how they ended this time."""


class JobLoader:
    """Hydra's loader of configurations, which never refuses a sweep's job.

    Hydra composes all jobs before the first one runs, and one that does not compose would end the
    sweep. Here it gets the sweep's own configuration and a remark; `in_sweep` raises it in the
    job's place. Launchers take this object to the processes that they start.

    Args:
        loader: Hydra's.
        outcomes: the folder where jobs leave word of how they ended.
    """

    def __init__(self, loader: Any, outcomes: Path):
        self._loader, self._outcomes = loader, outcomes

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> Any:
        """The job's configuration, or the sweep's with `hydra.job.refused`."""
        OmegaConf.register_new_resolver("job_directory", job_directory, replace=True)
        OmegaConf.register_new_resolver("job_subdir", _job_subdir, replace=True)
        refused = None
        try:
            config = self._loader.load_sweep_config(master_config, sweep_overrides)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            refused = explain(error)
            fixed = fixed_keys(master_config.hydra.overrides.task)
            shared = [o for o in sweep_overrides if override_key(o) in fixed]
            config = self._loader.load_sweep_config(master_config, shared)
            config.hydra.overrides.task = sweep_overrides
        with open_dict(config.hydra.job):
            config.hydra.job.refused = refused
            config.hydra.job.outcomes = str(self._outcomes)
        # The directory is known once the launcher has given the job its number.
        config.hydra.output_subdir = "${job_subdir:${hydra.runtime.output_dir}}"
        return config


def _job_subdir(directory: str) -> str | None:
    """Where Hydra writes what a job is told; nowhere if a run is there, which keeps its own."""
    run = Path(directory)
    has_run = holds_run(run) or read_status(run).get("status") in ("finished", "running")
    return None if has_run else ".hydra"


# ---------------------------------------------------------------- a job


def in_sweep(task: Callable[[DictConfig], float]) -> Callable[[DictConfig], float]:
    """The same task, which in a sweep returns a finite objective whatever happens.

    Args:
        task: runs in a `RunDirectory` at Hydra's output directory, which records how it ended.

    Raises:
        SweepStopped: somebody interrupted it, or the objective names no figure.
    """

    def job(config: DictConfig) -> float:
        if HydraConfig.get().mode is not RunMode.MULTIRUN:
            return task(config)
        with isolated():
            return _run_job(task, config)

    return job


def _run_job(task: Callable[[DictConfig], float], config: DictConfig) -> float:
    path = Path(HydraConfig.get().runtime.output_dir)
    sweep: SweepConfig = OmegaConf.to_object(config.sweep)
    try:
        _raise_refusal(path)
        if config.resume == "auto":
            check_unchanged(read_run(path), config, HydraConfig.get().overrides.task)
        task(config)
    except (RunInterrupted, KeyboardInterrupt) as error:
        raise SweepStopped(str(error) or "interrupted", True) from None
    # A sweep outlives its jobs, whatever they die of: of bugs, of memory that is not there, and of
    # a library that calls sys.exit. The job's status, log and line in the table tell.
    except (Exception, SystemExit) as error:
        line = explain(error) if isinstance(error, ArbiterError) else f"{error!r}".splitlines()[0]
        say(f"failed: {path.name}: {line}")
        _leave_word("failed")
        return sweep.worst
    _leave_word("finished")
    try:
        value = objective(read_run(path).summary, sweep.metric)
    except ConfigError as error:
        raise SweepStopped(str(error), False) from None
    if value is None:
        line = f"{path.name}: has no {sweep.metric}, which counts as worse than any"
        say(line)
        return sweep.worst
    return value


def _raise_refusal(path: Path) -> None:
    """Fail as a run does whose configuration is wrong, if this one did not compose."""
    refused = HydraConfig.get().job.refused
    if refused is not None:
        with RunDirectory(path):
            raise ArbiterError(refused)


def _leave_word(outcome: str) -> None:
    """Say how the job ended this time; its directory may tell of an earlier time."""
    job = HydraConfig.get().job
    outcomes = Path(job.outcomes)
    outcomes.mkdir(exist_ok=True)
    (outcomes / str(job.num)).write_text(outcome)


# ---------------------------------------------------------------- after the jobs


def supervised(start: Callable[[], None]) -> None:
    """Run Hydra; after a sweep, write and print its tables.

    Done here rather than in Hydra's `on_multirun_end`, which is not called when a sweep is stopped
    and turns every error into a warning.

    Raises:
        RunInterrupted: the sweep was stopped, and can be gone on with.
        RunError: jobs failed.
    """
    _current.clear()
    try:
        _supervise(start)
    finally:
        if _current:
            shutil.rmtree(_current["outcomes"], ignore_errors=True)


def _supervise(start: Callable[[], None]) -> None:
    stop = None
    try:
        start()
    except (SweepStopped, KeyboardInterrupt) as error:
        if not _current:
            raise
        stop = error if isinstance(error, SweepStopped) else SweepStopped("interrupted", True)
    if not _current:
        return
    directory = _current["directory"]
    ranking = rank([read_run(path) for path in find_runs([directory])], _current["config"])
    page = write_sweep(directory, ranking)
    print_ranking(ranking)
    say(f"sweep directory: {directory} ({page.name})")
    again = f"the same command with hydra.sweep.dir={directory} resume=auto goes on with it"
    if stop is not None and not stop.interrupted:
        raise RunError(f"sweep: {stop.line}; mended, {again}")
    if stop is not None:
        raise RunInterrupted(f"sweep: {stop.line}; {again}")
    outcomes = [word.read_text() for word in _current["outcomes"].glob("*")]
    if failed := outcomes.count("failed"):
        raise RunError(f"{failed} of {len(outcomes)} jobs failed; {again}, failed jobs too")
