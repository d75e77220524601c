"""Sections about time: learning curves, learning rate, expert load, speed and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from arbiter.report import page
from arbiter.report.axes import Axis, plain, share
from arbiter.report.charts import SERIES, Chart, heatmap
from arbiter.report.run_files import RunFiles
from arbiter.report.wording import duration, number, percent

_POINTS = 240
"""Points of a curve at most: more than a chart has pixels for are averaged in groups."""
_COLUMNS = 60


def learning(run: RunFiles) -> page.Section:
    """Loss and accuracy of training and validation, by source too, and the learning rate."""
    figures = [*_by_epoch(run), *_by_step(run)]
    text = "No step event has been written yet."
    if run.epochs:
        text = (
            "Training figures are means over an epoch as it was trained, validation figures belong "
            f"to its end. The best epoch so far by validation is "
            f"{run.epochs[-1].get('best_epoch', 'not recorded')}."
        )
        if skipped := run.epochs[-1].get("skipped_steps"):
            text += f" Steps skipped for a loss or gradient that was not finite: {skipped:,}."
    elif figures:
        text = "No epoch has ended yet."
    return page.Section("learning", "Learning curves", page.note(text) + page.charts(figures))


def _by_epoch(run: RunFiles) -> list[Markup]:
    """Figures of the epoch events."""
    epochs = run.epochs
    if not epochs:
        return []
    number_of = [e["epoch"] for e in epochs]
    x = Axis.over(number_of, "epoch", whole=True, integer=True)

    def curve(title: str, series: dict[str, tuple[str, list]], form=plain, unit="") -> Markup:
        values = [v for _, ys in series.values() for v in ys]
        chart = Chart(x, Axis.over(values, unit, form, zero=form is plain), title)
        for label, (color, ys) in series.items():
            chart.line(number_of, ys, color, label)
        write = percent if form is share else number
        rows = zip(number_of, *(map(write, ys) for _, ys in series.values()), strict=True)
        return page.figure(title, chart.render(), "", page.table(["epoch", *series], rows))

    def both(name: str) -> dict[str, tuple[str, list]]:
        train = [e.get(f"train_{name}") for e in epochs]
        return {
            "train": ("gray", train),
            "validation": ("blue", [e.get(f"val_{name}") for e in epochs]),
        }

    figures = [
        curve("Loss", both("loss"), unit="cross-entropy, nats"),
        curve("Accuracy", both("acc"), share),
    ]
    for name, title, form, unit in (
        ("val_loss_by_source", "Validation loss by source", plain, "cross-entropy, nats"),
        ("val_acc_by_source", "Validation accuracy by source", share, ""),
    ):
        series = _by_source(epochs, name)
        if len(series) > 1:
            figures.append(curve(title, series, form, unit))
    draft = [e.get("draft_acc") for e in epochs]
    if any(v is not None for v in draft):
        entropy = {"entropy": ("blue", [e.get("entropy") for e in epochs])}
        heads = {
            "decision head": ("blue", [e.get("val_acc") for e in epochs]),
            "draft head": ("orange", draft),
        }
        figures.append(curve("Validation accuracy of both heads", heads, share))
        figures.append(curve("Validation entropy", entropy, unit="mean per decision, nats"))
    terms = {
        label: (SERIES[i], [e.get(name) for e in epochs])
        for i, (name, label) in enumerate(_TERMS.items())
        if any(e.get(name) is not None for e in epochs)
    }
    if terms:
        figures.append(curve("Other loss terms, train", terms, unit="unweighted"))
    return figures


_TERMS = {
    "margin_loss": "margin",
    "foil_loss": "foils",
    "balance_loss": "balance",
    "draft_loss": "draft",
    "distillation_loss": "distillation",
}


def _by_source(epochs: Sequence[dict], name: str) -> dict[str, tuple[str, list]]:
    sources = list(dict.fromkeys(s for e in epochs for s in e.get(name) or {}))
    return {
        source: (SERIES[i % len(SERIES)], [(e.get(name) or {}).get(source) for e in epochs])
        for i, source in enumerate(sources)
    }


def _means(values: Sequence[float | None], parts: int) -> list[float | None]:
    """Means of consecutive values, in as many groups of nearly equal size."""
    known = np.array([np.nan if v is None else v for v in values], dtype=float)
    groups = np.array_split(known, min(parts, len(known)))
    means = [g[~np.isnan(g)].mean() if (~np.isnan(g)).any() else None for g in groups]
    return [None if mean is None else float(mean) for mean in means]


def _curve_over_steps(
    run: RunFiles, title: str, series: dict[str, tuple[str, list]], unit: str = "", form=plain,
    zero: bool = True, caption: str = "",
) -> Markup:  # fmt: skip
    """Figures of the step events over the optimizer steps."""
    steps = _means([e["step"] for e in run.steps], _POINTS)
    short = {k: (color, _means(ys, _POINTS)) for k, (color, ys) in series.items()}
    values = [v for _, ys in short.values() for v in ys]
    x = Axis.over(steps, "optimizer step", zero=True, whole=True, integer=True)
    chart = Chart(x, Axis.over(values, unit, form, zero=zero), title)
    for label, (color, ys) in short.items():
        chart.line(steps, ys, color, label if len(short) > 1 else "")
    write = percent if form is share else number
    table = zip(
        [f"{step:,.0f}" for step in _means(steps, _COLUMNS)],
        *(map(write, _means(ys, _COLUMNS)) for _, ys in short.values()),
        strict=True,
    )
    return page.figure(title, chart.render(), caption, page.table(["step", *short], table))


def _by_step(run: RunFiles) -> list[Markup]:
    """Learning rate, and the training loss more finely than by epoch."""
    rates = {"learning rate": ("blue", [e.get("lr") for e in run.steps])}
    loss = {"loss": ("gray", [e.get("cross_entropy") for e in run.steps])}
    if not run.steps:
        return []
    return [
        _curve_over_steps(run, "Learning rate", rates),
        _curve_over_steps(run, "Training loss by step", loss, "cross-entropy, nats"),
    ]


def experts(run: RunFiles) -> page.Section:
    """How much each expert of each layer had to do."""
    name, title = "experts", "Expert load"
    events = [e for e in run.steps if e.get("expert_load")]
    if not events:
        text = "metrics.jsonl has no expert_load: no step event yet, or an older version wrote it."
        return page.Section(name, title, page.note(text))
    load = np.array([e["expert_load"] for e in events])  # [events, layers, experts]
    count = load.shape[-1]
    columns = np.array_split(np.arange(len(load)), min(_COLUMNS, len(load)))
    shares = np.stack([load[part].mean(axis=0) for part in columns])
    full = max(2 / count, float(shares.max()))
    x = Axis(0, events[-1]["step"], "optimizer step", integer=True)
    names = [str(i + 1) for i in range(count)]
    figures = []
    for layer in range(load.shape[1]):
        picture = heatmap(
            f"load of layer {layer + 1}", shares[:, layer].T.tolist(), full, x, names, "expert"
        )
        last = [percent(s, 1) for s in shares[-1, layer]]
        lowest = [percent(s, 1) for s in shares[:, layer].min(axis=0)]
        rows = zip(names, last, lowest, strict=True)
        numbers = page.table(["expert", "at the end", "lowest"], rows)
        figures.append(page.figure(f"Layer {layer + 1}", picture, "", numbers))
    text = (
        f"The share of all routing choices that went to each of {count} experts; an even load is "
        f"{percent(1 / count, 1)}. The deeper the "
        f"colour the more, up to {percent(full, 0)}."
    )
    return page.Section(name, title, page.note(text) + page.charts(figures))


def speed(run: RunFiles) -> page.Section:
    """Throughput, memory, and where the time went."""
    name, title = "speed", "Speed and memory"
    if not run.steps:
        return page.Section(name, title, page.note("No step event has been written yet."))

    def of(field: str, scale: float = 1.0) -> list[float | None]:
        return [None if e.get(field) is None else e[field] * scale for e in run.steps]

    memory = {"main memory (RSS)": ("blue", of("rss_mb", 1e-3))}
    if any(v is not None for v in of("vram_mb")):
        memory["device memory, peak"] = ("orange", of("vram_mb", 1e-3))
    throughput = {"throughput": ("blue", of("samples_per_sec"))}
    figures = [
        _curve_over_steps(run, "Throughput", throughput, "questions per second"),
        _curve_over_steps(run, "Memory", memory, "GB"),
        _curve_over_steps(
            run, "Waiting for data", {"share of time": ("blue", of("data_wait_share"))},
            "share of training time", share,
        ),
    ]  # fmt: skip
    facts = {}
    machine = run.facts.get("machine", {})
    if machine:
        facts["device"] = f"{machine.get('device')} ({machine.get('name')})"
        facts["threads"] = machine.get("threads")
    if run.facts.get("train_seconds") is not None:
        facts["training"] = duration(run.facts["train_seconds"])
    elif run.epochs:
        facts["epochs so far"] = duration(sum(e.get("train_seconds", 0) for e in run.epochs))
    return page.Section(name, title, page.facts(facts) + page.charts(figures))
