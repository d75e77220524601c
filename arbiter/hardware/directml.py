"""Which operators DirectML runs itself, and which it hands to the CPU.

`directml_kernels.json` names, for every ATen operator of torch 2.4.1, the kernel that dispatch key
PrivateUse1 resolves to with torch-directml 0.2.5 loaded. A trace on the CPU lists the operators of
a computation; held against that table it shows every copy to the CPU and back without the card.

A composite operator has a body of other operators, which a trace does not show. What it ends in is
read from torch 2.4.1's sources (aten/src/ATen/native) and written down here as a rule.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_TABLE = Path(__file__).with_name("directml_kernels.json")

_VIEWS = (
    "detach", "detach_", "expand", "lift_fresh", "permute", "select.int", "slice.Tensor",
    "squeeze", "squeeze.dim", "squeeze_.dim", "t", "transpose.int", "unbind.int", "unsqueeze",
)  # fmt: skip
_NEW = ("empty.memory_format", "empty_strided")
_COMPOSITES = {
    **{view: ("as_strided", "alias") for view in _VIEWS},
    "empty_like": _NEW,
    "new_empty": _NEW,
    "scalar_tensor": (*_NEW, "fill_.Scalar"),
    "zeros": (*_NEW, "zero_"),
    "zeros_like": (*_NEW, "zero_"),
    "new_zeros": ("new_empty", "zero_"),
    "arange": (*_NEW, "arange.start_out"),
    "arange.start": (*_NEW, "arange.start_out"),
    "arange.start_step": (*_NEW, "arange.start_out"),
    "_to_copy": (*_NEW, "copy_"),
    "clone": (*_NEW, "copy_"),
    "stack": ("as_strided", "cat"),
    "sum": ("sum.dim_IntList",),
    "mean": ("mean.dim",),
    "add.Scalar": ("add.Tensor",),
    "mul.Scalar": ("mul.Tensor",),
    "mul_.Scalar": ("mul_.Tensor",),
    "div.Scalar": ("div.Tensor",),
    "div_.Scalar": ("div_.Tensor",),
    "logical_not": (*_NEW, "logical_not.out"),
    "index_put_": ("_index_put_impl_",),
    "select_backward": (*_NEW, "zero_", "as_strided", "copy_"),
    "slice_backward": (*_NEW, "zero_", "as_strided", "copy_"),
    "_foreach_norm.Scalar": ("linalg_vector_norm",),
}
# Without a kernel of a device's own, `_foreach_<name>` calls <name> for one tensor after another.
_FOREACH_OVERLOADS = {"": "", "Scalar": ".Scalar", "ScalarList": ".Scalar", "List": ".Tensor",
                      "Tensor": ".Tensor"}  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """An operator of a trace, and where DirectML runs it.

    Attributes:
        name: with its overload, e.g. 'aten::lerp_.Scalar'.
        calls: how often it was called.
        runs: 'directml', 'cpu_fallback', or 'unknown' for an operator without a kernel in the table
            and without a rule.
        through: of a composite, the operators that it ends in.
    """

    name: str
    calls: int
    runs: str
    through: tuple[str, ...] = ()


@cache
def kernel_table() -> dict:
    """The contents of directml_kernels.json: 'kernels', and the versions it was made with."""
    return json.loads(_TABLE.read_text(encoding="utf-8"))


def is_table_of_this_torch() -> bool:
    """Whether the table was made with the release of torch that runs here."""
    return kernel_table()["torch"].split("+")[0] == torch.__version__.split("+")[0]


def resolve(name: str, calls: int = 1) -> Operator:
    """Where DirectML runs an operator; a composite falls back if anything that it ends in does."""
    runs = kernel_table()["kernels"].get(name, {}).get("runs", "unknown")
    if runs in ("directml", "cpu_fallback"):
        return Operator(name, calls, runs)
    inner = _rule(name)
    if inner is None:
        return Operator(name, calls, "unknown")
    found = {resolve(part).runs for part in inner}
    worst = next(r for r in ("cpu_fallback", "unknown", "directml") if r in found)
    return Operator(name, calls, worst, inner)


def _rule(name: str) -> tuple[str, ...] | None:
    """The operators that a composite ends in, or None without a rule."""
    short = name.removeprefix("aten::")
    if short in _COMPOSITES:
        return tuple(f"aten::{part}" for part in _COMPOSITES[short])
    if short.startswith("_foreach_"):
        plain, _, overload = short.removeprefix("_foreach_").partition(".")
        return (f"aten::{plain}{_FOREACH_OVERLOADS.get(overload, f'.{overload}')}",)
    return None


class OperatorTrace(TorchDispatchMode):
    """Counts the ATen operators called inside its block, backward passes included.

    Attributes:
        calls: operator name with overload -> calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._paths = _DirectMLPaths()

    def __enter__(self) -> OperatorTrace:
        self._paths.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._paths.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Count, then call."""
        # The profiler's marks around an optimizer's step are operators too, but compute nothing.
        if func.namespace == "aten":
            self.calls[func.name()] += 1
        return func(*args, **(kwargs or {}))

    def operators(self) -> list[Operator]:
        """What was called, by name."""
        return [resolve(name, calls) for name, calls in sorted(self.calls.items())]


class _DirectMLPaths(TorchFunctionMode):
    """Sends functions whose operators depend on the device the way that DirectML goes.

    Of those that the model calls this is attention, which has no fused kernel there.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **kwargs)
        return func(*args, **kwargs)
