"""Modality dropout: what goes, what stays, and that what goes leaves no trace."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from arbiter.features.augment import Augmenter
from arbiter.features.batch import assemble
from arbiter.features.dataset import index_samples
from arbiter.features.sampler import blocks_of
from arbiter.features.store import FeatureStore
from arbiter.training.modality_dropout import ModalityDropout
from arbiter.training.schedules import ScheduleConfig
from arbiter.training.steps import micro_batches
from tests.conftest import make_model, make_samples

KINDS = ("image", "video", "audio")


def modalities(batch, block: int) -> set[str]:
    """The media that a block has."""
    return {k for k in KINDS if k in batch.media and bool(batch.media[k].mask[block].any())}


def expected_media(present: set[str], draws: list[float], probability: float) -> set[str]:
    """By the rule: what is drawn below the probability goes; if all would, the highest stays."""
    draw = dict(zip(KINDS, draws, strict=True))
    kept = {kind for kind in present if draw[kind] >= probability}
    return kept or ({max(present, key=draw.get)} if present else set())


@pytest.mark.parametrize("probability", [0.3, 0.9])
def test_each_modality_goes_by_its_draw_and_some_media_stays(dataset, probability):
    batch = assemble(dataset, blocks_of(dataset, 2))
    dropout = ModalityDropout(probability)
    outcomes = set()
    for seed in range(40):
        draws = dropout.draw(len(batch.question), np.random.default_rng(seed))
        dropped = dropout.apply(batch, draws)
        for b, row in enumerate(draws.tolist()):
            present = modalities(batch, b)
            kept = modalities(dropped, b)
            assert kept == expected_media(present, row[:3], probability)
            assert bool(kept) == bool(present)
            # Patches come and go with their images.
            if "patches" in dropped.media:
                there = "image" in kept
                assert bool(dropped.media["patches"].mask[b].any()) == there
            expected = batch.context_mask[b] & (row[3] >= probability)
            assert torch.equal(dropped.context_mask[b], expected)
            outcomes.add((len(present), len(kept)))
        for kind, tokens in dropped.media.items():
            assert bool(tokens.mask.any()), kind
    assert {(3, 1), (3, 2), (1, 1), (0, 0)} <= outcomes


def test_the_share_that_goes_is_the_probability(dataset):
    samples = make_samples()
    rich = [i for i, s in enumerate(samples) if s.context and s.images and s.video]
    batch = assemble(dataset, torch.tensor([[rich[0]]] * 4000))
    dropout = ModalityDropout(0.25)
    dropped = dropout.apply(batch, dropout.draw(4000, np.random.default_rng(0)))
    # All three would go with chance 1/64, and one of them is then kept: 1/192 less for each.
    for kind in KINDS:
        gone = 1 - dropped.media[kind].mask.any(dim=1).double().mean()
        assert gone == pytest.approx(0.25 - 1 / 192, abs=0.025)
    assert 1 - dropped.context_mask.double().mean() == pytest.approx(0.25, abs=0.025)


@pytest.mark.parametrize("attention", ["prefix", "full"])
def test_what_is_dropped_leaves_no_trace(dataset, encoder, tmp_path, attention):
    """The scores are those of samples that never had it."""
    samples = make_samples()
    (rich,) = (i for i, s in enumerate(samples) if s.context and s.images and s.video)
    bare = replace(samples[rich], context=None, images=(), audio=None)
    # One store for both, since features are rounded by what a store holds.
    store = FeatureStore(tmp_path, encoder)
    parts = {"with": samples, "without": [samples[0], bare]}
    data = index_samples(parts, store, encoder.spec)
    model = make_model(dataset, encoder, attention=attention)
    batch = assemble(data["with"], torch.tensor([[0], [rich]]))
    draws = torch.tensor([[0.9, 0.9, 0.9, 0.9], [0.1, 0.9, 0.1, 0.1]], dtype=torch.float64)
    with torch.no_grad():
        dropped = model(ModalityDropout(0.5).apply(batch, draws))
        expected = model(assemble(data["without"], torch.tensor([[0], [1]])))
        full = model(batch)
    torch.testing.assert_close(dropped.logits, expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dropped.draft_logits, expected.draft_logits, atol=1e-5, rtol=1e-5)
    assert (full.logits - expected.logits)[1, 0, :2].abs().max() > 1e-3


def test_the_batch_itself_is_left_alone(dataset):
    batch = assemble(dataset, blocks_of(dataset, 2))
    masks = {kind: tokens.mask.clone() for kind, tokens in batch.media.items()}
    ModalityDropout(0.9).apply(batch, torch.zeros(len(batch.question), 4, dtype=torch.float64))
    assert set(batch.media) == set(masks)
    for kind, mask in masks.items():
        assert torch.equal(batch.media[kind].mask, mask)


def steps(dataset, encoder, probability, micro_batch_size, from_step=0, seed=0):
    """(step, kinds of media, context) of every block, in order."""
    schedule = ScheduleConfig(epochs=1, batch_size=4, questions_per_block=2)
    work = micro_batches(
        dataset, Augmenter(False, 0, encoder.spec), schedule, seed, 1, 0, from_step,
        micro_batch_size, ModalityDropout(probability),
    )  # fmt: skip
    return [
        (micro.step, frozenset(modalities(micro.batch, b)), int(micro.batch.context_mask[b].sum()))
        for micro in work
        for b in range(len(micro.batch.question))
    ]


def test_what_goes_depends_on_seed_and_step_alone(dataset, encoder):
    for seed in range(8):  # few blocks have anything to lose, so one seed shows little
        whole = steps(dataset, encoder, 0.5, 4, seed=seed)
        assert steps(dataset, encoder, 0.5, 1, seed=seed) == whole
        later = [block for block in whole if block[0] >= 1]
        assert steps(dataset, encoder, 0.5, 4, from_step=1, seed=seed) == later


def test_with_probability_zero_nothing_goes(dataset, encoder):
    untouched = steps(dataset, encoder, 0.0, micro_batch_size=4)
    assert untouched != steps(dataset, encoder, 0.9, micro_batch_size=4)
    samples = make_samples()
    assert sum(context for *_, context in untouched) == sum(bool(s.context) for s in samples)
    assert not ModalityDropout(0.0).active
