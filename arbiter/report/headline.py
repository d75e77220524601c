"""What stands at the top: the run's state, and how good it is beside what needs no model."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from arbiter.report import page
from arbiter.report.axes import Axis, Names, share
from arbiter.report.charts import Chart
from arbiter.report.run_files import RunFiles
from arbiter.report.wording import duration, fixed, interval, moment, number, percent

_BASELINES = {
    "question_only_accuracy": ("question only", "orange"),
    "majority_accuracy": ("majority", "purple"),
    "random_accuracy": ("chance", "gray"),
}
_CALIBRATED_ALPHA = 0.1


def lead(run: RunFiles) -> Markup:
    """One line that says what this is, and what a reader must know before any figure."""
    since = "" if run.since is None else f", {moment(run.since)}"
    text = f"{run.status.capitalize()}{since}. {_trained_on(run)}"
    parts = [page.paragraph(text, "soft")]
    if run.facts.get("encoder", {}).get("random_weights"):
        parts.append(page.alert("The encoder has random weights, as asked for.", "red"))
    if run.status != "finished":
        parts.append(page.alert(_unfinished(run), "red" if run.status == "failed" else "orange"))
    return page.join(parts)


def _trained_on(run: RunFiles) -> str:
    """Samples, encoder and size in one sentence."""
    facts = run.facts
    if not facts:
        return ""
    train = [
        f"{part['splits'].get('train', 0):,} {source}"
        for source, part in (facts.get("sources") or {}).items()
    ] or [f"{facts.get('samples', {}).get('train', 0):,}"]
    size = facts.get("parameters", {}).get("trainable", 0)
    encoder = facts.get("encoder", {}).get("name")
    over = f" over the encoder {encoder}" if encoder else ""
    text = f"A decision model of {size / 1e6:.2f} million trained parameters{over}, trained on "
    return f"{text}{' + '.join(train)} samples."


def _unfinished(run: RunFiles) -> Markup:
    """What an unfinished run has, and how it goes on."""
    text = Markup("")
    if run.error:
        text += Markup("{}. ").format(run.error)
    if run.epochs:
        total = (run.config or {}).get("schedule", {}).get("epochs")
        of = f" of {total}" if total else ""
        text += f"{run.epochs[-1]['epoch']}{of} epochs are done. "
    if run.status == "running":
        return text + "This page shows the run so far; make it again for more."
    if run.state is None:
        return text + "No resume state was written, so the run cannot be gone on with."
    return text + Markup("Its newest resume state is step {:,}; {} goes on from there.").format(
        run.state, page.code(f"python -m experiments.train resume={run.path}")
    )


def headline(run: RunFiles) -> page.Section:
    """Accuracy with its interval beside baselines, by source and question type."""
    name, title = "results", "Results"
    if not run.test:
        best = max((e["val_acc"] for e in run.epochs if "val_acc" in e), default=None)
        text = "The test split is scored once, at the end of a run; this run has not come so far. "
        if run.status == "finished":
            text = "This mix has no test split. "
        if best is not None:
            text += f"Best validation accuracy so far: {percent(best)}."
        return page.Section(name, title, page.note(text))
    rows = list(_parts(run))
    chart = page.figure("Test accuracy", _dots(rows), _CAPTION)
    tables = _table(rows) + _dropped(run) + _others(run)
    body = _tiles(run) + page.beside(chart, tables)
    return page.Section(name, title, _alerts(run) + body + _notes(run))


_CAPTION = (
    "Lines are 95% intervals. Question only: the same model with all media left out; majority: the "
    "most frequent training answer to a question; chance: one of the candidates at random. "
    "NLL is in nats."
)


def _alerts(run: RunFiles) -> Markup:
    """What must be known before any figure: that these samples may not be held out."""
    suspect = run.evaluation is not None and not run.evaluation.get("held_out", True)
    return page.join(map(page.alert, run.evaluation["notes"])) if suspect else Markup("")


def _notes(run: RunFiles) -> Markup:
    """What else the evaluation says of itself."""
    sound = run.evaluation is not None and run.evaluation.get("held_out", True)
    notes = run.evaluation.get("notes", []) if sound else []
    return page.join(page.note(f"{text[:1].upper()}{text[1:]}.") for text in notes)


def _overall(run: RunFiles) -> dict:
    """The figures over all sources; those of the only source where nothing says them."""
    if run.evaluation is not None:
        return run.evaluation["overall"]
    return next(iter(run.test.values())) if len(run.test) == 1 else {}


def _parts(run: RunFiles) -> Iterator[tuple[str, dict]]:
    """Names, a blank before those of question types, with their figures."""
    if len(run.test) > 1 and run.evaluation is not None:
        yield "all sources", run.evaluation["overall"]
    for source, part in run.test.items():
        yield source, part
        for kind, figures in part.get("question_types", {}).items():
            yield f" {kind}", figures


def _tiles(run: RunFiles) -> Markup:
    part, items = _overall(run), []
    if part:
        below = f"{part['n']:,} questions, 95%: {interval(part['accuracy_interval'])}"
        items.append(("Accuracy", percent(part["accuracy"]), below))
        best = max(_BASELINES, key=lambda key: part.get(key) or 0)
        items.append(("Best baseline", percent(part.get(best)), _BASELINES[best][0]))
        before = (part.get("uncalibrated") or {}).get("ece")
        below = "calibration error" if before is None else f"{number(before, 3)} uncalibrated"
        items.append(("ECE", number(part.get("ece"), 3), below))
    conformal = _conformal(part, _CALIBRATED_ALPHA)
    if conformal:
        below = f"asked for {percent(1 - _CALIBRATED_ALPHA, 0)}, "
        below += f"sets of {number(conformal['mean_set_size'], 3)} candidates"
        items.append(("Coverage of sets", percent(conformal["coverage"], 1), below))
    if part.get("exit"):
        agreement = part["exit"]["agreement"]
        below = "the draft head was never sure enough"
        if agreement is not None:
            below = f"the full model agrees in {percent(agreement, 1)}"
        items.append(("Early exits", percent(part["exit"]["rate"], 1), below))
    if part.get("latency"):
        below = f"95% within {duration(part['latency']['p95_seconds'])}"
        items.append(("Time per decision", duration(part["latency"]["p50_seconds"]), below))
    trained = run.facts.get("parameters", {}).get("trainable")
    if run.facts.get("train_seconds") is not None and trained:
        seconds = duration(run.facts["train_seconds"])
        items.append(("Training", seconds, f"{trained / 1e6:.2f} million parameters"))
    return page.tiles(items)


def _conformal(part: dict, alpha: float) -> dict | None:
    """The first method's sets at an error level."""
    return next((c for c in part.get("conformal") or [] if abs(c["alpha"] - alpha) < 1e-9), None)


