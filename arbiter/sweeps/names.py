"""Names for the directories of a sweep's jobs: unique, short, and telling which values were swept.

    0_lr-0.001_num_routed_experts-4

A name holds letters, digits and `. + - _` only, so that every file system takes it and no command
line needs quotes around it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence

MAX_LENGTH = 72
"""Characters of a whole name; file systems take 255, and a terminal shows about so many."""
_HASH_LENGTH = 8


def override_key(override: str) -> str:
    """The key of `key=value`, or `group@package`, without Hydra's signs for adding and deleting."""
    return override.lstrip("+~").split("=", 1)[0]


def override_value(override: str) -> str:
    """The value of `key=value` as text, without quotes around all of it."""
    value = override.partition("=")[2].strip()
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def covers(given: str, key: str) -> bool:
    """Whether a key or group, as `override_key` has it, stands for a dotted key."""
    if given == "experiment":
        return True  # a preset sets anything
    place = given.partition("@")[2] or given.replace("/", ".")
    return place == "_global_" or key == place or key.startswith(f"{place}.")


def job_directory(number: int, overrides: Sequence[str], fixed: Collection[str]) -> str:
    """The name of a job's directory.

    Args:
        number: of the job in its sweep; it alone makes the name unique.
        overrides: all `key=value` of the job.
        fixed: keys that are the same in all jobs.

    Returns:
        The number, and as many keys with their values as there is room for. Where anything was
        left out or written otherwise than given, a hash of all of it ends the name.
    """
    swept = {override_key(o): override_value(o) for o in overrides}
    swept = {key: value for key, value in swept.items() if key not in fixed}
    given = [f"{name}-{swept[key]}" for key, name in short_keys(list(swept)).items()]
    safe = [_safe(text) for text in given]
    plain = "_".join([str(number), *safe])
    if safe == given and len(plain) <= MAX_LENGTH:
        return plain
    digest = hashlib.sha256(repr(sorted(swept.items())).encode()).hexdigest()[:_HASH_LENGTH]
    name = str(number)
    for text in safe:
        room = MAX_LENGTH - _HASH_LENGTH - len(name) - 2
        # One that is long by itself is cut; half a number would be a wrong one.
        name += f"_{text[:room]}" if len(text) <= room or name == str(number) else ""
    return f"{name}_{digest}"


def short_value(value: str) -> str:
    """A value as a person reads it: numbers with four digits."""
    return re.sub(r"\d+\.\d{6,}(e[+-]?\d+)?", lambda m: f"{float(m[0]):.4g}", value)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", short_value(text)).strip("-.")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each dotted key's last part, with as many parts before it as tell the keys apart."""
    parts = {key: re.split(r"[./@]", key) for key in keys}
    names = {}
    for key in keys:
        length = 1
        while length < len(parts[key]) and any(
            other != key and parts[other][-length:] == parts[key][-length:] for other in keys
        ):
            length += 1
        names[key] = ".".join(parts[key][-length:])
    return names
