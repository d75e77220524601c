"""Recording the tensors that a computation makes, without computing anything.

Everything runs on torch's meta device: shapes and dtypes only. A dispatch mode sees every operator
and notes each storage's birth and death, in the order in which the real computation would have
them. What kernels use inside is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
_GROUPED_MM = getattr(_aten, "_grouped_mm", None)
_ACTIVATIONS = "activations"


@dataclass
class Segment:
    """Allocations and frees, in order.

    Attributes:
        events: (name, bytes); 0 bytes free the name, which this segment or an earlier one took.
        category: of each name that the segment takes.
    """

    events: list[tuple[int, int]] = field(default_factory=list)
    category: dict[int, str] = field(default_factory=dict)


class Recorder(TorchDispatchMode):
    """Notes storages while it is active; see `recording`."""

    def __init__(self) -> None:
        super().__init__()
        self.segment = Segment()
        self._names: dict[int, tuple[int, weakref.ref]] = {}
        self._count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        """Run one operator on the meta device, or say what shape it would give."""
        result = _shape_of_data(operator, args, kwargs or {})
        if result is None:
            result = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return result

    def note(self, tensor: torch.Tensor, category: str = _ACTIVATIONS) -> None:
        """Note a tensor's storage, unless it is known already."""
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        if address in self._names or tensor.device.type != "meta":
            return
        self._count += 1
        name = self._count

        def gone(_: object) -> None:
            del self._names[address]
            self.segment.events.append((name, 0))

        self._names[address] = (name, weakref.ref(storage, gone))
        if size:
            self.segment.events.append((name, size))
            self.segment.category[name] = category

    def ignore(self, tensor: torch.Tensor) -> None:
        """Leave a storage out that was there before."""
        storage = tensor.untyped_storage()
        self._names.setdefault(storage._cdata, (0, weakref.ref(storage)))

    def label(self, tensors: Iterable[torch.Tensor | None], category: str) -> None:
        """Say what noted tensors are."""
        for tensor in tensors:
            known = None
            if isinstance(tensor, torch.Tensor):
                known = self._names.get(tensor.untyped_storage()._cdata)
            if known is not None and known[0] in self.segment.category:
                self.segment.category[known[0]] = category

    def take(self) -> Segment:
        """What was recorded since the last call."""
        segment, self.segment = self.segment, Segment()
        return segment


def _shape_of_data(operator: Callable, args: tuple, kwargs: dict) -> object | None:
    """The result of an operator whose shape depends on data; None for all others.

    Every token counts as a real one, the most there can be.
    """
    if operator is _aten.nonzero.default:
        return args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
    if operator is _aten._local_scalar_dense.default and args[0].device.type == "meta":
        return 1
    if _GROUPED_MM is not None and operator is _GROUPED_MM.default:
        a, b, *rest = args
        groups = (rest[0] if rest else kwargs["offs"]).numel()
        shape = (len(a), b.shape[-1]) if b.dim() == 3 else (groups, len(a), b.shape[-1])
        return a.new_empty(shape)
    return None


_NARROW = (
    F.linear, F.scaled_dot_product_attention, torch.bmm, torch.matmul, torch.Tensor.matmul,
    torch.Tensor.__matmul__, getattr(F, "grouped_mm", None),
)  # fmt: skip
_WIDE = (F.layer_norm, F.softmax, torch.softmax, torch.Tensor.softmax, torch.Tensor.log_softmax)


class _OnMeta(TorchFunctionMode):
    """Functions that ask for data, or that choose by the device, which a meta tensor has none of.

    Args:
        fused_attention: whether attention keeps no matrix of scores.
        narrow: whether matrix products run in bfloat16, as under autocast.
    """

    def __init__(self, fused_attention: bool, narrow: bool):
        super().__init__()
        self._fused, self._narrow = fused_attention, narrow
        self._copies: dict[int, torch.Tensor] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Replace what cannot be done without data."""
        kwargs = kwargs or {}
        if self._narrow and function in _NARROW:
            args = tuple(self._cast(a, torch.bfloat16) for a in args)
        elif self._narrow and function in _WIDE:
            args = tuple(self._cast(a, torch.float32) for a in args)
        if function is F.scaled_dot_product_attention and self._fused:
            return _flash(*args[:3], kwargs.get("attn_mask"))
        if function is torch.Tensor.tolist:
            return [None] * len(args[0])
        if function is torch.Tensor.split and isinstance(args[1], list) and None in args[1]:
            groups = len(args[1])
            share = len(args[0]) // groups
            args = (args[0], [share] * (groups - 1) + [len(args[0]) - share * (groups - 1)])
        return function(*args, **kwargs)

    def _cast(self, value: object, dtype: torch.dtype) -> object:
        """As autocast would; copies of weights are made once."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if isinstance(value, torch.nn.Parameter) and value.dtype != dtype:
            if id(value) not in self._copies:
                self._copies[id(value)] = value.to(dtype)
            return self._copies[id(value)]
        return value.to(dtype)


def _flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None):
    """Attention that keeps its output and one number per row."""
    if mask is not None:
        mask = mask.to(query.dtype).expand(len(query), 1, 1, key.shape[2])
    kernel = _aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, attn_mask=mask)[0]


@contextmanager
def recording(
    recorder: Recorder,
    weights: Iterable[torch.Tensor] = (),
    fused_attention: bool = True,
    narrow: bool = False,
) -> Iterator[None]:
    """Record everything that happens inside.

    Args:
        weights: tensors that are there already; neither they nor views of them are noted.
        fused_attention: whether attention keeps no matrix of scores.
        narrow: whether matrix products run in bfloat16, as under autocast.
    """
    for tensor in weights:
        recorder.ignore(tensor)
    with recorder, _OnMeta(fused_attention, narrow):
        yield
