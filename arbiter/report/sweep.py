"""sweep.html and sweep.csv: runs beside each other, best first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from arbiter.files import write_text_atomic
from arbiter.report.axes import Axis, Names
from arbiter.report.charts import SERIES, Chart
from arbiter.report.page import (
    Section,
    alert,
    charts,
    escaped,
    figure,
    join,
    note,
    page,
    paragraph,
    tiles,
)
from arbiter.report.page import table as plain_table
from arbiter.report.wording import MISSING, duration, number
from arbiter.sweeps.names import short_keys, short_value
from arbiter.sweeps.ranking import Ranking, Setting, to_csv
from arbiter.sweeps.runs import Run
from arbiter.sweeps.terminal import interval, mean_seconds, peak, short_name, statuses

_DIGITS = 5
_MAX_CHARTS = 12
_MAX_NAMES = 12


def write_sweep(directory: Path, ranking: Ranking) -> Path:
    """Write sweep.csv and sweep.html into a directory; returns the page's path."""
    write_text_atomic(directory / "sweep.csv", to_csv(ranking))
    path = directory / "sweep.html"
    write_text_atomic(path, sweep_page(ranking, directory))
    return path


def sweep_page(ranking: Ranking, directory: Path) -> str:
    """The page, whose links lead from `directory` to the runs."""
    counts = Counter(run.status for run in ranking.runs)
    lead = paragraph(
        f"{len(ranking.runs)} runs: " + ", ".join(f"{n} {status}" for status, n in counts.items())
    )

    # A job's number says which it is; its values have columns of their own.
    is_sweep = all(run.path.parent == directory for run in ranking.runs)
    label = short_name if is_sweep else _name

    def link(run: Run, text: str | None = None) -> Markup:
        return _link(run, directory, text or label(run))

    sections = [Section("ranking", "Ranking", _ranking(ranking, link))]
    if pictures := _scatters(ranking):
        sections.append(Section("values", "Values against the objective", charts(pictures)))
    if curves := _curves(ranking, label):
        sections.append(Section("curves", "Validation accuracy by epoch", charts([curves])))
    if any(len(setting.runs) > 1 for setting in ranking.settings):
        sections.append(Section("runs", "Every run", _all_runs(ranking, link)))
    if counts["failed"]:
        rows = [(link(r), r.error) for r in ranking.runs if r.status == "failed"]
        body = plain_table(["run", "error"], rows, text=True)
        sections.append(
            Section("failed", "Failed", body + note("Each run's train.log tells more."))
        )
    script = files("arbiter.report").joinpath("sort.js").read_text(encoding="utf-8")
    name = "Sweep" if is_sweep else "Runs compared:"
    return page(
        f"{name} {directory.resolve().name}",
        lead + _headline(ranking, link),
        sections,
        script=script,
    )


def _name(run: Run) -> str:
    return run.name


def _link(run: Run, directory: Path, text: str) -> Markup:
    """A link to the run's report, or to its log if it has none."""
    for name in ("report.html", "train.log"):
        if (run.path / name).is_file():
            target = quote(Path(os.path.relpath(run.path / name, directory)).as_posix())
            return Markup('<a href="{}" title="{}">{}</a>').format(target, run.name, text)
    return escaped(text)


def _headline(ranking: Ranking, link: Callable[..., Markup]) -> Markup:
    best = ranking.best
    if best is None:
        return alert("No run has finished with the figure to rank by.")
    setting = ranking.settings[0]
    reach = f"95% over {len(setting.scores)} seeds: {interval(setting)}"
    told = ", ".join(
        f"{k}={short_value(v)}"
        for k, v in zip(short_keys(ranking.keys).values(), setting.values, strict=True)
        if v
    )
    return tiles(
        [
            (
                f"best {ranking.config.metric}",
                number(setting.mean, _DIGITS),
                reach if len(setting.scores) > 1 else f"to {ranking.config.direction}",
            ),
            ("best run", link(best, short_name(best)), told or best.name),
            ("time in all", duration(sum(run.seconds for run in ranking.runs)), "of training"),
        ]
    )


def _sortable(value: float | str | None, text: str | Markup) -> Markup:
    """A cell that the page's script sorts by its value rather than by its text."""
    if value is None:
        return Markup('<span data-sort="">{}</span>').format(text)
    return Markup('<span data-sort="{}">{}</span>').format(value, text)


