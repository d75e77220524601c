"""Equal-weight averages of weights (Izmailov et al., 2018), kept on the host in float32."""

from __future__ import annotations

import torch


class WeightAverage:
    """The running mean of snapshots: mean += (snapshot - mean) / count.

    Attributes:
        mean: float32 tensors by name; empty before the first snapshot.
        snapshots: how many went in.
    """

    def __init__(self, mean: dict[str, torch.Tensor] | None = None, snapshots: int = 0):
        self.mean = dict(mean or {})
        self.snapshots = snapshots

    def add(self, weights: dict[str, torch.Tensor]) -> None:
        """Take one more snapshot, moved to the host one tensor at a time."""
        self.snapshots += 1
        for name, tensor in weights.items():
            snapshot = tensor.detach().to("cpu", torch.float32, copy=True)
            if self.snapshots > 1:
                snapshot = self.mean[name] + (snapshot - self.mean[name]) / self.snapshots
            self.mean[name] = snapshot
