"""Training with foils, modality dropout and experts balanced by bias is as exact as without."""

from dataclasses import replace

import pytest
import torch

from arbiter.errors import RunError
from arbiter.foils import FoilsConfig
from arbiter.model.moe import MoEConfig
from arbiter.training.checkpoint import load_newest_state
from arbiter.training.objective import MarginConfig, ObjectiveConfig
from arbiter.training.run_directory import RunDirectory
from tests.events import without_clock
from tests.training.test_trainer import (
    losses,
    make_trainer,
    read_events,
    run,
    run_with_stops,
)

OPTIONS = {
    "objective": ObjectiveConfig(
        label_smoothing=0.05,
        margin=MarginConfig(weight=0.3),
        foils=FoilsConfig(weight=1.0),
        modality_dropout=0.4,
    ),
    "architecture": {
        "dropout": 0.1,
        "moe": MoEConfig(
            num_routed_experts=4, top_k=2, ffn_dim=16, shared_ffn_dim=24, balance="bias"
        ),
    },
    "epochs": 3,
}


def test_a_stopped_run_is_the_same_run(foil_dataset, encoder, tmp_path):
    straight, _, events = run(foil_dataset, encoder, tmp_path / "a", **OPTIONS)
    trainer, _ = run_with_stops(foil_dataset, encoder, tmp_path / "b", [2, 7], **OPTIONS)
    assert "layers.0.moe.bias_E" in straight.model.state_dict()
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name
    assert without_clock(read_events(tmp_path / "b")) == without_clock(events)


def test_the_terms_are_logged_and_no_others(foil_dataset, encoder, tmp_path):
    *_, events = run(foil_dataset, encoder, tmp_path, **OPTIONS)
    epochs = [e for e in events if e["event"] == "epoch"]
    assert all(e["foil_loss"] > 0 and e["margin_loss"] > 0 for e in epochs)
    assert all(e["balance_loss"] is None for e in epochs)
    assert "balance_loss" not in next(e for e in events if e["event"] == "step")


@pytest.mark.parametrize(
    "profile",
    [{"micro_batch_size": 1}, {"moe_dispatch": "dense"}, {"prefetch_batches": 3}],
    ids=str,
)
def test_the_profile_does_not_change_the_loss_curve(foil_dataset, encoder, tmp_path, profile):
    """With dropout and everything else that draws random numbers."""
    *_, reference = run(foil_dataset, encoder, tmp_path / "a", **OPTIONS)
    *_, other = run(foil_dataset, encoder, tmp_path / "b", **OPTIONS, **profile)
    torch.testing.assert_close(losses(other), losses(reference), atol=2e-4, rtol=1e-3)


def test_each_option_changes_what_is_learned(foil_dataset, encoder, tmp_path):
    plain = replace(OPTIONS["objective"], foils=FoilsConfig(), modality_dropout=0.0)
    curves = []
    for i, change in enumerate([{}, {"foils": FoilsConfig(weight=1.0)}, {"modality_dropout": 0.4}]):
        options = {**OPTIONS, "objective": replace(plain, **change)}
        *_, events = run(foil_dataset, encoder, tmp_path / str(i), **options)
        curves.append(losses(events))
    assert not torch.equal(curves[0], curves[1])
    assert not torch.equal(curves[0], curves[2])


def test_a_run_does_not_go_on_with_other_foils(dataset, foil_dataset, encoder, tmp_path):
    run(foil_dataset, encoder, tmp_path, **{**OPTIONS, "epochs": 1})
    trainer = make_trainer(dataset, encoder, **OPTIONS)
    with pytest.raises(RunError, match="the run began with other foils; restore"):
        trainer.restore(load_newest_state(tmp_path / "resume"), RunDirectory(tmp_path))
