"""The preflight: a device whose gradients are wrong is caught, and its term is named."""

import pytest
import torch

from arbiter.errors import RunError
from arbiter.features.batch import assemble
from arbiter.features.sampler import epoch_blocks
from arbiter.training import objective, preflight
from arbiter.training.objective import MarginConfig, ObjectiveConfig
from tests.conftest import make_model

EVERY_TERM = ObjectiveConfig(margin=MarginConfig(weight=0.3))


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
    assert f"gradients of {terms} agree" in caplog.text


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
