"""Training itself: it learns, and the hardware profile does not change what."""

import json

import pytest
import torch

from arbiter.errors import RunError
from arbiter.features.augment import Augmenter
from arbiter.hardware.device import HardwareConfig
from arbiter.training.objective import MarginConfig, ObjectiveConfig
from arbiter.training.optimizers import AdamWConfig
from arbiter.training.run_directory import RunDirectory
from arbiter.training.schedules import ScheduleConfig
from arbiter.training.trainer import Trainer
from tests.conftest import make_model


def run(dataset, encoder, path, epochs=6, lr=5e-3, **hardware):
    profile = HardwareConfig(device="cpu", **hardware)
    model = make_model(dataset, encoder, profile.moe_dispatch)
    trainer = Trainer(
        model,
        dataset,
        dataset,
        Augmenter(True, 1, encoder.spec),
        ObjectiveConfig(margin=MarginConfig(weight=0.2)),
        AdamWConfig(lr=lr),
        ScheduleConfig(epochs=epochs, batch_size=6, questions_per_block=2, warmup_steps=3),
        profile,
        seed=0,
        every_steps=1,
    )
    with RunDirectory(path) as directory:
        best = trainer.fit(directory)
    events = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return trainer, best, events


def losses(events) -> torch.Tensor:
    return torch.tensor([e["cross_entropy"] for e in events if e["event"] == "step"])


def test_it_learns_by_heart(dataset, encoder, tmp_path):
    _, best, events = run(dataset, encoder, tmp_path, epochs=30)
    epochs = [e for e in events if e["event"] == "epoch"]
    assert epochs[0]["val_acc"] < 0.9
    assert best.accuracy == max(e["val_acc"] for e in epochs) == 1.0
    assert epochs[-1]["best_epoch"] == best.epoch


@pytest.mark.parametrize(
    "profile",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 4},
        {"moe_dispatch": "dense"},
        {"prefetch_batches": 0},
    ],
    ids=str,
)
def test_the_profile_does_not_change_the_loss_curve(dataset, encoder, tmp_path, profile):
    *_, reference = run(dataset, encoder, tmp_path / "a")
    *_, other = run(dataset, encoder, tmp_path / "b", **profile)
    torch.testing.assert_close(losses(other), losses(reference), atol=2e-4, rtol=1e-3)


def test_the_same_run_twice_is_the_same_to_the_bit(dataset, encoder, tmp_path):
    first, *_ = run(dataset, encoder, tmp_path / "a")
    second, *_ = run(dataset, encoder, tmp_path / "b")
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_the_best_epochs_weights_are_kept(dataset, encoder, tmp_path):
    trainer, best, _ = run(dataset, encoder, tmp_path)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, best.weights[name])


def test_a_gradient_that_is_not_finite_stops_the_run(dataset, encoder, tmp_path):
    with pytest.raises(RunError, match=r"lower optimizer\.lr"):
        run(dataset, encoder, tmp_path, lr=1e30)
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "failed"


def test_epoch_events_carry_what_readers_expect(dataset, encoder, tmp_path):
    *_, events = run(dataset, encoder, tmp_path, epochs=1)
    promised = (
        "epoch step lr train_loss train_acc val_loss val_acc entropy margin_loss balance_loss "
        "draft_acc samples_per_sec train_seconds eval_seconds rss_mb vram_mb swa_snapshots"
    )
    epoch = next(e for e in events if e["event"] == "epoch")
    assert set(promised.split()) <= set(epoch)
