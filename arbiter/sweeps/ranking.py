"""Runs held against each other: one objective, its interval over seeds, a ranking and a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from scipy import stats

from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.sweeps.runs import Run, varied

_WORST = 1e9


class Direction(str, Enum):
    """Which way is better."""

    maximize = "maximize"
    minimize = "minimize"

    def __str__(self) -> str:
        return self.value


@dataclass
class SweepConfig:
    """What a sweep is about."""

    metric: str = option(
        "validation.accuracy",
        help="The figure of summary.json to rank by, as test.easy_vqa.nll; validation.accuracy is "
        "the best val_acc.",
    )
    direction: Direction = option(
        Direction.maximize, help="Which way is better.", choices=("maximize", "minimize")
    )

    @property
    def worst(self) -> float:
        """A finite value worse than any: the objective of a job that failed."""
        return -_WORST if self.direction == Direction.maximize else _WORST


_PARTS = (
    "validation", "test", "calibration", "exit", "deliberation", "best_epoch", "train_seconds",
    "parameters",
)  # fmt: skip
"""Of summary.json: those that hold figures."""


def check_metric(metric: str) -> None:
    """Refuse what no summary will hold before hours are spent on jobs.

    Raises:
        ConfigError: a summary has no such part.
    """
    if metric.split(".")[0] not in _PARTS:
        raise ConfigError(
            "sweep.metric", metric, f"no such figure; summary.json holds {', '.join(_PARTS)}"
        )


def objective(summary: dict[str, Any], metric: str) -> float | None:
    """The figure of a finished run's summary that a dotted name names.

    Returns:
        None where the summary has null on the way, as it has for `exit` when the gate is shut.

    Raises:
        ConfigError: there is no such figure, or it is not a finite number.
    """
    value: Any = summary
    walked = ""
    for part in metric.split("."):
        if not isinstance(value, dict) or part not in value:
            known = ", ".join(value) if isinstance(value, dict) else "nothing further"
            raise ConfigError(
                "sweep.metric", metric, f"no such figure; {walked or 'summary.json'} holds {known}"
            )
        value, walked = value[part], f"{walked}.{part}".lstrip(".")
        if value is None:
            return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        holds = f", it holds {', '.join(value)}" if isinstance(value, dict) else ""
        raise ConfigError("sweep.metric", metric, f"is no finite number in summary.json{holds}")
    return float(value)


def check_figure(runs: Sequence[Run], metric: str) -> None:
    """Refuse a metric that is none, which shows once a run has finished.

    Raises:
        ConfigError: no finished run has such a figure.
    """
    mistake = None
    for run in runs:
        if run.status == "finished":
            try:
                objective(run.summary, metric)
                return
            except ConfigError as error:
                mistake = mistake or error
    if mistake is not None:
        raise mistake


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seed alone.

    Attributes:
        values: of the keys that vary, without the seed; None where a run has none.
        runs: all of them.
        scores: the objective of each seed that a run has finished with; the mean of its runs where
            there are several, as the same seed again is no new evidence.
    """

    values: tuple[str | None, ...]
    runs: tuple[Run, ...]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """The objective's mean over seeds; None as long as no run has finished."""
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def parameters(self) -> int | None:
        """The parameters that are trained, which no seed changes."""
        return next((run.parameters for run in self.runs if run.parameters), None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95% interval of the mean over seeds; None with fewer than two."""
        n = len(self.scores)
        if n < 2:
            return None
        reach = stats.t.ppf(0.975, n - 1) * np.std(self.scores, ddof=1) / math.sqrt(n)
        return float(self.mean - reach), float(self.mean + reach)


@dataclass(frozen=True)
class Ranking:
    """Runs by what they were told, best first.

    Attributes:
        config: the objective.
        keys: keys in which the runs differ, without the seed.
        seeds: whether they differ in their seed.
        runs: in the order given.
        settings: best mean first; those without a finished run last.
    """

    config: SweepConfig
    keys: tuple[str, ...]
    seeds: bool
    runs: tuple[Run, ...]
    settings: tuple[Setting, ...]

    def score(self, run: Run) -> float | None:
        """A run's objective; None unless it finished with one."""
        try:
            return objective(run.summary, self.config.metric)
        except ConfigError:
            return None

    @property
    def best(self) -> Run | None:
        """The best run of the best setting."""
        best = self.settings[0] if self.settings else None
        if best is None or not best.scores:
            return None
        scored = [run for run in best.runs if self.score(run) is not None]
        sign = 1 if self.config.direction == Direction.maximize else -1
        return max(scored, key=lambda run: sign * self.score(run))

    @property
    def has_intervals(self) -> bool:
        """Whether any setting has been run with several seeds."""
        return any(setting.interval is not None for setting in self.settings)


def rank(runs: Sequence[Run], config: SweepConfig) -> Ranking:
    """Group runs by what they were told, and order the groups by their mean objective."""
    all_keys = varied(runs)
    keys = tuple(key for key in all_keys if key != "seed")
    ranking = Ranking(config, keys, "seed" in all_keys, tuple(runs), ())
    groups: dict[tuple[str | None, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run.setting(key) for key in keys), []).append(run)
    settings = []
    for values, members in groups.items():
        by_seed: dict[str, list[float]] = {}
        for run in members:
            if (score := ranking.score(run)) is not None:
                # A seed that nobody gave is in the summary alone.
                seed = str(run.summary.get("seed", run.setting("seed")))
                by_seed.setdefault(seed, []).append(score)
        scores = tuple(float(np.mean(scores)) for scores in by_seed.values())
        settings.append(Setting(values, tuple(members), scores))
    sign = -1 if config.direction == Direction.maximize else 1
    settings.sort(key=lambda s: math.inf if s.mean is None else sign * s.mean)
    return Ranking(config, keys, ranking.seeds, ranking.runs, tuple(settings))


def to_csv(ranking: Ranking) -> str:
    """One line a run, in their order, with its setting's rank, mean and interval over seeds."""
    seed = ("seed",) if ranking.seeds else ()
    columns = (*ranking.keys, *seed)
    places = {id(run): (i, s) for i, s in enumerate(ranking.settings, 1) for run in s.runs}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["run", "status", "rank", ranking.config.metric, "mean", "mean_low", "mean_high", *columns,
         "parameters", "epochs", "seconds", "rss_mb", "vram_mb", "error", "directory"]
    )  # fmt: skip
    for run in ranking.runs:
        place, setting = places[id(run)]
        writer.writerow(
            [run.name, run.status, place if setting.scores else None, ranking.score(run),
             setting.mean, *(setting.interval or (None, None)), *map(run.setting, columns),
             run.parameters, len(run.val_acc), f"{run.seconds:.3f}", run.rss_mb, run.vram_mb,
             run.error, run.path]
        )  # fmt: skip
    return text.getvalue()
