"""The section that shows held-out decisions."""

from __future__ import annotations

from markupsafe import Markup

from arbiter.report import page
from arbiter.report.charts import svg
from arbiter.report.run_files import RunFiles
from arbiter.report.wording import duration, percent


def decisions(run: RunFiles) -> page.Section:
    """Right and wrong decisions on samples that the model never saw."""
    name, title = "decisions", "Decisions"
    gallery = run.gallery
    if gallery is None:
        text = "No decisions are kept: a run keeps some when it has scored its test split."
        return page.Section(name, title, page.note(text))
    kind = "calibrated" if run.facts.get("calibration") else "uncalibrated"
    text = (
        f"Samples of the {gallery['split']} split, spread evenly over all right and all wrong "
        f"decisions; nobody picked them. Bars are {kind} probabilities, ✓ marks the answer."
    )
    parts = [page.note(text)]
    for kind, color in (("right", "green"), ("wrong", "red")):
        shown = gallery[kind]
        parts.append(Markup("<h3>{}</h3>").format(kind.capitalize()))
        if shown:
            cards = page.join(_card(decision, color) for decision in shown)
            parts.append(Markup('<div class="gallery">{}</div>').format(cards))
        else:
            parts.append(page.note(f"No decision was {kind}."))
    return page.Section(name, title, page.join(parts))


def _card(decision: dict, color: str) -> Markup:
    context = ""
    if decision["context"]:
        context = Markup('<div class="context" tabindex="0">{}</div>').format(decision["context"])
    more = decision["more_candidates"]
    return Markup(
        '<div class="card {}"><div class="media">{}</div><p class="question">{}</p>{}'
        '<div class="bars">{}</div><div class="soft">{}{}</div></div>'
    ).format(
        color,
        page.join(map(_medium, decision["media"])),
        decision["question"],
        context,
        page.join(map(_bar, decision["candidates"])),
        f"{more} more · " if more else "",
        decision["source"],
    )


def _bar(candidate: dict) -> Markup:
    probability = candidate["probability"]
    mark = "✓ " if candidate["answer"] else ""
    return Markup(
        '<span>{}{}</span><span class="share">{}</span>'
        '<span class="bar"><i style="width:{:.1f}%"></i></span>'
    ).format(mark, candidate["text"], percent(probability, 1), 100 * probability)


def _medium(medium: dict) -> Markup:
    kind = medium["kind"]
    if kind in ("image", "video"):
        shown = "picture" if kind == "image" else f"frames of a clip of {medium['count']}"
        return Markup('<img class="{}" alt="{}" width="{}" height="{}" src="{}">').format(
            kind, shown, medium["width"], medium["height"], medium["data"]
        )
    if kind == "audio":
        player = ""
        if "data" in medium:
            player = Markup('<audio controls preload="none" src="{}"></audio>').format(
                medium["data"]
            )
        return _waveform(medium) + player
    if kind == "more":
        return Markup('<span class="soft">{} more pictures</span>').format(medium["count"])
    return Markup('<span class="soft">{}</span>').format(medium["reason"])


def _waveform(medium: dict) -> Markup:
    """The outline of a sound: its loudest sample in each of equal parts, up and down."""
    peaks = medium["peaks"]
    height = 40
    strokes = page.join(
        f"M{2 * i + 1} {height / 2 * (1 - peak):.1f}V{height / 2 * (1 + peak) + 0.5:.1f}"
        for i, peak in enumerate(peaks)
    )
    title = f"waveform, {duration(medium['seconds'])}"
    body = Markup('<path class="line gray" d="{}"/>').format(strokes)
    return svg(title, 2 * len(peaks), height, body)
