"""A ranking on the terminal."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from arbiter.console import console
from arbiter.report.wording import MISSING, duration, number
from arbiter.sweeps.names import short_keys, short_value
from arbiter.sweeps.ranking import Ranking, Setting
from arbiter.sweeps.runs import Run

_SHOWN = 20
_DIGITS = 5


def statuses(setting: Setting) -> str:
    """How its runs ended: `finished`, or `2 finished, 1 failed`."""
    counts = Counter(run.status for run in setting.runs)
    if len(setting.runs) == 1:
        return setting.runs[0].status
    return ", ".join(f"{n} {status}" for status, n in counts.items())


def interval(setting: Setting) -> str:
    """The interval over seeds."""
    bounds = setting.interval
    if bounds is None:
        return MISSING
    return " to ".join(number(bound, _DIGITS) for bound in bounds)


def peak(setting: Setting, name: str) -> float | None:
    """The most memory of any of its runs, in MB."""
    return max((getattr(r, name) for r in setting.runs if getattr(r, name)), default=None)


def mean_seconds(setting: Setting) -> float | None:
    """The mean time of its runs that finished an epoch."""
    times = [run.seconds for run in setting.runs if run.seconds]
    return sum(times) / len(times) if times else None


def short_name(run: Run) -> str:
    """The number that a sweep's job begins its name with, or else the whole name."""
    number = run.name.split("_")[0]
    return number if number.isdigit() else run.name


def print_ranking(ranking: Ranking) -> None:
    """The best settings as a table, and one line for each failed run."""
    has_vram = any(run.vram_mb for run in ranking.runs)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", justify="right")
    table.add_column("objective", justify="right", overflow="fold")
    if ranking.seeds:
        table.add_column("95% over seeds", justify="right", overflow="fold")
    for name in short_keys(ranking.keys).values():
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("device MB" if has_vram else "peak MB", justify="right", no_wrap=True)
    table.add_column("status", overflow="fold")
    table.add_column("run", overflow="fold")
    for place, setting in enumerate(ranking.settings[:_SHOWN], 1):
        row = [str(place) if setting.scores else "", number(setting.mean, _DIGITS)]
        if ranking.seeds:
            row.append(interval(setting))
        row += [MISSING if value is None else short_value(value) for value in setting.values]
        memory = peak(setting, "vram_mb" if has_vram else "rss_mb")
        row += [duration(mean_seconds(setting)), number(memory, 4), statuses(setting)]
        table.add_row(*row, " ".join(map(short_name, setting.runs)))
    way = ranking.config.direction.value
    console.print(f"\n{len(ranking.runs)} runs by {ranking.config.metric}, to {way}")
    console.print(table, markup=False)
    if len(ranking.settings) > _SHOWN:
        console.print(f"... and {len(ranking.settings) - _SHOWN} more")
    for run in ranking.runs:
        if run.status == "failed":
            console.print(f"failed: {run.name}: {run.error}", markup=False, soft_wrap=True)
