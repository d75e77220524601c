"""Typed, ranged, self-describing configuration.

Each component declares a dataclass whose fields are made with `option`; the field's help and range
live beside its default, so one declaration serves validation, error messages and documentation.
Hydra composes the values, `validate` judges them, `build` makes the component.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import re
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from arbiter.errors import ConfigError


def option(
    default: Any = MISSING,
    *,
    help: str,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    choices: tuple | None = None,
) -> Any:
    """A dataclass field with help and an allowed range.

    Args:
        default: absent means required; lists, dicts and dataclasses are copied for each instance.
        help: one sentence, with the unit if there is one.
        low, above: inclusive and exclusive lower bound; of each element if the value is a list.
        high, below: inclusive and exclusive upper bound.
        choices: the allowed values.
    """
    bounds = {"low": low, "above": above, "high": high, "below": below}
    metadata = {"help": help, "choices": choices, **bounds}
    if isinstance(default, (list, dict)) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_BOUNDS = {
    "low": (">=", lambda value, bound: value >= bound),
    "above": (">", lambda value, bound: value > bound),
    "high": ("<=", lambda value, bound: value <= bound),
    "below": ("<", lambda value, bound: value < bound),
}


def _type_name(annotation: Any) -> str:
    arguments = [a for a in typing.get_args(annotation) if a is not type(None)]
    if typing.get_origin(annotation) in (list, tuple):
        return f"list of {_type_name(arguments[0])}s"
    if typing.get_origin(annotation) is dict:
        return "mapping"
    if arguments:
        null = " or null" if type(None) in typing.get_args(annotation) else ""
        return " or ".join(_type_name(a) for a in arguments) + null
    return {int: "integer", float: "number", str: "text", bool: "true or false", Any: "value"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def describe_allowed(config_class: type, name: str) -> str:
    """What a field accepts, in words, e.g. 'a number > 0'."""
    field = {f.name: f for f in dataclasses.fields(config_class)}[name]
    if field.metadata.get("choices"):
        return "one of " + ", ".join(map(str, field.metadata["choices"]))
    kind = _type_name(typing.get_type_hints(config_class)[name])
    article = "" if kind.startswith("true") else "an " if kind[0] in "aeiou" else "a "
    limits = [
        f"{_BOUNDS[bound][0]} {field.metadata[bound]:g}"
        for bound in _BOUNDS
        if field.metadata.get(bound) is not None
    ]
    return f"{article}{kind} {' and '.join(limits)}".rstrip()


def _in_range(value: Any, metadata: typing.Mapping) -> bool:
    if value is None:
        return True
    if isinstance(value, (list, tuple)):
        # OmegaConf checks the type of elements, but lets lists, dicts and nulls pass among them.
        return all(isinstance(e, (int, float, str)) and _in_range(e, metadata) for e in value)
    if metadata.get("choices"):
        return value in metadata["choices"]
    return all(
        metadata.get(bound) is None or holds(value, metadata[bound])
        for bound, (_, holds) in _BOUNDS.items()
    )


def _children(config: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(config):
        for field in dataclasses.fields(config):
            yield field.name, getattr(config, field.name)
    elif isinstance(config, dict):
        yield from ((str(key), value) for key, value in config.items())


def validate(config: Any) -> None:
    """Check every field of a tree of config dataclasses against its declared range.

    A dataclass may define `check()` for rules that span fields; it raises `ConfigError` with its
    own field's name, and the full key is put together here.

    Raises:
        ConfigError: naming the full key, the value and what is allowed.
    """
    for name, value in _children(config):
        if dataclasses.is_dataclass(value) or isinstance(value, dict):
            try:
                validate(value)
            except ConfigError as error:
                raise error.under(name) from None
        elif dataclasses.is_dataclass(config):
            field = {f.name: f for f in dataclasses.fields(config)}[name]
            if not _in_range(value, field.metadata):
                raise ConfigError(name, value, f"must be {describe_allowed(type(config), name)}")
    if dataclasses.is_dataclass(config):
        if hasattr(config, "_target_"):
            locate(config._target_)
        # `+key=value` gets past Hydra's own check of names.
        unknown = sorted(vars(config).keys() - {f.name for f in dataclasses.fields(config)})
        if unknown:
            known = ", ".join(f.name for f in dataclasses.fields(config))
            raise ConfigError(
                unknown[0], getattr(config, unknown[0]), f"no such key; there are {known}"
            )
    if hasattr(config, "check"):
        config.check()


def instantiate(config: DictConfig) -> Any:
    """Turn a composed Hydra config into validated dataclasses.

    Raises:
        ConfigError: a required value is missing or one is out of range.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise ConfigError(missing[0], "???", f"is required: give {missing[0]}=<value>")
        result = OmegaConf.to_object(config)
    except InterpolationResolutionError as error:
        given = dict(OmegaConf.to_container(error.parent_node, resolve=False))[error.key]
        raise ConfigError(error.full_key, given, str(error).splitlines()[0]) from None
    validate(result)
    return result


def from_dict(config_class: type, values: dict) -> Any:
    """Rebuild a validated config dataclass from JSON, with every type checked.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of range, or an interpolation, which
            could read the environment of whoever loads a stranger's file.
    """
    if not isinstance(values, dict):
        raise ConfigError(config_class.__name__, values, "must be keys with their values")
    for key, value in _texts(values, config_class.__name__):
        if "${" in value or value == MISSING:
            raise ConfigError(key, value, "a saved value must stand for itself")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(config_class), OmegaConf.create(values))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or config_class.__name__
        raise ConfigError(str(key), "<saved>", str(error).splitlines()[0]) from None
    return instantiate(merged)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Every text in nested dicts and lists, names of keys among them."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield key, name
            yield from _texts(part, f"{key}.{name}")
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, key)


def locate(target: str) -> type:
    """The class that a `_target_` names. Configs travel inside runs, so only Arbiter's own.

    Raises:
        ConfigError: outside `arbiter.`, or no such class.
    """
    module_name, _, name = target.rpartition(".")
    if not module_name.startswith("arbiter."):
        raise ConfigError("_target_", target, "only classes of the arbiter package may be built")
    found = None
    # An import by this name takes nothing but modules of the package.
    if re.fullmatch(r"\w+(\.\w+)*", module_name):
        with suppress(ImportError):
            found = getattr(importlib.import_module(module_name), name, None)
    # Not what such a module has imported from elsewhere.
    if not (callable(found) and str(found.__module__).startswith("arbiter.")):
        raise ConfigError("_target_", target, "names no class of this version")
    return found


def build(config: Any, **arguments: Any) -> Any:
    """Make the component that a plug point's config names in `_target_`."""
    return locate(config._target_)(config, **arguments)