def _dots(rows: list[tuple[str, dict]]) -> Markup:
    """Accuracy and baselines as dots on a line for each part."""
    names = [name if len(name) < 19 else name[:17] + "…" for name, _ in rows]
    left = 22 + round(6.2 * max(map(len, names)))
    height = 60 + 24 * len(rows)
    title = "test accuracy and baselines"
    chart = Chart(Axis(0, 1, "", share), Names(names), title, height=height, left=left)
    chart.keys.append(("blue", "model"))
    for i, (_, part) in enumerate(rows):
        low, high = part["accuracy_interval"]
        chart.segment((low, i), (high, i), "blue")
    for key, (label, color) in _BASELINES.items():
        values = [part.get(key) for _, part in rows]
        chart.dots(values, range(len(rows)), color, label, [percent(v) for v in values], 3)
    values = [part["accuracy"] for _, part in rows]
    chart.dots(values, range(len(rows)), "blue", "model", [percent(v) for v in values], 4.5)
    return chart.render()


def _table(rows: list[tuple[str, dict]]) -> Markup:
    head = ["", "n", "accuracy", "95% interval", *(label for label, _ in _BASELINES.values()),
            "NLL", "Brier", "ECE"]  # fmt: skip
    lines = [
        (
            name, f"{part['n']:,}", percent(part["accuracy"]), interval(part["accuracy_interval"]),
            *(percent(part.get(key)) for key in _BASELINES),
            *(fixed(part.get(key)) for key in ("nll", "brier", "ece")),
        )
        for name, part in rows
    ]  # fmt: skip
    return page.table(head, lines, parts=True)


def _dropped(run: RunFiles) -> Markup:
    """Accuracy when one modality is left out."""
    by_source = {s: p.get("dropped_modalities") for s, p in run.test.items()}
    names = list(dict.fromkeys(m for part in by_source.values() for m in part or {}))
    if not names:
        return Markup("")
    rows = [
        (source, percent(run.test[source]["accuracy"]), *(percent((d or {}).get(n)) for n in names))
        for source, d in by_source.items()
    ]
    head = ["accuracy", "with all", *(f"without {name}" for name in names)]
    heading = Markup("<h3>With a modality left out</h3>")
    return heading + page.table(head, rows)


def _others(run: RunFiles) -> Markup:
    """What experiments.evaluate has added."""
    if not run.others:
        return Markup("")
    rows = [
        (name, e.get("dataset"), e.get("split"), f"{e['overall']['n']:,}",
         percent(e["overall"]["accuracy"]), interval(e["overall"]["accuracy_interval"]))
        for name, e in run.others.items()
    ]  # fmt: skip
    head = ["evaluation", "dataset", "split", "n", "accuracy", "95% interval"]
    return Markup("<h3>Further evaluations</h3>") + page.table(head, rows)
