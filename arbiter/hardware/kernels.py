"""The one place where the model asks what this torch can do.

All of Arbiter runs on torch 2.4.1 (the release torch-directml pins) and on the current one; newer
kernels are used where they exist, by capability, never by version.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from arbiter.errors import ConfigError, first_line

ATTENTION_KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
HAS_GROUPED_MM = hasattr(F, "grouped_mm")


def one_hot(index: torch.Tensor, classes: int) -> torch.Tensor:
    """Which class each index is, bool [..., classes].

    `F.one_hot` looks for values out of range first, and waits for the device to do so.
    """
    return index[..., None] == torch.arange(classes, device=index.device)


# What torch knows of grouped_mm's shapes refuses float32 on the CPU, which the kernel itself takes.
@torch.compiler.disable
def grouped_matmul(
    x_NC: torch.Tensor, weight_ECD: torch.Tensor, counts_E: torch.Tensor
) -> torch.Tensor:
    """Multiply consecutive groups of rows by one matrix each.

    Args:
        x_NC: rows, sorted by group.
        weight_ECD: a matrix per group.
        counts_E: int64, rows in each group, summing to N.

    Returns:
        [N, D].
    """
    if HAS_GROUPED_MM and _grouped_mm_takes(x_NC, weight_ECD):
        return F.grouped_mm(x_NC, weight_ECD, offs=counts_E.cumsum(0).to(torch.int32))
    parts = x_NC.split(counts_E.tolist())
    return torch.cat([part @ weight for part, weight in zip(parts, weight_ECD, strict=True)])


def _grouped_mm_takes(x_NC: torch.Tensor, weight_ECD: torch.Tensor) -> bool:
    """`grouped_mm` wants rows of whole 16-byte words, and bfloat16 on CUDA."""
    # On the meta device, shapes are worked out as they would be on the CPU.
    aligned = all(size * x_NC.element_size() % 16 == 0 for size in weight_ECD.shape[1:])
    return aligned and (x_NC.device.type in ("cpu", "meta") or x_NC.dtype == torch.bfloat16)


def attention_kernel(name: str, device: torch.device) -> AbstractContextManager:
    """A context in which scaled dot product attention takes this kernel.

    Raises:
        ConfigError: the device has no such kernel for attention with a mask.
    """
    if name == "auto":
        return nullcontext()
    x = torch.zeros(1, 1, 8, 64, device=device, requires_grad=True)
    mask = torch.ones(1, 1, 1, 8, dtype=torch.bool, device=device)
    try:
        with sdpa_kernel(ATTENTION_KERNELS[name]):
            F.scaled_dot_product_attention(x, x, x, attn_mask=mask).sum().backward()
    except RuntimeError as error:
        raise ConfigError(
            "hardware.attention_kernel",
            name,
            f"{device} has no such kernel for attention with a mask ({first_line(error)}); "
            "use auto or math",
        ) from None
    return sdpa_kernel(ATTENTION_KERNELS[name])


def compile_layers(layers: Iterable[nn.Module], device: torch.device) -> None:
    """Have modules compiled on their first call; results stay the same up to rounding.

    Raises:
        ConfigError: this machine cannot compile: on the CPU, that takes a C++ compiler.
    """
    probe = torch.compile(lambda x: torch.sin(x) + 1)
    try:
        probe(torch.zeros(8, device=device))
    except Exception as error:
        # Whatever a compiler's own code raises: there is no common type below Exception.
        need = "a C++ compiler (g++ or clang)" if device.type == "cpu" else "a backend for it"
        raise ConfigError(
            "hardware.compile",
            "true",
            f"torch.compile does not work for {device} here ({first_line(error)}); install "
            f"{need}, or set hardware.compile=false",
        ) from None
    for layer in layers:
        layer.compile()
