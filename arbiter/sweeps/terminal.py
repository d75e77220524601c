"""A ranking on the terminal."""

from __future__ import annotations

from collections import Counter

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from arbiter.console import console, say
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
    memory = "vram_mb" if has_vram else "rss_mb"
    head = ["", "objective"]
    head += ["95% over seeds"] if ranking.has_intervals else []
    head += [*short_keys(ranking.keys).values(), "parameters", "time"]
    head += ["device MB" if has_vram else "peak MB", "status", "run"]
    rows = []
    for place, setting in enumerate(ranking.settings[:_SHOWN], 1):
        row = [str(place) if setting.scores else "", number(setting.mean, _DIGITS)]
        row += [interval(setting)] if ranking.has_intervals else []
        row += [MISSING if value is None else short_value(value) for value in setting.values]
        row += [number(setting.parameters), duration(mean_seconds(setting))]
        row += [number(peak(setting, memory), 4)]
        rows.append([*row, statuses(setting), " ".join(map(short_name, setting.runs))])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, column in zip(head, zip(*rows, strict=True), strict=True):
        # Titles are folded before figures are; names of runs may be long.
        parts = [w for cell in column for w in (cell.split() if title == "status" else [cell])]
        width = None if title == "run" else max(map(len, parts))
        side = "left" if title in ("run", "status") else "right"
        table.add_column(title, justify=side, overflow="fold", min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    way = ranking.config.direction
    console.print(f"\n{len(ranking.runs)} runs by {ranking.config.metric}, to {way}", markup=False)
    # Rich would leave out the columns that a narrow terminal has no room for.
    least = Measurement.get(console, console.options.update(width=1000), table).minimum
    console.print(table, width=max(console.width, least), crop=False, no_wrap=True)
    if len(ranking.settings) > _SHOWN:
        console.print(f"... and {len(ranking.settings) - _SHOWN} more")
    for run in ranking.runs:
        if run.status == "failed":
            say(f"failed: {run.name}: {run.error}")
