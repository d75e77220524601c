"""A self-contained HTML page: its skeleton, style and small building blocks.

Whatever is not `Markup` is escaped wherever it enters a page, so texts of strangers stay texts.
The page needs no network and says so to the browser: its content security policy lets nothing load
but data URIs and the one script that it was made with.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from markupsafe import Markup, escape

from arbiter.report.wording import MISSING


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        id: the anchor; one word.
        title: the heading.
        body: what stands below it.
    """

    id: str
    title: str
    body: Markup


def page(
    title: str, lead: Markup, sections: Sequence[Section], footer: Any = "", script: str = ""
) -> str:
    """The whole page.

    Args:
        title: heading, and the browser's title.
        lead: what stands below the heading.
        sections: in order; linked at the top.
        footer: one line at the end.
        script: JavaScript that runs at the end, if any; the only one the browser may run.
    """
    links = join(Markup('<a href="#{}">{}</a>').format(s.id, s.title) for s in sections)
    body = join(
        Markup('<section id="{}"><h2>{}</h2>{}</section>\n').format(s.id, s.title, s.body)
        for s in sections
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        body += Markup(f"<script>{script}</script>")
    style = files("arbiter.report").joinpath("style.css").read_text(encoding="utf-8")
    return _PAGE.format(
        title=title, policy=policy, style=Markup(style), lead=lead, links=links, body=body,
        footer=footer,
    )  # fmt: skip


def join(parts: Iterable[Any], separator: str = "") -> Markup:
    """Parts one after the other, each escaped unless it is Markup."""
    return Markup(separator).join(parts)


def paragraph(text: Any, kind: str = "") -> Markup:
    """A paragraph; kind 'note' is smaller and softer."""
    return Markup('<p class="{}">{}</p>').format(kind, text)


def note(text: Any) -> Markup:
    """A remark, such as what is missing and why."""
    return paragraph(text, "note")


def alert(text: Any, color: str = "orange") -> Markup:
    """A remark that must not be overlooked."""
    return paragraph(text, f"alert {color}")


def table(
    head: Sequence[Any], rows: Iterable[Sequence[Any]], text: bool = False, parts: bool = False
) -> Markup:
    """A table that scrolls sideways where it does not fit.

    Args:
        head: column titles.
        rows: cells; the first one names its row. None is shown as missing.
        text: whether cells hold words, and are aligned to the left.
        parts: whether a row whose name begins with a blank is a part of the one above it.
    """
    lines = []
    for name, *cells in rows:
        kind = "part" if parts and str(name).startswith(" ") else ""
        columns = join(Markup("<td>{}</td>").format(MISSING if c is None else c) for c in cells)
        lines.append(
            Markup('<tr class="{}"><th scope="row">{}</th>{}</tr>').format(kind, name, columns)
        )
    titles = join(Markup('<th scope="col">{}</th>').format(title) for title in head)
    return Markup(
        '<div class="scroll" tabindex="0"><table class="{}"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>"
    ).format("text" if text else "", titles, join(lines))


def details(summary: Any, body: Markup) -> Markup:
    """Something to unfold."""
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, body)


def facts(pairs: Mapping[str, Any]) -> Markup:
    """Names with values."""
    return Markup("<dl>{}</dl>").format(
        join(Markup("<dt>{}</dt><dd>{}</dd>").format(name, v) for name, v in pairs.items())
    )


def tiles(items: Iterable[tuple[str, str, Any]]) -> Markup:
    """Headline figures: name, figure, and a line below it."""
    return Markup('<div class="tiles">{}</div>').format(
        join(
            Markup(
                '<div class="tile"><span class="name">{}</span><b>{}</b><span>{}</span></div>'
            ).format(name, figure, below)
            for name, figure, below in items
        )
    )


def charts(figures: Iterable[Markup]) -> Markup:
    """Figures side by side, as many as fit."""
    return Markup('<div class="charts">{}</div>').format(join(figures))


def cell(body: Markup) -> Markup:
    """Something else that stands between figures, such as a table."""
    return Markup("<div>{}</div>").format(body)


def beside(chart: Markup, rest: Markup) -> Markup:
    """A figure, and at its right what needs more room than a chart."""
    return Markup('<div class="beside">{}<div>{}</div></div>').format(chart, rest)


def figure(
    title: Any,
    picture: Markup,
    caption: Any = "",
    numbers: Markup | None = None,
) -> Markup:
    """A picture with its title, a caption, and its numbers as a table to unfold."""
    return Markup("<figure><h3>{}</h3>{}<figcaption>{}</figcaption>{}</figure>").format(
        title,
        picture,
        Markup('<span class="soft">{}</span>').format(caption) if caption else "",
        details("numbers", numbers) if numbers else "",
    )


def code(text: Any) -> Markup:
    """A command, path or key."""
    return Markup("<code>{}</code>").format(text)


def escaped(text: Any) -> Markup:
    """Text as it may stand in a page."""
    return escape(text)


_PAGE = Markup("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style></head><body>
<header><h1>{title}</h1>{lead}<nav aria-label="Sections">{links}</nav></header>
<main>
{body}</main>
<footer>{footer}</footer>
</body></html>
""")
