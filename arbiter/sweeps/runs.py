"""Run directories read back: what each was told, how it ended, what it took.

Everything comes from files, so that it does not matter which process or machine ran a job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from arbiter.errors import ConfigError, RunError
from arbiter.sweeps.names import covers, override_key, override_value
from arbiter.training.resume import FREE, flatten
from arbiter.training.run_reading import read_object, read_status, read_yaml

_SILENT = ("logging", "checkpoint", "paths", "resume", "sweep")
_UNNAMED = tuple(key for key in FREE if key != "calibration")


@dataclass(frozen=True)
class Run:
    """What a run directory tells.

    Attributes:
        path: the directory.
        status: finished, failed, interrupted (also: killed) or running.
        error: one line, of a failed run.
        overrides: key -> value as given on the command line.
        choices: config group -> option.
        config: dotted key -> value.
        summary: of a finished run; empty otherwise.
        val_acc: at the end of each finished epoch.
        seconds: of training and validation, as far as it went.
        rss_mb: most resident memory among the lines of metrics.jsonl; None before the first.
        vram_mb: the same of device memory, where it is known.
        parameters: those that are trained; None before the model was built.
    """

    path: Path
    status: str
    error: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str | None] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    val_acc: tuple[float, ...] = ()
    seconds: float = 0.0
    rss_mb: float | None = None
    vram_mb: float | None = None
    parameters: int | None = None

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.name

    def setting(self, key: str) -> str | None:
        """The option of a group or the value of a key, however it was written; None without one."""
        for values in (self.choices, self.config, self.overrides):
            if key in values:
                return _written(values[key])
        return None


def _written(value: Any) -> str:
    """A value as a person writes it on a command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Run directories: those named, and those in the sweeps that are named.

    Raises:
        RunError: a path is neither.
    """
    found = []
    for path in paths:
        jobs = [path] if _is_run(path) else [p for p in _children(path) if _is_run(p)]
        if not jobs:
            raise RunError(f"{path}: neither a run directory nor a sweep's; name one that exists")
        found += jobs
    return list(dict.fromkeys(found))


def _is_run(path: Path) -> bool:
    return (path / "status.json").is_file() or (path / ".hydra").is_dir()


def _children(path: Path) -> list[Path]:
    """Directories in a directory, by their leading number if they have one."""

    def place(child: Path) -> tuple[float, str]:
        number = re.match(r"\d+", child.name)
        return (int(number[0]) if number else float("inf"), child.name)

    return sorted((p for p in path.iterdir() if p.is_dir()), key=place) if path.is_dir() else []


def read_run(path: Path) -> Run:
    """Everything that a run directory tells; what a kill left half written counts as not there."""
    status = read_status(path)
    overrides = read_yaml(path / ".hydra" / "overrides.yaml")
    given = [str(o) for o in overrides] if isinstance(overrides, ListConfig) else []
    hydra = read_yaml(path / ".hydra" / "hydra.yaml")
    hydra = hydra if isinstance(hydra, DictConfig) else OmegaConf.create()
    choices = dict(OmegaConf.select(hydra, "hydra.runtime.choices") or {})
    config = read_yaml(path / ".hydra" / "config.yaml")
    whole = isinstance(config, DictConfig)
    config = dict(flatten(OmegaConf.to_container(config))) if whole else {}
    told = {override_key(o): override_value(o) for o in given}
    if OmegaConf.select(hydra, "hydra.job.refused") is not None:
        # It did not compose: what is there is the sweep's, without the job's own values.
        choices = {key: told.get(key, value) for key, value in choices.items()}
        config = {key: told.get(key, value) for key, value in config.items()}
    state = status.get("status", "interrupted")
    return Run(
        path,
        state,
        status.get("error"),
        told,
        {k: v for k, v in choices.items() if not k.startswith("hydra/")},
        config,
        read_object(path / "summary.json") if state == "finished" else {},
        **_figures(path / "metrics.jsonl"),
    )


def _figures(path: Path) -> dict[str, Any]:
    """Accuracies, seconds, peaks and parameters of the lines that are whole."""
    accuracies, seconds, parameters = [], 0.0, None
    peaks: dict[str, float | None] = {"rss_mb": None, "vram_mb": None}
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.splitlines():
        # What is no JSON, no object, or lacks its figures.
        with suppress(ValueError, TypeError, AttributeError, KeyError):
            event = json.loads(line)
            for name, peak in peaks.items():
                if (value := event.get(name)) is not None:
                    peaks[name] = max(peak or 0.0, value)
            if event.get("event") == "run":
                parameters = event["parameters"]["trainable"]
            if event.get("event") == "epoch":
                took = event["train_seconds"] + event["eval_seconds"]
                accuracies.append(event["val_acc"])
                seconds += took
    figures = {"val_acc": tuple(accuracies), "seconds": seconds, "parameters": parameters}
    return {**figures, **peaks}


def check_unchanged(run: Run, config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse settings that a run never had, so that its result is not shown as theirs.

    Args:
        run: what the directory holds.
        config: as composed now.
        overrides: all `key=value` that are given now.

    Raises:
        ConfigError: the run has another value of a key that bears on what is learned.
    """
    # As a file has it, where enums are texts.
    now = dict(flatten(OmegaConf.to_container(OmegaConf.create(OmegaConf.to_yaml(config)))))
    given = {override_key(o): override_value(o) for o in overrides}
    changed = [k for k in {**run.overrides, **given} if run.overrides.get(k) != given.get(k)]
    for key in {**run.config, **now} if run.config else ():
        one_sided = (key in run.config) is not (key in now)
        if one_sided and not any(covers(k, key) for k in changed):
            continue  # an option that another version has not
        if key.split(".")[0] in FREE or (not one_sided and run.config[key] == now[key]):
            continue
        if key == "schedule.epochs":
            continue  # the run itself says whether it can be extended
        had = f"{key}={run.config[key]}" if key in run.config else "no such key"
        raise ConfigError(
            key, now.get(key, "(not given)"), f"the run has {had}, which cannot change on resume; "
            "give its own value, or another hydra.sweep.dir"
        )  # fmt: skip


def varied(runs: Sequence[Run]) -> list[str]:
    """The keys and groups in which runs differ: those given on command lines first.

    A group whose option differs stands for the keys in it. Where and how verbosely a run wrote
    is left out, and what does not bear on its result unless it was named, such as its hardware.
    """

    def differs(key: str) -> bool:
        return len({run.setting(key) for run in runs}) > 1

    named = dict.fromkeys(key for run in runs for key in run.overrides)
    keys = [k for k in named if k.split(".")[0] not in _SILENT and differs(k)]
    groups = dict.fromkeys(group for run in runs for group in run.choices)
    keys += [g for g in groups if g not in keys and g not in _UNNAMED and differs(g)]
    for key in dict.fromkeys(key for run in runs for key in run.config):
        covered = any(covers(k, key) for k in keys)
        if not covered and key.split(".")[0] not in _UNNAMED and differs(key):
            keys.append(key)
    return keys
