"""Noise for deliberation: addressed by content, and nothing but what it says."""

import numpy as np
import pytest
import torch

from arbiter.features.batch import assemble
from arbiter.features.sampler import blocks_of
from arbiter.model.noise import Noise, NoiseSource
from tests.conftest import make_model

KINDS = [
    (attention, dispatch) for attention in ("prefix", "full") for dispatch in ("grouped", "dense")
]


@pytest.fixture(params=KINDS, ids="-".join)
def model(request, dataset, encoder):
    attention, dispatch = request.param
    return make_model(dataset, encoder, dispatch, attention=attention)


def test_draws_depend_on_seed_and_content_alone():
    source = NoiseSource(3, 4, 0.25, 0.5, num_layers=2, hidden_dim=64, num_experts=4)
    one, two = b"\1" * 32, b"\2" * 32
    keep, router = source.draw([one, two, one])
    assert keep.shape == (3, 4, 5, 64) and router.shape == (3, 4, 2, 4)
    alone_keep, alone_router = source.draw([one])
    for drawn, alone in ((keep, alone_keep), (router, alone_router)):
        assert torch.equal(drawn[0], alone[0]) and torch.equal(drawn[0], drawn[2])
        assert not torch.equal(drawn[0], drawn[1])
        # The passes of a sample differ from each other.
        assert not torch.equal(drawn[0, 0], drawn[0, 1])
    other, _ = NoiseSource(4, 4, 0.25, 0.5, 2, 64, 4).draw([one])
    assert not torch.equal(other, alone_keep)


def test_draws_have_the_size_that_was_asked_for():
    source = NoiseSource(0, 8, 0.25, 0.5, num_layers=3, hidden_dim=128, num_experts=8)
    keep, router = source.draw([bytes([i]) * 32 for i in range(40)])
    assert keep.unique().tolist() == pytest.approx([0, 4 / 3])
    # 286,720 keeps and 7,680 normals: five standard errors.
    assert float((keep == 0).float().mean()) == pytest.approx(0.25, abs=5 * 0.00081)
    assert float(router.std()) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2 * 7680))


def test_no_draw_touches_the_global_generators():
    torch.manual_seed(5)
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()
    NoiseSource(0, 2, 0.1, 0.1, 2, 8, 4).draw([b"x" * 32])
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], legacy)


def neutral(model, blocks: torch.Tensor) -> Noise:
    size = model.config
    return Noise(
        torch.ones(*blocks.shape, 2 * size.num_layers + 1, size.hidden_dim),
        torch.zeros(*blocks.shape, size.num_layers, size.moe.num_routed_experts),
    )


@torch.no_grad()
def test_noise_of_size_zero_changes_nothing(model, dataset):
    blocks = blocks_of(dataset, 16)
    batch = assemble(dataset, blocks)
    quiet, noisy = model.fuse(batch), model.fuse(batch, neutral(model, blocks))
    real = batch.question_mask
    torch.testing.assert_close(noisy.decision_BQH[real], quiet.decision_BQH[real])


@torch.no_grad()
def test_noise_of_one_question_is_not_felt_by_its_neighbours(model, dataset):
    blocks = blocks_of(dataset, 16)
    batch = assemble(dataset, blocks)
    quiet = neutral(model, blocks)
    place = (0, 1)
    assert batch.question_mask[place]
    keep, router = quiet.keep.clone(), quiet.router.clone()
    keep[place] *= torch.rand_like(keep[place]) > 0.5
    router[place] = torch.randn_like(router[place]) * 3
    before, after = (model.fuse(batch, n).decision_BQH for n in (quiet, Noise(keep, router)))
    assert float((after[place] - before[place]).abs().max()) > 1e-3
    others = batch.question_mask.clone()
    others[place] = False
    torch.testing.assert_close(after[others], before[others], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_draft_head_needs_no_patches(model, dataset):
    blocks = blocks_of(dataset, 16)
    whole, part = assemble(dataset, blocks), assemble(dataset, blocks, detail=False)
    assert "patches" in whole.media and "patches" not in part.media
    torch.testing.assert_close(model.draft_logits(part), model(whole).draft_logits)


@torch.no_grad()
def test_repeated_questions_score_alike(model, dataset):
    batch = assemble(dataset, blocks_of(dataset, 16))
    repeated = batch.repeat_questions(3)
    once, thrice = model(batch).logits, model(repeated).logits.unflatten(1, (-1, 3))
    real = batch.question_mask
    for copy in range(3):
        torch.testing.assert_close(thrice[:, :, copy][real], once[real], atol=1e-5, rtol=0)
