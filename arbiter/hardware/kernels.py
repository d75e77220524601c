"""The one place where the model asks what this torch can do.

All of Arbiter runs on torch 2.4.1 (the release torch-directml pins) and on the current one; newer
kernels are used where they exist, by capability, never by version.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

HAS_GROUPED_MM = hasattr(F, "grouped_mm")


def one_hot(index: torch.Tensor, classes: int) -> torch.Tensor:
    """Which class each index is, bool [..., classes].

    `F.one_hot` looks for values out of range first, and waits for the device to do so.
    """
    return index[..., None] == torch.arange(classes, device=index.device)


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
    aligned = all(size * x_NC.element_size() % 16 == 0 for size in weight_ECD.shape[1:])
    return aligned and (x_NC.device.type == "cpu" or x_NC.dtype == torch.bfloat16)
