"""Writes docs/configs.md from the schemas and recipes: python -m docs.configs [file]."""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from arbiter.config import describe_allowed
from experiments import schema

DOCS = Path(__file__).resolve().parent
CONF = DOCS.parent / "conf"
INTRODUCTION = """# Every key

Written by `python -m docs.configs` from the schemas that check each value. A key is set on the
command line as `key=value`, a group's recipe as `group=option`. A key without a default is
required; a recipe sets its own. `--cfg job` prints what a command line composes to, `--info
defaults` where each recipe comes from. A person's own settings can live in
`conf/local/default.yaml`, which git ignores.
"""


_NOTHING = "No further keys.\n"


def page() -> str:
    """The page, in Markdown."""
    schema.register()
    apps, plugs = _schemas()
    parts = [INTRODUCTION, "## Apps\n"]
    sections: dict[str, type] = {}
    for app, config in apps.items():
        sections |= dict(_groups(config))
        own = [row for row in _rows(config) if row[0].split(".")[0] not in sections]
        groups = [
            f"[{f.name}](#{f.name})"
            for f in dataclasses.fields(config)
            if f.name in sections or f.type == "Any"
        ]
        shared = f"Groups: {', '.join(groups)}.\n\n" if groups else ""
        parts.append(f"### experiments.{app}\n\n{shared}{_table(own)}")
    parts.append("## Groups\n")
    for group in sorted({*sections, *plugs}):
        parts.append(f"### {group}\n\n{_recipes('dataset/source' if group == 'source' else group)}")
        if group in sections:
            parts.append(_table(_rows(sections[group])))
        kinds = {kind: list(_rows(config)) for kind, config in plugs.get(group, {}).items()}
        first, *others = kinds.values() or [[]]
        common = [row for row in first if all(row in rows for rows in others)]
        if common:
            parts.append(f"#### {group}: all\n\n{_table(common)}")
        for kind, rows in kinds.items():
            own = [row for row in rows if row not in common]
            parts.append(f"#### {group}: {kind}\n\n{_table(own) or _NOTHING}")
    return "\n".join(parts)


def _schemas() -> tuple[dict[str, type], dict[str, dict[str, type]]]:
    """The apps' schemas by app, train first; those of plug points by group and kind."""
    store = ConfigStore.instance().repo
    types = {
        name.removesuffix("_schema.yaml"): node.node._metadata.object_type
        for name, node in store.items()
        if name.endswith("_schema.yaml")
    }
    apps = {name: types[name] for name in sorted(types, key=lambda name: (name != "train", name))}
    plugs = {
        group: {
            name.removesuffix(".yaml"): node.node._metadata.object_type
            for name, node in sorted(options.items())
        }
        for group, options in store["schema"].items()
    }
    return apps, plugs


def _groups(config: type) -> Iterator[tuple[str, type]]:
    """The fields of an app that have a section of their own."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(hints[field.name]):
            yield field.name, hints[field.name]


def _rows(config: type, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, default, what is allowed, and help, of each key below a schema."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        key, hint = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _rows(hint, f"{key}.")
        elif field.name != "_target_" and hint is not typing.Any:
            yield key, _default(field), describe_allowed(config, field.name), field.metadata["help"]


def _default(field: dataclasses.Field) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return json.dumps(field.default_factory())
    if field.default == MISSING:
        return ""
    return field.default if isinstance(field.default, str) else json.dumps(field.default)


def _table(rows: typing.Iterable[tuple[str, str, str, str]]) -> str:
    lines = [
        f"| `{key}` | {f'`{default}`' if default else ''} | {allowed} | {_cell(help)} |"
        for key, default, allowed, help in rows
    ]
    if not lines:
        return ""
    return "\n".join(["| key | default | takes | |", "|---|---|---|---|", *lines]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _recipes(group: str) -> str:
    """The options of a group, each with the comment at the head of its file."""
    lines = []
    for path in sorted((CONF / group).glob("*.yaml")):
        head = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#") or line.startswith("#  "):
                break
            if not line.startswith("# @package"):
                head.append(line.removeprefix("# "))
        lines.append(f"- `{path.stem}`: {' '.join(head)}".rstrip(": "))
    return "\n".join(lines) + "\n" if lines else ""


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else DOCS / "configs.md"
    target.write_text(page(), encoding="utf-8")
