"""Sections about how far to trust a decision: calibration, prediction sets, escalation, exits."""

from __future__ import annotations

from markupsafe import Markup

from arbiter.report import page
from arbiter.report.axes import Axis, share
from arbiter.report.charts import Chart
from arbiter.report.run_files import RunFiles
from arbiter.report.wording import fixed, interval, number, percent

_ABSENT = "No evaluation/test.json: a run writes it when it has scored its test split."


def _section(name: str, title: str, run: RunFiles, body) -> page.Section:
    """A section over the evaluation, or a note where there is none."""
    if run.evaluation is None:
        return page.Section(name, title, page.note(_ABSENT))
    return page.Section(name, title, body(run.evaluation))


def _named(evaluation: dict) -> list[tuple[str, dict]]:
    """All sources together, then each one if there are several."""
    parts = list(evaluation["sources"].items())
    return [("all", evaluation["overall"]), *parts] if len(parts) > 1 else parts


def calibration(run: RunFiles) -> page.Section:
    """Whether a probability means what it says."""
    return _section("calibration", "Calibration", run, _calibration)


def _calibration(evaluation: dict) -> Markup:
    text = (
        "Of the decisions made with 80% confidence, 80% should be right. Each dot is a bin of test "
        "decisions; below the diagonal the model is too sure of itself. Before and after: without "
        "and with the temperature that the calibration split gave."
    )
    figures = [
        _reliability(f"Reliability{'' if name == 'all' else ', ' + name}", part["curves"])
        for name, part in _named(evaluation)
        if (part.get("curves") or {}).get("reliability")
    ]
    keys = {"nll": "NLL (nats)", "brier": "Brier score", "ece": "ECE"}
    named = [(name, part.get("uncalibrated") or {}, part) for name, part in _named(evaluation)]
    rows = [
        (label, fixed(named[0][1].get(key)), fixed(named[0][2].get(key)))
        for key, label in keys.items()
    ]
    table = page.table(["", "before", "after"], rows)
    if len(named) > 1:
        rows = [
            (name, *(fixed(figures.get(key)) for key in keys for figures in (before, after)))
            for name, before, after in named
        ]
        head = ["", *(f"{label} {when}" for label in keys.values() for when in ("before", "after"))]
        table += page.details("by source", page.table(head, rows))
    return page.note(text) + page.charts([*figures, page.cell(table)])


def _reliability(title: str, curves: dict) -> Markup:
    bins = curves["reliability"]
    unit = Axis(0, 1, "confidence", share)
    chart = Chart(unit, Axis(0, 1, "share of right decisions", share), title, height=260)
    chart.rule((0, 0), (1, 1))
    rows = []
    for when, color in (("before", "orange"), ("after", "blue")):
        if when not in bins:
            continue
        confidence = [b["confidence"] for b in bins[when]]
        accuracy = [b["accuracy"] for b in bins[when]]
        hints = [f"{b['n']:,} decisions" for b in bins[when]]
        chart.line(confidence, accuracy, color).dots(confidence, accuracy, color, when, hints)
        rows += [
            (when, percent(b["confidence"]), percent(b["accuracy"]), f"{b['n']:,}")
            for b in bins[when]
        ]
    numbers = page.table(["temperature", "confidence", "accuracy", "n"], rows)
    return page.figure(title, chart.render(), "", numbers)


def sets(run: RunFiles) -> page.Section:
    """Whether prediction sets hold the answer as often as promised."""
    return _section("sets", "Prediction sets", run, _sets)


def _sets(evaluation: dict) -> Markup:
    rows = [
        (name, number(c["alpha"]), c["method"], percent(c["coverage"]),
         interval(c.get("coverage_interval")), number(c["mean_set_size"]))
        for name, part in _named(evaluation)
        for c in part.get("conformal") or []
    ]  # fmt: skip
    if not rows:
        return page.note("The model has no prediction sets: it is not calibrated.")
    text = (
        "A prediction set at error level α holds the answer with probability 1 − α or more, for "
        "questions like those it was calibrated on. The charts show how often it did so on the "
        "test split, and how many candidates it takes on average."
    )
    method = rows[0][2]
    short = [row[1:2] + row[3:] for row in rows if row[0] == rows[0][0] and row[2] == method]
    summary = page.table(["α", "coverage", "95% interval", "set size"], short)
    head = ["test", "α", "method", "coverage", "95% interval", "set size"]
    if len(rows) > len(short):
        summary += page.details("all sources and methods", page.table(head, rows))
    return page.note(text) + page.charts([*_coverage(evaluation["overall"]), page.cell(summary)])


