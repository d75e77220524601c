"""JSON with one thing changed, as a stranger's file may have it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

VALUES = (
    None, True, False, 0, -1, 1, 0.5, 10**9, 10**19, 1e308, 1e-300, -0.0, "", "x",
    "${oc.env:HOME}", "???", "../..", "\u2028", [], [[]], {}, {"a": 1}, [None], ["image"] * 3,
    ["x"], [0.5] * 3, [3.0, 1.0],
)  # fmt: skip
_FEW = 3


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The keys and indices that lead to every value inside a JSON value; of long lists, few."""
    if path:
        yield path
    items = list(value.items() if isinstance(value, dict) else ())
    items = list(enumerate(value))[:_FEW] if isinstance(value, list) else items
    for key, part in items:
        yield from places(part, (*path, key))


def changed(original: Any, generator: random.Random) -> Any:
    """A copy in which one value is another one, or gone."""
    found = copy.deepcopy(original)
    *parents, last = generator.choice(list(places(original)))
    node = found
    for parent in parents:
        node = node[parent]
    if generator.random() < 0.15:
        del node[last]
    else:
        node[last] = copy.deepcopy(generator.choice(VALUES))
    return found
