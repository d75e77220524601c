"""Muon: its updates are orthogonal, expert by expert, and of AdamW's size."""

import pytest
import torch

from arbiter.training.muon import MuonConfig, muon, orthogonalise
from tests.conftest import make_model
from tests.training.test_plain_adamw import Net, train


@pytest.mark.parametrize("shape", [(8, 8), (8, 20), (20, 8), (3, 12, 6), (3, 6, 12)])
def test_singular_values_come_near_one(shape):
    matrices = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalise(matrices, 5))
    assert values.min() > 0.3 and values.max() < 1.3
    # The singular vectors stay: U V^T of the original is what it comes near to.
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    overlap = (u @ vh * orthogonalise(matrices, 5)).sum(dim=(-2, -1)) / min(shape[-2:])
    assert (overlap > 0.7).all()


def test_experts_do_not_touch_each_other():
    experts = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(2))
    together = orthogonalise(experts, 5)
    for i, expert in enumerate(experts):
        torch.testing.assert_close(together[i], orthogonalise(expert, 5))
    experts[1] = 0
    assert (orthogonalise(experts, 5)[1] == 0).all()
    torch.testing.assert_close(orthogonalise(experts, 5)[0], together[0])


def test_a_step_is_of_adamws_size():
    model = Net()
    before = model.matrix.detach().clone()
    optimizer = muon(MuonConfig(weight_decay=0.0), model)
    train(model, optimizer, [49])  # where the learning rate is 2e-3
    rms = (model.matrix.detach() - before).square().mean().sqrt() / 2e-3
    assert 0.1 < rms < 0.4


def test_matrices_are_muons_and_the_rest_is_adamws(dataset, encoder):
    model = make_model(dataset, encoder)
    optimizer = muon(MuonConfig(weight_decay=0.3), model)
    kinds = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    assert len(kinds) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        group = kinds[id(parameter)]
        matrix = parameter.ndim > 1 and "embedding" not in name
        assert group["weight_decay"] == (0.3 if matrix else 0.0), name
        wide = matrix and min(parameter.shape[-2:]) > 1
        assert bool(group["orthogonal_steps"]) == wide, name
