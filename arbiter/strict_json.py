"""JSON as it may come from a stranger: strict, bounded, and wrong in one line.

Python's own reader takes NaN, keeps the last of repeated keys and turns 1e999 into infinity.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

MAX_DEPTH = 64
_MAX_DIGITS = 20
"""Of an integer: all that fit into 64 bits."""


def parse_json(text: str) -> Any:
    """A JSON value; every object has distinct keys, every number is finite, every text Unicode.

    Raises:
        ValueError: with one line that says what is wrong.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        raise ValueError(f"not JSON ({error.msg} at {line}column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check(value)
    return value


def read_json(path: Path, max_bytes: int) -> Any:
    """The value in a JSON file, which may not be larger than `max_bytes`.

    Raises:
        ValueError: with one line that says what is wrong; the file is not named in it.
        OSError: it cannot be read.
    """
    return parse_json(read_text(path, max_bytes))


def read_text(path: Path, max_bytes: int) -> str:
    """A UTF-8 file of at most `max_bytes`.

    Raises:
        ValueError: with one line that says what is wrong; the file is not named in it.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise ValueError(f"larger than {max_bytes:,} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start})") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {repeated[:40]!r} is given more than once")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"the number {digits[:20]}... is too large")
    return int(digits)


def _check(value: Any) -> None:
    """Depth and texts, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below += node.keys()
                below += node.values()
            elif isinstance(node, list):
                below += node
            elif isinstance(node, str) and not is_unicode(node):
                raise ValueError(f"the text {node[:40]!r} is not Unicode (half of a \\u pair)")
        if not below:
            return
        level = below
    raise ValueError("nested too deeply")


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded; one with half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
