"""Which weights a run ends with: the last, those of the best epoch, or an average."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from arbiter.training.averaging import WeightAverage
from arbiter.training.checkpoint import State, host_copy

log = logging.getLogger(__name__)

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Best:
    """The best weights so far, by validation accuracy, then validation loss.

    Attributes:
        epoch: whose end they are from; for averaged weights, the last one.
        kind: 'last', 'best' (of an earlier epoch) or 'averaged'.
    """

    epoch: int
    accuracy: float
    loss: float
    weights: Weights
    kind: str = "last"

    def beaten_by(self, accuracy: float, loss: float) -> bool:
        """Whether weights with these figures are better."""
        return (accuracy, -loss) > (self.accuracy, -self.loss)


class Selection:
    """The best epoch's weights, and the average of the last ones; both kept on the host.

    Args:
        averaging_from: first epoch whose weights enter the average; None for no averaging.

    Attributes:
        best: None before the first epoch's end.
        average: of snapshots at the ends of epochs.
    """

    def __init__(self, averaging_from: int | None):
        self._averaging_from = averaging_from
        self.best: Best | None = None
        self.average = WeightAverage()

    def end_epoch(self, epoch: int, figures: dict, weights: Weights) -> None:
        """Look at the weights of an epoch's end, whose `val_acc` and `val_loss` are known."""
        accuracy, loss = figures["val_acc"], figures["val_loss"]
        if self.best is None or self.best.beaten_by(accuracy, loss):
            self.best = Best(epoch, accuracy, loss, host_copy(weights))
        if self._averaging_from is not None and epoch >= self._averaging_from:
            self.average.add(weights)

    def consider_average(self, epochs: int, figures: dict) -> None:
        """The averaged weights win if they are at least as good on validation."""
        accuracy, loss = figures["val_acc"], figures["val_loss"]
        log.info(
            "average of %d snapshots  val loss %.4f acc %.4f",
            self.average.snapshots, loss, accuracy,
        )  # fmt: skip
        if (accuracy, -loss) >= (self.best.accuracy, -self.best.loss):
            self.best = Best(epochs, accuracy, loss, self.average.mean, "averaged")

    def settle(self, epochs: int) -> Best:
        """What the run ends with, under its final name."""
        if self.best.kind == "last" and self.best.epoch < epochs:
            self.best = replace(self.best, kind="best")
        return self.best

    def save(self, state: State) -> None:
        """Add all of this to a resume state."""
        state.values["snapshots"] = self.average.snapshots
        if self.best is not None:
            state.tensors["best"] = self.best.weights
            state.values["best"] = {k: v for k, v in vars(self.best).items() if k != "weights"}
        if self.average.snapshots:
            state.tensors["average"] = self.average.mean

    def restore(self, state: State) -> None:
        """Take back what `save` added."""
        if "best" in state.tensors:
            self.best = Best(weights=state.tensors["best"], **state.values["best"])
        self.average = WeightAverage(state.tensors.get("average"), state.values["snapshots"])
