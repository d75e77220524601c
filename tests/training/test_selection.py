"""Which weights a run ends with, from figures made up for it."""

import pytest
import torch

from arbiter.training.selection import Selection


def selection_after(*figures: tuple[float, float], averaging_from: int | None = 1) -> Selection:
    """After epochs with these (accuracy, loss); the weight of each is the epoch's number."""
    selection = Selection(averaging_from)
    for epoch, (accuracy, loss) in enumerate(figures, 1):
        weights = {"w": torch.tensor([float(epoch)])}
        selection.end_epoch(epoch, {"val_acc": accuracy, "val_loss": loss}, weights)
    return selection


@pytest.mark.parametrize(
    ("accuracy", "loss", "wins"),
    [
        (0.9, 0.5, True),
        (0.8, 0.4, True),
        (0.8, 0.5, True),
        (0.8, 0.6, False),
        (0.7, 0.1, False),
    ],
    ids=["better", "less loss", "equal", "more loss", "worse"],
)
def test_the_average_wins_if_it_is_at_least_as_good(accuracy, loss, wins):
    selection = selection_after((0.6, 0.9), (0.8, 0.5))
    selection.consider_average(2, {"val_acc": accuracy, "val_loss": loss})
    best = selection.settle(2)
    assert (best.kind, best.epoch) == ("averaged" if wins else "last", 2)
    assert float(best.weights["w"]) == (1.5 if wins else 2.0)
    assert (best.accuracy, best.loss) == ((accuracy, loss) if wins else (0.8, 0.5))


def test_an_average_that_is_worse_leaves_an_earlier_epoch_its_name():
    selection = selection_after((0.8, 0.5), (0.6, 0.9))
    selection.consider_average(2, {"val_acc": 0.7, "val_loss": 0.5})
    best = selection.settle(2)
    assert (best.kind, best.epoch, float(best.weights["w"])) == ("best", 1, 1.0)


@pytest.mark.parametrize(
    ("second", "kind", "epoch"),
    [
        ((0.9, 0.5), "last", 2),
        ((0.8, 0.4), "last", 2),
        ((0.8, 0.5), "best", 1),
        ((0.8, 0.6), "best", 1),
    ],
)
def test_the_first_of_equal_epochs_is_the_best(second, kind, epoch):
    best = selection_after((0.8, 0.5), second).settle(2)
    assert (best.kind, best.epoch, float(best.weights["w"])) == (kind, epoch, float(epoch))


def test_the_average_begins_with_the_epoch_asked_for():
    figures = [(0.5, 1.0)] * 4
    assert float(selection_after(*figures, averaging_from=3).average.mean["w"]) == 3.5
    assert selection_after(*figures, averaging_from=None).average.snapshots == 0
