"""Experts balanced by a bias on their choice, against enumeration in float64."""

import itertools

import pytest
import torch

from arbiter.features.batch import assemble
from arbiter.features.sampler import blocks_of
from arbiter.model.moe import MixtureOfExperts, MoEConfig
from tests.conftest import make_model
from tests.model.test_moe import HIDDEN, gelu, make, tokens  # noqa: F401

BIAS = torch.tensor([0.3, -0.2, 0.0, 0.15, -0.4])


def biased(dispatch: str) -> MixtureOfExperts:
    moe = make(dispatch, balance="bias")
    moe.bias_E.copy_(BIAS)
    return moe


def chosen(moe: MixtureOfExperts, token: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
    """The pair of experts with the highest sum of biased probabilities, and all probabilities."""
    probabilities = (moe.router.weight.double() @ token.double()).softmax(-1)
    score = (probabilities + moe.bias_E.double()).tolist()
    pairs = itertools.combinations(range(len(score)), moe.config.top_k)
    return max(pairs, key=lambda pair: sum(score[e] for e in pair)), probabilities


@pytest.mark.parametrize("dispatch", ["grouped", "dense"])
def test_the_bias_moves_the_choice_and_not_the_gates(tokens, dispatch):  # noqa: F811
    x, mask = tokens
    moe = biased(dispatch)
    y, stats = moe(x, mask)
    assert stats is None
    expected = torch.zeros(x.shape, dtype=torch.float64)
    moved = 0
    for b, t in mask.nonzero().tolist():
        token = x[b, t].double()
        experts, probabilities = chosen(moe, token)
        moved += set(experts) != set(probabilities.topk(2).indices.tolist())
        total = sum(probabilities[e] for e in experts)
        for e in experts:
            hidden = gelu(token @ moe.w_in_EHF[e].double())
            expected[b, t] += probabilities[e] / total * (hidden @ moe.w_out_EFH[e].double())
        hidden = gelu(moe.shared[0].weight.double() @ token)
        expected[b, t] += moe.shared[2].weight.double() @ hidden
    torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)
    assert 0 < moved < int(mask.sum())


@pytest.mark.parametrize("dispatch", ["grouped", "dense"])
def test_a_step_moves_each_bias_by_the_rate_towards_an_even_load(tokens, dispatch):  # noqa: F811
    x, mask = tokens
    moe = biased(dispatch).train()
    counts = [0] * 5
    for part in (slice(0, 1), slice(1, 3)):  # two micro-batches of one step
        moe(x[part], mask[part])
    for b, t in mask.nonzero().tolist():
        for e in chosen(moe, x[b, t])[0]:
            counts[e] += 1
    mean = sum(counts) / 5
    expected = [
        b + 0.001 * ((mean > c) - (mean < c)) for b, c in zip(BIAS.tolist(), counts, strict=True)
    ]
    moe.finish_step()
    torch.testing.assert_close(moe.bias_E, torch.tensor(expected))
    assert len(set(counts)) > 1
    moe.finish_step()  # a step in which nothing was counted
    torch.testing.assert_close(moe.bias_E, torch.tensor(expected))


def test_a_skewed_router_becomes_even():
    torch.manual_seed(0)
    config = MoEConfig(num_routed_experts=4, top_k=1, ffn_dim=8, balance="bias", bias_rate=0.003)
    moe = MixtureOfExperts(HIDDEN, config, "grouped").train()
    with torch.no_grad():
        moe.router.weight[0] += 1.0
    x = torch.randn(8, 64, HIDDEN) + 0.2
    mask = torch.ones(8, 64, dtype=torch.bool)
    loads = []
    for _ in range(350):
        moe(x, mask)
        moe.finish_step()
        loads.append(float(moe.load.max()))
    assert loads[0] > 0.6
    assert max(loads[-10:]) < 0.35


def test_no_gradient_reaches_the_bias_and_the_router_still_learns(tokens):  # noqa: F811
    x, mask = tokens
    moe = biased("grouped").train()
    y, _ = moe(x, mask)
    y.square().sum().backward()
    assert moe.router.weight.grad.abs().sum() > 0
    assert not moe.bias_E.requires_grad
    assert "bias_E" not in dict(moe.named_parameters())


def test_the_bias_is_saved_only_where_there_is_one():
    assert "bias_E" in make("grouped", balance="bias").state_dict()
    assert "bias_E" not in make("grouped").state_dict()


def test_a_model_balanced_by_bias_gives_no_statistics(dataset, encoder):
    moe = MoEConfig(num_routed_experts=4, top_k=2, ffn_dim=16, shared_ffn_dim=24, balance="bias")
    batch = assemble(dataset, blocks_of(dataset, 2))
    with torch.no_grad():
        by_bias = make_model(dataset, encoder, moe=moe)(batch)
        by_loss = make_model(dataset, encoder)(batch)
    assert by_bias.routing == []
    # With no bias yet, the same experts are chosen.
    torch.testing.assert_close(by_bias.logits, by_loss.logits)