def _ranking(ranking: Ranking, link: Callable[..., Markup]) -> Markup:
    """One row a setting."""
    has_vram = any(run.vram_mb for run in ranking.runs)
    memory = "vram_mb" if has_vram else "rss_mb"
    head = ["rank", ranking.config.metric]
    head += ["95% over seeds"] if ranking.has_intervals else []
    head += [*_titles(ranking), "parameters", "time"]
    head += ["peak device MB" if has_vram else "peak MB"]
    head += ["status", "run"]
    rows = []
    for place, setting in enumerate(ranking.settings, 1):
        row = [_sortable(place, str(place) if setting.scores else MISSING)]
        row.append(_sortable(setting.mean, number(setting.mean, _DIGITS)))
        row += [interval(setting)] if ranking.has_intervals else []
        row += [_setting_cell(value) for value in setting.values]
        row.append(_sortable(setting.parameters, number(setting.parameters)))
        seconds, most = mean_seconds(setting), peak(setting, memory)
        row += [_sortable(seconds, duration(seconds)), _sortable(most, number(most))]
        several = len(setting.runs) > 1
        runs = join([link(run, short_name(run) if several else None) for run in setting.runs], ", ")
        rows.append([*row, statuses(setting), runs])
    remark = (
        "Parameters are those that are trained. Memory is the most that any line of metrics.jsonl "
        "says. The time is that of training and "
        "validation, the mean where there are several seeds."
    )
    return _sorting_table(head, rows) + note(remark)


def _titles(ranking: Ranking) -> list[Markup]:
    """Short names of the keys, with the whole ones under the mouse."""
    return [
        Markup('<span title="{}">{}</span>').format(key, name)
        for key, name in short_keys(ranking.keys).items()
    ]


def _setting_cell(value: str | None) -> Markup:
    return _sortable(value, MISSING if value is None else short_value(value))


def _sorting_table(head: list[str | Markup], rows: list[list]) -> Markup:
    return Markup('<div class="sortable">{}</div>').format(plain_table(head, rows))


def _all_runs(ranking: Ranking, link: Callable[..., Markup]) -> Markup:
    """One row a run, where settings have several."""
    head = ["run", ranking.config.metric, *_titles(ranking), "seed", "time", "peak MB", "status"]
    rows = []
    for place, run in enumerate(ranking.runs):
        score = ranking.score(run)
        rows.append(
            [
                _sortable(place, link(run)),
                _sortable(score, number(score, _DIGITS)),
                *(_setting_cell(run.setting(key)) for key in (*ranking.keys, "seed")),
                _sortable(run.seconds, duration(run.seconds or None)),
                _sortable(run.rss_mb, number(run.rss_mb)),
                run.status,
            ]
        )
    return _sorting_table(head, rows)


# ---------------------------------------------------------------- pictures


def _scatters(ranking: Ranking) -> list[Markup]:
    """A chart for each key: its value and the objective of every finished run."""
    scored = [(run, score) for run in ranking.runs if (score := ranking.score(run)) is not None]
    if len(scored) < 2:
        return []
    pictures = []
    for key in ranking.keys[:_MAX_CHARTS]:
        chart = _scatter(ranking, key, scored)
        if chart is not None:
            pictures.append(figure(key, chart.render()))
    return pictures


def _scatter(ranking: Ranking, key: str, scored: list[tuple[Run, float]]) -> Chart | None:
    values = [run.setting(key) for run, _ in scored]
    numbers = _numbers(values)
    scores = [score for _, score in scored]
    y = Axis.over(scores, ranking.config.metric)
    if numbers is not None:
        low, high = min(numbers), max(numbers)
        x, places = Axis.over(numbers, key, log=low > 0 and high / low >= 10), numbers
    else:
        names = list(dict.fromkeys(MISSING if value is None else value for value in values))
        if len(names) > _MAX_NAMES:
            return None
        x = Names([name if len(name) <= 12 else f"{name[:11]}…" for name in names], key)
        places = [names.index(MISSING if value is None else value) for value in values]
    chart = Chart(x, y, f"{ranking.config.metric} against {key}", left=52)
    best = ranking.settings[0]
    for label, color, chosen in (("other", "blue", False), ("best setting", "green", True)):
        marked = [i for i, (run, _) in enumerate(scored) if (run in best.runs) is chosen]
        chart.dots(
            [places[i] for i in marked], [scores[i] for i in marked], color, label,
            [f"{scored[i][0].name}: {scores[i]:.5g}" for i in marked],
        )  # fmt: skip
    return chart


def _numbers(values: list[str | None]) -> list[float] | None:
    """All values as numbers, or None if they are not."""
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        return None


def _curves(ranking: Ranking, label: Callable[[Run], str]) -> Markup | None:
    """The learning curves of the best settings, one run each."""
    shown: list[tuple[Setting, Run]] = []
    for setting in ranking.settings:
        longest = max(setting.runs, key=lambda run: len(run.val_acc))
        if longest.val_acc and len(shown) < len(SERIES):
            shown.append((setting, longest))
    if not shown:
        return None
    curves = [run.val_acc for _, run in shown]
    x = Axis.over([1, *(len(curve) for curve in curves)], "epoch", whole=True, integer=True)
    y = Axis.over([value for curve in curves for value in curve], "validation accuracy")
    chart = Chart(x, y, "validation accuracy by epoch", left=52)
    for color, (_, run) in zip(SERIES, shown, strict=False):
        chart.line(range(1, len(run.val_acc) + 1), run.val_acc, color, label(run))
    title = "One run of each setting" if ranking.seeds else "The best runs"
    return figure(title, chart.render())
