"""The mixture of experts against a loop over tokens, in float64."""

import math

import pytest
import torch

from arbiter.errors import ConfigError
from arbiter.model.moe import MixtureOfExperts, MoEConfig

HIDDEN = 16


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def reference(moe: MixtureOfExperts, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Route and transform each token on its own, in float64."""
    weights = {name: value.double() for name, value in moe.state_dict().items()}
    out = torch.zeros(x.shape, dtype=torch.float64)
    for b, t in mask.nonzero().tolist():
        token = x[b, t].double()
        logits = weights["router.weight"] @ token
        probabilities = torch.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        chosen = sorted(range(len(logits)), key=lambda e: -probabilities[e])[: moe.config.top_k]
        total = sum(probabilities[e] for e in chosen)
        for e in chosen:
            hidden = gelu(token @ weights["w_in_EHF"][e])
            out[b, t] += probabilities[e] / total * (hidden @ weights["w_out_EFH"][e])
        if moe.shared is not None:
            hidden = gelu(weights["shared.0.weight"] @ token)
            out[b, t] += weights["shared.2.weight"] @ hidden
    return out


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 7, HIDDEN, generator=generator)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[0, 4:] = False
    mask[2, :] = False
    return x, mask


def make(dispatch: str, **options) -> MixtureOfExperts:
    torch.manual_seed(0)
    config = MoEConfig(**{"num_routed_experts": 5, "top_k": 2, "ffn_dim": 8, **options})
    return MixtureOfExperts(HIDDEN, config, dispatch).eval()


@pytest.mark.parametrize("dispatch", ["grouped", "dense"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_shared_experts": 0}, {"num_shared_experts": 2}, {"top_k": 5}, {"top_k": 1}],
    ids=str,
)
def test_equals_the_loop_over_tokens(tokens, dispatch, options):
    x, mask = tokens
    moe = make(dispatch, **options)
    y, _ = moe(x, mask)
    torch.testing.assert_close(y.double(), reference(moe, x, mask), atol=1e-5, rtol=1e-5)
    assert (y[~mask] == 0).all()


def test_both_dispatches_have_the_same_gradients(tokens):
    x, mask = tokens
    gradients = []
    for dispatch in ("grouped", "dense"):
        moe = make(dispatch).train()
        inputs = x.clone().requires_grad_()
        y, stats = moe(inputs, mask)
        (y.square().sum() + stats.probabilities.square().sum()).backward()
        gradients.append([inputs.grad, *(p.grad for p in moe.parameters())])
        assert torch.equal(moe.choices, make_counts(moe, x, mask))
    for grouped, dense in zip(*gradients, strict=True):
        torch.testing.assert_close(grouped, dense, atol=1e-5, rtol=1e-4)


def make_counts(moe, x, mask) -> torch.Tensor:
    """How often each expert is among the top k of a real token."""
    counts = torch.zeros(moe.config.num_routed_experts)
    for b, t in mask.nonzero().tolist():
        for expert in (moe.router.weight @ x[b, t]).topk(moe.config.top_k).indices:
            counts[expert] += 1
    return counts


def test_load_is_the_share_of_all_choices_of_the_last_step(tokens):
    x, mask = tokens
    moe = make("grouped").train()
    moe(x, mask)
    moe(x[:1], mask[:1])
    expected = make_counts(moe, x, mask) + make_counts(moe, x[:1], mask[:1])
    moe.finish_step()
    torch.testing.assert_close(moe.load, expected / expected.sum())
    assert (moe.choices == 0).all()
    moe.eval()(x, mask)
    assert (moe.choices == 0).all()


def test_no_token_is_dropped_when_all_choose_the_same_experts(tokens):
    x, mask = tokens
    moe = make("grouped", num_shared_experts=0)
    same = x[1, 0].expand_as(x).contiguous()
    y, _ = moe(same, mask)
    expected = reference(moe, same, mask)[1, 0].float()
    torch.testing.assert_close(y[mask], expected.expand(int(mask.sum()), -1), atol=1e-5, rtol=1e-5)


def test_an_empty_batch_passes():
    y, _ = make("grouped")(torch.zeros(2, 3, HIDDEN), torch.zeros(2, 3, dtype=torch.bool))
    assert (y == 0).all()


def test_more_choices_than_experts_is_an_error():
    with pytest.raises(ConfigError, match="at most num_routed_experts, which is 2"):
        MoEConfig(num_routed_experts=2, top_k=3).check()
