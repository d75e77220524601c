"""Tensors that say they are on a DirectML device, and compute on the CPU.

Composite functions choose their operators by the device of their arguments; with these they go the
way they go there. Forward passes only: autograd wants the device's driver.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map

DEVICE = torch.device("privateuseone", 0)


class SimulatedTensor(torch.Tensor):
    """A tensor on `privateuseone:0` over one on the CPU.

    Attributes:
        calls: names of all operators called on such tensors, in order.
    """

    calls: list[str] = []  # noqa: RUF012 (emptied by each test)

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> SimulatedTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        cls.calls.append(func.name())
        to_host = "device" in kwargs and kwargs["device"] != DEVICE
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")

        def unwrap(value):
            return value.inner if isinstance(value, SimulatedTensor) else value

        result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
        if to_host:
            return result
        return tree_map(lambda v: cls(v) if isinstance(v, torch.Tensor) else v, result)
