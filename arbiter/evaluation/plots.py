"""An evaluation as one picture, in SVG."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from arbiter.evaluation.figures import named_parts
from arbiter.files import write_text_atomic

_BASELINES = (
    ("question_only_accuracy", "question only", "#f59e0b"),
    ("majority_accuracy", "majority", "#8b5cf6"),
    ("random_accuracy", "random", "#94a3b8"),
)
_MODEL = "#2563eb"


def write_plot(report: dict, path: Path) -> None:
    """Accuracy beside its baselines, reliability, risk against coverage, coverage against alpha.

    Raises:
        OSError: it cannot be written.
    """
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(2, 2)
    overall = report["overall"]
    # Names come from data: a dollar sign in one is no formula.
    title = f"{report['dataset']}, {report['split']}: {overall['n']:,} samples"
    figure.suptitle(title, parse_math=False)
    _accuracy(axes[0, 0], report)
    _reliability(axes[0, 1], overall)
    _risk(axes[1, 0], overall)
    _coverage(axes[1, 1], overall)
    image = io.StringIO()
    figure.savefig(image, format="svg", metadata={"Date": None})
    write_text_atomic(path, image.getvalue())


def _accuracy(axis, report: dict) -> None:
    parts = list(named_parts(report))[::-1]
    for place, (_, part) in enumerate(parts):
        axis.plot(part["accuracy_interval"], (place, place), color=_MODEL)
        axis.plot(part["accuracy"], place, "o", color=_MODEL, label=None if place else "model")
        for key, label, color in _BASELINES:
            if part[key] is not None:
                axis.plot(part[key], place, "|", ms=14, mew=2, color=color,
                          label=None if place else label)  # fmt: skip
    axis.set(title="accuracy and baselines, 95% intervals", xlim=(0, 1.02))
    axis.set_yticks(
        range(len(parts)), [name for name, _ in parts], fontsize="small", parse_math=False
    )
    axis.grid(axis="x", alpha=0.25)
    axis.legend(frameon=False, fontsize="x-small", loc="best")


def _reliability(axis, part: dict) -> None:
    axis.plot((0, 1), (0, 1), color="#94a3b8", lw=1)
    for when, color in (("before", "#f59e0b"), ("after", _MODEL)):
        bins = part["curves"]["reliability"][when]
        axis.plot([b["confidence"] for b in bins], [b["accuracy"] for b in bins], "o-", ms=4,
                  color=color, label=f"{when} calibration")  # fmt: skip
    axis.set(title="reliability, bins of equal mass", xlabel="confidence", ylabel="accuracy")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize="x-small")


def _risk(axis, part: dict) -> None:
    axis.plot(*zip(*part["curves"]["risk_coverage"], strict=True), color=_MODEL)
    axis.set(
        title=f"what escalating buys (AURC {part['aurc']:.4g})",
        xlabel="share of decisions that are made, most confident first",
        ylabel="share of wrong ones among them",
        xlim=(0, 1.02),
    )
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)


def _coverage(axis, part: dict) -> None:
    if not part["curves"]["coverage"]:
        axis.axis("off")
        axis.text(0.5, 0.5, "not calibrated: no prediction sets", ha="center")
        return
    alphas, coverage, sizes = zip(*part["curves"]["coverage"], strict=True)
    axis.plot((0, alphas[-1]), (1, 1 - alphas[-1]), color="#94a3b8", lw=1, label="promised")
    axis.plot(alphas, coverage, color=_MODEL, label="coverage")
    axis.set(title="prediction sets", xlabel="alpha", ylabel="coverage")
    axis.grid(alpha=0.25)
    size = axis.twinx()
    size.plot(alphas, sizes, color="#f59e0b", label="mean set size")
    size.set(ylabel="candidates")
    size.set_ylim(bottom=0)
    lines = [*axis.get_lines(), *size.get_lines()]
    axis.legend(lines, [str(line.get_label()) for line in lines], frameon=False, fontsize="x-small")
