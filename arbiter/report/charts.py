"""Small charts as inline SVG, in the colours of the page: they follow light, dark and print.

A chart is about as wide as a phone, so that its text keeps its size; `page.charts` puts several
side by side. Colours are names of style.css: blue, gray, orange, green, red, purple, teal, pink.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup

from arbiter.report.axes import Axis, Names, Numbers
from arbiter.report.page import join

SERIES = ("blue", "orange", "green", "purple", "teal", "pink", "red", "gray")
"""Colours for series of equal rank, in the order of use."""


@dataclass
class Chart:
    """A chart: make it, add to it, `render` it.

    Attributes:
        x, y: its axes.
        title: what a screen reader says; the visible one is the figure's.
        width, height: in pixels at their natural size.
        left: room for the ticks of y.
        keys: (colour, label) of what was added with a label.
        grid: whether the ticks of y have lines.
    """

    x: Axis | Names
    y: Axis | Names
    title: str
    width: int = 340
    height: int = 220
    left: int = 44
    keys: list[tuple[str, str]] = field(default_factory=list)
    grid: bool = True
    _marks: list[Markup] = field(default_factory=list)

    _TOP, _RIGHT, _BOTTOM = 9, 12, 36

    def px(self, value: float) -> float:
        """The horizontal place of a value of x."""
        return self.left + self.x.at(value) * (self.width - self.left - self._RIGHT)

    def py(self, value: float) -> float:
        """The vertical place of a value of y."""
        up = self.y.at(value)
        room = self.height - self._TOP - self._BOTTOM
        return self._TOP + (up if isinstance(self.y, Names) else 1 - up) * room

    def line(self, xs: Numbers, ys: Numbers, color: str, label: str = "") -> Chart:
        """A line through the points; it breaks where one is missing."""
        path, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if x is None or y is None:
                pen = "M"
                continue
            path.append(f"{pen}{self.px(x):.1f} {self.py(y):.1f}")
            pen = "L"
        self.add(Markup('<path class="line {}" d="{}"/>').format(color, "".join(path)))
        known = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
        if len(known) == 1:
            self.dots(*zip(*known, strict=True), color)
        return self._key(color, label)

    def dots(
        self, xs: Numbers, ys: Numbers, color: str, label: str = "",
        hints: Sequence[str] | None = None, radius: float = 3.5,
    ) -> Chart:  # fmt: skip
        """A dot for each point, with a hint each that shows under the mouse."""
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            if x is not None and y is not None:
                hint = Markup("<title>{}</title>").format(hints[i]) if hints else ""
                self.add(
                    Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>')
                    .format(color, self.px(x), self.py(y), radius, hint)
                )  # fmt: skip
        return self._key(color, label)

    def rule(
        self, start: tuple[float, float], end: tuple[float, float], color: str = "gray",
        label: str = "",
    ) -> Chart:  # fmt: skip
        """A dashed straight line, for a reference."""
        self.add(
            Markup('<path class="rule {}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>')
            .format(color, self.px(start[0]), self.py(start[1]), self.px(end[0]), self.py(end[1]))
        )  # fmt: skip
        return self._key(color, label)

    def segment(self, start: tuple[float, float], end: tuple[float, float], color: str) -> Chart:
        """A solid straight line, such as an interval."""
        return self.line((start[0], end[0]), (start[1], end[1]), color)

    def add(self, mark: Markup) -> None:
        """Any SVG, in the chart's pixels."""
        self._marks.append(mark)

    def _key(self, color: str, label: str) -> Chart:
        if label and (color, label) not in self.keys:
            self.keys.append((color, label))
        return self

    def render(self) -> Markup:
        """The legend, with what y measures, and the picture."""
        # Even an empty legend keeps the axes of neighbours on one line.
        keys = Markup("<b>{}</b>").format(self.y.label) if self.y.label else Markup("")
        keys += join(Markup('<span class="{}">{}</span>').format(*key) for key in self.keys)
        legend = Markup('<div class="legend">{}</div>').format(keys)
        body = join([*self._frame(), *self._marks])
        return legend + svg(self.title, self.width, self.height, body)

    def _frame(self) -> list[Markup]:
        """Grid lines, ticks and labels."""
        right, bottom = self.width - self._RIGHT, self.height - self._BOTTOM
        parts = []
        for value, text in self.y.ticks():
            y = self.py(value)
            if self.grid:
                line = Markup('<path class="grid" d="M{} {:.1f}H{}"/>')
                parts.append(line.format(self.left, y, right))
            parts.append(_text(self.left - 6, y + 3.5, text, "end"))
        places = [(self.px(value), text) for value, text in self.x.ticks()]
        room = min((b[0] - a[0] for a, b in pairwise(places)), default=99)
        skip = math.ceil(6.5 * max((len(text) for _, text in places), default=1) / max(room, 1))
        for i, (x, text) in enumerate(places):
            parts.append(Markup('<path class="axis" d="M{:.1f} {}v4"/>').format(x, bottom))
            if i % skip == 0:
                parts.append(_text(x, bottom + 15, text, "middle"))
        parts.append(Markup('<path class="axis" d="M{} {}H{}"/>').format(self.left, bottom, right))
        if self.x.label:
            parts.append(_text((self.left + right) / 2, self.height - 5, self.x.label, "middle"))
        return parts


def svg(title: str, width: float, height: float, body: Markup) -> Markup:
    """A picture that grows with its place; `title` is what a screen reader says."""
    return Markup(
        '<svg class="chart" role="img" viewBox="0 0 {} {}" aria-label="{}">{}</svg>'
    ).format(width, height, title, body)


def _text(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        x, y, anchor, text
    )


def heatmap(
    title: str, values: Sequence[Sequence[float]], full: float, x: Axis, rows: Sequence[str],
    label: str = "", width: int = 340, row_height: int = 16,
) -> Markup:  # fmt: skip
    """Cells whose colour deepens with their value, in eight levels.

    Args:
        values: one list per row; its cells share the width evenly.
        full: the value of the deepest colour.
        x: the axis below.
        rows: the rows' names.
        label: what the rows are.
    """
    height = row_height * len(rows) + Chart._TOP + Chart._BOTTOM
    chart = Chart(x, Names(rows, label), title, width, height, grid=False)
    room = width - chart.left - Chart._RIGHT
    paths: dict[int, list[str]] = {}
    for r, row in enumerate(values):
        cell, top = room / len(row), Chart._TOP + r * row_height
        for c, value in enumerate(row):
            level = min(round(8 * value / full), 8) if full else 0
            paths.setdefault(level, []).append(
                f"M{chart.left + c * cell:.1f} {top}h{cell:.2f}v{row_height - 1}h{-cell:.2f}z"
            )
    for level, cells in sorted(paths.items()):
        chart.add(
            Markup('<path class="fill blue" fill-opacity="{:.3f}" d="{}"/>').format(
                level / 8, "".join(cells)
            )
        )
    return chart.render()
