"""Reading tensors from a file that may come from a stranger: exactly those expected, and no other.

Names, shapes and dtypes are held against the header before anything is allocated, so what a model
takes of memory is bounded by what the file holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from arbiter.errors import RunError, first_line

_HEADER_BYTES = 1 << 24
_LENGTH_BYTES = 8
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.int64: "I64"}


@dataclass(frozen=True)
class Expected:
    """What a tensor of a file must be.

    Attributes:
        shape: its sizes.
        dtype: its type.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


def expected_tensors(model: torch.nn.Module) -> dict[str, Expected]:
    """The tensors of a model's state, by name; the model may be on the meta device."""
    return {
        name: Expected(tuple(tensor.shape), tensor.dtype)
        for name, tensor in model.state_dict().items()
    }


def read_tensors(path: Path, expected: Mapping[str, Expected]) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, on the CPU; all numbers are finite.

    Raises:
        RunError: the file is damaged, or holds anything else than what is expected.
    """
    _check_header_size(path)
    try:
        with safe_open(path, "pt") as file:
            _check_names(path.name, set(file.keys()), expected)
            for name, wanted in expected.items():
                part = file.get_slice(name)
                _check_tensor(path.name, name, tuple(part.get_shape()), part.get_dtype(), wanted)
            tensors = {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path.name}: not a safetensors file ({first_line(error)})") from None
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise RunError(f"{path.name}: {name} holds numbers that are not finite")
    return tensors


def _check_header_size(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        announced = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if announced > min(_HEADER_BYTES, size - _LENGTH_BYTES):
        raise RunError(
            f"{path.name}: its header claims {announced:,} bytes; the file has {size:,}, and "
            f"{_HEADER_BYTES:,} are the most"
        )


def _check_names(file: str, found: set[str], expected: Mapping[str, Expected]) -> None:
    missing, further = sorted(expected.keys() - found), sorted(found - expected.keys())
    if missing:
        raise RunError(f"{file}: {missing[0]} is missing ({len(missing)} tensors in all)")
    if further:
        raise RunError(
            f"{file}: the model has no {further[0][:80]!r} ({len(further)} tensors too many)"
        )


def _check_tensor(
    file: str, name: str, shape: tuple[int, ...], dtype: str, wanted: Expected
) -> None:
    if shape != wanted.shape:
        raise RunError(f"{file}: {name} has shape {list(shape)}, not {list(wanted.shape)}")
    if dtype != _DTYPES[wanted.dtype]:
        raise RunError(f"{file}: {name} is {dtype}, not {_DTYPES[wanted.dtype]}")
