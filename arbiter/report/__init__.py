"""report.html: one self-contained page that shows what a run learned and how far to trust it."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from arbiter.files import write_text_atomic
from arbiter.media import load_image
from arbiter.sample import Sample

_BASELINES = (
    ("accuracy", "model", "#2563eb"),
    ("question_only_accuracy", "question only", "#94a3b8"),
    ("majority_accuracy", "majority", "#cbd5e1"),
    ("random_accuracy", "random", "#e2e8f0"),
)
_GALLERY = 6


@dataclass(frozen=True)
class Shown:
    """A held-out decision in the gallery.

    Attributes:
        sample: with a known answer.
        probabilities: one per candidate.
    """

    sample: Sample
    probabilities: np.ndarray

    @property
    def right(self) -> bool:
        """Whether the most probable candidate is the answer."""
        return int(self.probabilities.argmax()) == self.sample.answer


def choose_gallery(
    samples: Sequence[Sample], probabilities: np.ndarray, count: int = _GALLERY
) -> list[Shown]:
    """Up to `count` right and `count` wrong decisions, spread evenly over the samples."""
    shown = [
        Shown(sample, row[: len(sample.candidates)])
        for sample, row in zip(samples, probabilities, strict=True)
    ]
    chosen = []
    for kind in (True, False):
        matching = [decision for decision in shown if decision.right is kind]
        places = np.linspace(0, len(matching) - 1, min(count, len(matching))).round().astype(int)
        chosen += [matching[place] for place in places]
    return chosen


def overview(run: Path, gallery: Sequence[Shown]) -> Figure:
    """Learning curves, accuracy beside its baselines, and decisions on held-out pictures."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    pictures = [shown for shown in gallery if shown.sample.images][:_GALLERY]
    figure = Figure(figsize=(12, 6.4 if pictures else 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subfigures(2, 1, height_ratios=(1.15, 1)) if pictures else [figure]
    loss, accuracy, bars = rows[0].subplots(1, 3, width_ratios=(1, 1, 1.4))
    epochs = [event for event in events if event["event"] == "epoch"]
    for axis, name, title in ((loss, "loss", "loss (nats)"), (accuracy, "acc", "accuracy")):
        number = [event["epoch"] for event in epochs]
        axis.plot(number, [e[f"train_{name}"] for e in epochs], color="#94a3b8", label="train")
        axis.plot(number, [e[f"val_{name}"] for e in epochs], color="#2563eb", label="validation")
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
    loss.legend(frameon=False)
    _bars(bars, summary["test"])
    if pictures:
        for axis, shown in zip(
            np.atleast_1d(rows[1].subplots(1, _GALLERY)), pictures, strict=False
        ):
            _picture(axis, shown)
        for axis in rows[1].axes[len(pictures) :]:
            axis.axis("off")
    return figure


def _bars(axis, test: dict[str, dict]) -> None:
    """Accuracy of each source and question type beside its baselines."""
    parts = {}
    for source, figures in test.items():
        parts[source] = figures
        parts.update(figures.get("question_types", {}))
    places = np.arange(len(parts))
    for i, (key, label, color) in enumerate(_BASELINES):
        heights = [part[key] for part in parts.values()]
        axis.bar(places + 0.2 * (i - 1.5), heights, 0.2, label=label, color=color)
    axis.set(title="test accuracy and its baselines", ylim=(0, 1.12))
    axis.set_xticks(places, list(parts))
    axis.legend(frameon=False, ncols=4, fontsize="x-small", loc="upper center")


def _picture(axis, shown: Shown) -> None:
    """A picture with its question and the three most probable candidates."""
    axis.imshow(np.asarray(load_image(shown.sample.images[0])))
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_title(shown.sample.question, fontsize="x-small", wrap=True)
    order = np.argsort(-shown.probabilities, kind="stable")[:3]
    lines = [f"{shown.sample.candidates[k]} {shown.probabilities[k]:.1%}" for k in order]
    color = "#15803d" if shown.right else "#b91c1c"
    axis.set_xlabel("\n".join(lines), fontsize="x-small", color=color)


def write_report(run: Path, gallery: Sequence[Shown]) -> Path:
    """Write report.html into a run directory that has metrics.jsonl and summary.json."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    vector = io.StringIO()
    overview(run, gallery).savefig(vector, format="svg")
    svg = vector.getvalue()
    svg = svg[svg.index("<svg") :]
    wrong = "".join(_card(shown) for shown in gallery if not shown.right)
    page = _PAGE.format(
        title=html.escape(run.name),
        headline=_headline(summary),
        table=_table(summary["test"]),
        svg=svg,
        wrong=wrong or "<p>None: every test decision was right.</p>",
        facts=_facts(summary),
    )
    path = run / "report.html"
    write_text_atomic(path, page)
    return path


def _headline(summary: dict) -> str:
    lines = []
    if summary["encoder"]["random_weights"]:
        lines.append("<p><b>The encoder has random weights, as asked for.</b></p>")
    for source, part in summary["test"].items():
        low, high = part["accuracy_interval"]
        lines.append(
            f"<p><b>{part['accuracy']:.2%}</b> right on {part['n']:,} test questions of "
            f"{html.escape(source)} (95% interval {low:.2%} to {high:.2%}; majority "
            f"{part['majority_accuracy']:.2%}, chance {part['random_accuracy']:.2%})</p>"
        )
    return "".join(lines) or "<p>This mix has no test split.</p>"


def _table(test: dict[str, dict]) -> str:
    head = ["n", "accuracy", "question only", "majority", "random", "nll (nats)", "ece"]
    rows = []
    for source, part in test.items():
        named = [(source, part), *part.get("question_types", {}).items()]
        for name, p in named:
            shares = [p[key] for key, *_ in _BASELINES]
            cells = [
                f"{p['n']:,}",
                *(f"{s:.2%}" for s in shares),
                f"{p['nll']:.4f}",
                f"{p['ece']:.4f}",
            ]
            rows.append(
                f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{c}</td>' for c in cells)}</tr>"
            )
    titles = "".join(f"<th>{title}</th>" for title in head)
    return f"<table><tr><th></th>{titles}</tr>{''.join(rows)}</table>"


def _card(shown: Shown) -> str:
    sample = shown.sample
    image = ""
    if sample.images:
        buffer = io.BytesIO()
        thumbnail = load_image(sample.images[0])
        thumbnail.thumbnail((160, 160))
        thumbnail.save(buffer, "PNG")
        data = base64.b64encode(buffer.getvalue()).decode()
        image = f'<img alt="" src="data:image/png;base64,{data}">'
    order = np.argsort(-shown.probabilities, kind="stable")[:3]
    chances = "<br>".join(
        f"{html.escape(sample.candidates[k])} {shown.probabilities[k]:.1%}" for k in order
    )
    answer = html.escape(sample.candidates[sample.answer])
    return (
        f"<figure>{image}<figcaption><b>{html.escape(sample.question)}</b><br>{chances}<br>"
        f"answer: {answer}</figcaption></figure>"
    )


def _facts(summary: dict) -> str:
    encoder = {k: v for k, v in summary["encoder"].items() if k != "random_weights"}
    facts = {
        "encoder": ", ".join(map(str, encoder.values())),
        "samples": ", ".join(f"{n:,} {split}" for split, n in summary["samples"].items()),
        "parameters": f"{summary['parameters']['trainable']:,} trained, "
        f"{summary['parameters']['active_per_token']:,} per token",
        "selected": f"epoch {summary['best_epoch']} on validation "
        f"({summary['validation']['accuracy']:.2%})",
        "temperature": f"{summary['calibration']['temperature']:.3f} from "
        f"{summary['calibration']['samples']:,} samples",
        "training time": f"{summary['train_seconds']:.0f} s on {summary['machine']['device']}",
        "seed": str(summary["seed"]),
        "code": summary["git_revision"] or "unversioned",
        "versions": ", ".join(f"{name} {v}" for name, v in summary["versions"].items() if v),
    }
    return "".join(f"<dt>{k}</dt><dd>{html.escape(v)}</dd>" for k, v in facts.items())


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Arbiter: {title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #0f172a; background: #fff; }}
svg {{ width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #e2e8f0; }}
th:first-child {{ text-align: left; }}
figure {{ display: inline-block; vertical-align: top; width: 10rem; margin: .5rem;
  font-size: .85rem; }}
img {{ width: 100%; image-rendering: pixelated; }}
dt {{ font-weight: 600; }} dd {{ margin: 0 0 .4rem; overflow-wrap: anywhere; }}
</style></head><body>
<h1>Arbiter run {title}</h1>
{headline}
<div class="wide">{svg}</div>
<h2>Test</h2><div class="wide">{table}</div>
<h2>Wrong decisions</h2>{wrong}
<h2>Facts</h2><dl>{facts}</dl>
</body></html>
"""
