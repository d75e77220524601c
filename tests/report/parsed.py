"""Reads a report back."""

from html.parser import HTMLParser
from pathlib import Path

SECTIONS = [
    "results", "decisions", "learning", "calibration", "sets", "risk", "exits", "experts", "speed",
    "material", "configuration", "environment",
]  # fmt: skip


class Page(HTMLParser):
    """What a page holds: sections, scripts, addresses, its text, and that of each section."""

    def __init__(self, path: Path):
        super().__init__()
        self.sections, self.scripts, self.addresses = [], 0, []
        self.text, self.text_of = "", {}
        self.open = []
        self.feed(path.read_text(encoding="utf-8"))
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "img", "br", "wbr"):
            self.open.append(tag)
        values = dict(attrs)
        if tag == "section":
            self.sections.append(values["id"])
            self.text_of[values["id"]] = ""
        self.scripts += tag == "script"
        self.addresses += [values[name] for name in ("src", "href") if name in values]
        assert not [name for name in values if name.startswith("on")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "section" in self.open:
            self.text_of[self.sections[-1]] += data