def _coverage(overall: dict) -> list[Markup]:
    """Coverage and set size over the error level."""
    curve = (overall.get("curves") or {}).get("coverage")
    if not curve:
        return []
    alphas, coverage, sizes = zip(*curve, strict=True)
    x = Axis(0, max(alphas), "error level α")
    low = min(*coverage, 1 - max(alphas))
    chart = Chart(x, Axis.over([low, 1.0], "", share), "coverage against alpha")
    chart.rule((0, 1), (max(alphas), 1 - max(alphas)), "gray", "promised, 1 − α")
    chart.line(alphas, coverage, "blue", "on the test split")
    size = Chart(x, Axis.over(sizes, "candidates", zero=True), "set size against alpha")
    size.line(alphas, sizes, "blue")
    rows = [(number(a), percent(c), number(s)) for a, c, s in curve]
    numbers = page.table(["α", "coverage", "set size"], rows)
    return [
        page.figure("Coverage against α", chart.render(), "", numbers),
        page.figure("Mean set size against α", size.render(), "", numbers),
    ]


def risk(run: RunFiles) -> page.Section:
    """What it gains to hand on the decisions that the model is least sure of."""
    return _section("risk", "Escalation", run, _risk)


def _risk(evaluation: dict) -> Markup:
    overall = evaluation["overall"]
    text = (
        "Decisions are ranked by confidence. If only the surest share is decided and the rest "
        "escalated, this is the error rate among the decided. AURC is the area under the curve."
    )
    figures = []
    curve = (overall.get("curves") or {}).get("risk_coverage")
    if curve:
        coverage, risks = zip(*curve, strict=True)
        x = Axis(0, 1, "share of decisions that are made", share)
        chart = Chart(x, Axis.over(risks, "errors among them", share, zero=True), "risk-coverage")
        chart.line(coverage, risks, "blue")
        step = max(1, len(curve) // 40)
        rows = [(percent(c, 1), percent(r)) for c, r in curve[::step]]
        numbers = page.table(["decided", "errors"], rows)
        figures.append(page.figure("Risk against coverage", chart.render(), "", numbers))
    rows = [
        (name, number(part.get("aurc")), _ends(part.get("aurc_interval")))
        for name, part in _named(evaluation)
    ]
    table = page.table(["", "AURC", "95% interval"], rows)
    cells = [page.cell(table), page.cell(_asked(overall))]
    body = page.note(text) + page.charts([*figures, *cells])
    certified = overall.get("certified")
    return body + (_certified(certified) if certified else Markup(""))


def _asked(overall: dict) -> Markup:
    """What becomes of decisions under the model's own thresholds."""
    asked = overall.get("escalation")
    if not asked:
        return Markup("")
    shares = {"standing": 1 - asked["rate"], "escalated": asked["rate"]}
    rows = [
        (name, percent(part, 1), percent(asked[f"{name}_accuracy"]),
         interval(asked[f"{name}_interval"]))
        for name, part in shares.items()
    ]  # fmt: skip
    reasons = [(name, percent(part)) for name, part in asked.get("reasons", {}).items()]
    table = page.table(["own thresholds", "share", "accuracy", "95% interval"], rows)
    if reasons:
        table += page.details("reasons", page.table(["reason", "share"], reasons))
    return table


def _ends(bounds: list[float] | None) -> str | None:
    return None if bounds is None else f"{number(bounds[0])} to {number(bounds[1])}"


def _certified(certified: dict) -> Markup:
    """Decisions that stayed the same when the model thought about them several times."""
    rows = [
        (name, f"{certified[f'{name}_n']:,}", percent(certified[f"{name}_accuracy"]),
         interval(certified[f"{name}_interval"]))
        for name in ("certified", "uncertified")
    ]  # fmt: skip
    text = f"Certified: at least {percent(certified['stability_from'], 0)} of the passes agreed."
    heading = Markup("<h3>Deliberation</h3>") + page.note(text)
    return heading + page.table(["", "n", "accuracy", "95% interval"], rows)


def exits(run: RunFiles) -> page.Section:
    """How often the draft head decides alone, and what that costs."""
    gate = (run.facts.get("calibration") or {}).get("gate") or {}
    return _section("exits", "Early exit", run, lambda e: _exits(e, gate.get("reason")))


def _exits(evaluation: dict, reason: str | None) -> Markup:
    rows = [
        (name, percent(e["rate"]), percent(e["agreement"]), interval(e.get("agreement_interval")),
         percent(e["accuracy_with"]), percent(e["accuracy_without"]))
        for name, part in _named(evaluation)
        for e in [part.get("exit")]
        if e
    ]  # fmt: skip
    if not rows:
        return page.note(f"The gate is shut: {reason or 'the model has none'}.")
    text = (
        "The draft head scores pooled inputs before any fusion. Where it is sure enough it "
        "decides, and the fusion layers are not computed. Agreement: how often it chooses as they "
        "would; with and without: the accuracy of all decisions."
    )
    head = ["test", "exits", "agreement", "95% interval", "with exits", "without"]
    return page.note(text) + page.table(head, rows)
