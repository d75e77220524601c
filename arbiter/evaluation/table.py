"""An evaluation for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from arbiter.evaluation.figures import DEFAULT_METHOD, named_parts


def tables(report: dict) -> list[Table]:
    """Accuracy beside its baselines; probabilities; prediction sets; what deliberation is worth."""
    parts = list(named_parts(report))
    found = [_accuracy(parts), _probabilities(parts)]
    if report["overall"]["conformal"]:
        found.append(_sets(report))
    found.append(_escalation(parts))
    if report["overall"]["dropped_modalities"]:
        found.append(_dropped(parts))
    if report["overall"]["certified"]:
        found.append(_certified(parts))
    return found


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=True)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _interval(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:.2%}-{bounds[1]:.2%}"


def _accuracy(parts: list[tuple[str, dict]]) -> Table:
    head = ("", "n", "accuracy", "95% interval", "question only", "majority", "random")
    table = _table("Accuracy", head)
    for name, part in parts:
        baselines = ("question_only_accuracy", "majority_accuracy", "random_accuracy")
        table.add_row(
            name, f"{part['n']}", _percent(part["accuracy"]), _interval(part["accuracy_interval"]),
            *(_percent(part[key]) for key in baselines),
        )  # fmt: skip
    return table


def _probabilities(parts: list[tuple[str, dict]]) -> Table:
    head = (
        "", "NLL", "before", "Brier", "before", "ECE", "before", "AURC", "exits", "agreement",
        "accuracy without exits",
    )  # fmt: skip
    table = _table("Probabilities, before and after calibration; early exit", head)
    for name, part in parts:
        before, early = part["uncalibrated"] or {}, part["exit"] or {}
        pairs = [
            f"{values[key]:.4f}" if key in values else "-"
            for key in ("nll", "brier", "ece")
            for values in (part, before)
        ]
        keys = ("rate", "agreement", "accuracy_without")
        table.add_row(
            name, *pairs, f"{part['aurc']:.5f}", *(_percent(early.get(key)) for key in keys)
        )
    return table


def _sets(report: dict) -> Table:
    """All methods over all samples; the default method for each source."""
    head = ("", "method", "alpha", "coverage", "95% interval", "mean size", "empty",
            "before filling", "promised, 99%")  # fmt: skip
    table = _table("Prediction sets", head)
    rows = [("all", entry) for entry in report["overall"]["conformal"]]
    if len(report["sources"]) > 1:
        rows += [
            (source, entry)
            for source, part in report["sources"].items()
            for entry in part["conformal"]
            if entry["method"] == DEFAULT_METHOD
        ]
    for name, entry in rows:
        table.add_row(
            name, entry["method"], f"{entry['alpha']:g}", _percent(entry["coverage"]),
            _interval(entry["coverage_interval"]), f"{entry['mean_set_size']:.3f}",
            _percent(entry["empty"]), _percent(entry["unfilled_coverage"]),
            _interval(entry["guarantee_interval"]),
        )  # fmt: skip
    return table


def _escalation(parts: list[tuple[str, dict]]) -> Table:
    head = ("", "escalated", "accuracy of what stands", "95% interval", "of what is escalated")
    table = _table("Escalation by the model's own thresholds, alpha 0.1", head)
    for name, part in parts:
        found = part["escalation"]
        stands = found["standing_accuracy"]
        table.add_row(
            name, _percent(found["rate"]), _percent(stands),
            _interval(None if stands is None else found["standing_interval"]),
            _percent(found["escalated_accuracy"]),
        )  # fmt: skip
    return table


def _dropped(parts: list[tuple[str, dict]]) -> Table:
    names = list(dict.fromkeys(name for _, part in parts for name in part["dropped_modalities"]))
    table = _table("Accuracy without a modality", ("", "all there", *names))
    for name, part in parts:
        dropped = part["dropped_modalities"]
        cells = (_percent(dropped.get(modality)) for modality in names)
        table.add_row(name, _percent(part["accuracy"]), *cells)
    return table


def _certified(parts: list[tuple[str, dict]]) -> Table:
    head = ("", "accuracy", "certified", "accuracy", "95% interval", "others", "accuracy",
            "95% interval")  # fmt: skip
    title = f"Deliberation: certified from stability {parts[0][1]['certified']['stability_from']}"
    table = _table(title, head)
    for name, part in parts:
        found = part["certified"]
        cells = []
        for kind in ("certified", "uncertified"):
            cells += [
                f"{found[f'{kind}_n']}",
                _percent(found[f"{kind}_accuracy"]),
                _interval(found[f"{kind}_interval"] if found[f"{kind}_n"] else None),
            ]
        table.add_row(name, _percent(found["accuracy"]), *cells)
    return table
