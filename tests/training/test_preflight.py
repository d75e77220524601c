"""The preflight: a device whose gradients are wrong is caught, and its term is named."""

from dataclasses import replace

import pytest
import torch

from arbiter.errors import RunError
from arbiter.features.batch import assemble
from arbiter.features.sampler import epoch_blocks
from arbiter.foils import FoilsConfig
from arbiter.training import objective, preflight
from arbiter.training.objective import MarginConfig, ObjectiveConfig
from tests.conftest import make_model
from tests.training.test_trainer import make_trainer

EVERY_TERM = ObjectiveConfig(margin=MarginConfig(weight=0.3))
FOILS = replace(EVERY_TERM, foils=FoilsConfig(weight=1.0))


class Wrong(torch.autograd.Function):
    """The identity, with another gradient."""

    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


def check(dataset, encoder):
    model = make_model(dataset, encoder)
    batch = assemble(dataset, epoch_blocks(dataset, 2, 0, 1)[:3])
    before = {n: t.clone() for n, t in model.state_dict().items()}
    state = torch.random.get_rng_state()
    try:
        preflight.check_gradients(model, batch, EVERY_TERM, torch.device("cpu"))
    finally:
        assert torch.equal(torch.random.get_rng_state(), state)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_sound_device_passes_and_every_term_is_looked_at(dataset, encoder, caplog):
    caplog.set_level("INFO")
    check(dataset, encoder)
    terms = "cross_entropy, margin_loss, balance_loss, draft_loss, distillation_loss"
    assert f"gradients of {terms} agree with the CPU\n" in caplog.text


def with_foils_of(dataset, samples):
    """The dataset, of whose samples only these have foils."""
    place = torch.full_like(dataset.foils.place, len(dataset.foils.rows))
    place[samples] = dataset.foils.place[samples]
    nothing = torch.full_like(dataset.foils.rows[:1], -1)
    table = replace(dataset.foils, rows=torch.cat([dataset.foils.rows, nothing]), place=place)
    return replace(dataset, foils=table)


def preflight_of_run(dataset, encoder, monkeypatch):
    """The preflight of a run whose device is a GPU, up to the comparison, which stays here."""
    trainer = make_trainer(dataset, encoder, objective=FOILS, preflight=True, micro_batch_size=2)
    monkeypatch.setattr(trainer, "device", torch.device("cuda"))
    monkeypatch.setattr(
        "arbiter.training.trainer.check_gradients",
        lambda *a: preflight.check_gradients(*a[:3], torch.device("cpu")),
    )
    trainer._preflight()


def test_blocks_with_foils_are_chosen_first(foil_dataset):
    for row in range(len(foil_dataset)):
        blocks = preflight.choose_blocks(with_foils_of(foil_dataset, [row]), 2, 3, seed=0)
        assert blocks.shape == (3, 2) and row in blocks[0]
    whole = epoch_blocks(foil_dataset, 2, 0, 1)
    nowhere = preflight.choose_blocks(with_foils_of(foil_dataset, []), 2, 3, seed=0)
    assert torch.equal(nowhere, whole[:3])


def test_a_run_with_foils_checks_their_term(foil_dataset, encoder, monkeypatch, caplog):
    caplog.set_level("INFO")
    # The first two blocks of the epoch would not do.
    others = epoch_blocks(foil_dataset, 2, 0, 1)[2:]
    preflight_of_run(with_foils_of(foil_dataset, others[others >= 0]), encoder, monkeypatch)
    assert "margin_loss, foil_loss, balance_loss" in caplog.text
    assert "not checked" not in caplog.text


def test_a_term_that_could_not_be_checked_is_named(foil_dataset, encoder, monkeypatch, caplog):
    caplog.set_level("INFO")
    preflight_of_run(with_foils_of(foil_dataset, []), encoder, monkeypatch)
    terms = "cross_entropy, margin_loss, balance_loss, draft_loss, distillation_loss"
    said = f"gradients of {terms} agree with the CPU; without one here, and not checked: foil_loss"
    assert said in caplog.text


def test_a_term_without_a_gradient_is_not_called_checked(dataset, encoder, monkeypatch, caplog):
    caplog.set_level("INFO")
    whole = objective.compute_loss

    def flat(*arguments):
        loss = whole(*arguments)
        loss.with_gradient["margin_loss"] = loss.with_gradient["margin_loss"] * 0
        return loss

    monkeypatch.setattr(preflight, "compute_loss", flat)
    check(dataset, encoder)
    assert "and not checked: margin_loss" in caplog.text


@pytest.mark.parametrize("factor", [0.0, 1.1, float("nan")])
@pytest.mark.parametrize("term", ["cross_entropy", "balance_loss", "distillation_loss"])
def test_a_wrong_gradient_names_its_term(dataset, encoder, monkeypatch, term, factor):
    """On the second of the two computations, which is the device's."""
    whole, calls = objective.compute_loss, []

    def broken(*arguments):
        loss = whole(*arguments)
        calls.append(loss)
        if len(calls) == 2:
            loss.with_gradient[term] = Wrong.apply(loss.with_gradient[term], factor)
        return loss

    monkeypatch.setattr(preflight, "compute_loss", broken)
    with pytest.raises(RunError, match=rf"preflight: cpu gives another gradient of {term} for "):
        check(dataset, encoder)
    assert len(calls) == 2
