"""Dropout by address: the right share, independent masks, and nothing that a batch decides."""

import numpy as np
import pytest
import torch

from arbiter.features.batch import assemble
from arbiter.features.sampler import blocks_of
from arbiter.model.dropout import Dropout, Noise
from tests.conftest import make_model


def noise_of(rows: int, seed: int = 0) -> Noise:
    """Addresses of so many blocks of one question."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(1, 2039, (rows, 2), generator=generator).float()
    return Noise(seed, pairs[:, None], pairs, pairs)


def kept(seed: int, tokens: int = 64, width: int = 256, site: str = "a") -> torch.Tensor:
    """What dropout of a third keeps of [8, tokens, width], as zeros and ones."""
    noise = noise_of(8, seed)
    rows = noise.tokens(noise.block, "tokens", tokens)
    x = torch.ones(8, tokens, width)
    return (Dropout(1 / 3).train()(x, rows, noise.channels(site, width)) != 0).float()


def test_the_share_is_right_and_the_mean_stays():
    noise = noise_of(8)
    rows = noise.tokens(noise.block, "tokens", 64)
    dropped = Dropout(0.25).train()(torch.ones(8, 64, 512), rows, noise.channels("x", 512))
    values = dropped.unique()
    assert values.tolist() == [0.0, pytest.approx(1 / 0.75, rel=1e-3)]
    # The mean of 262,144 numbers that are pairwise independent: its deviation is 0.0011.
    assert float(dropped.mean()) == pytest.approx(1, abs=0.006)


def test_masks_of_rows_channels_sites_and_steps_are_uncorrelated():
    first = kept(seed=1)
    flat = first.flatten(0, 1)
    expected = torch.tensor(2 / 3)
    for one, other in (
        (flat[:-1], flat[1:]),  # neighbouring tokens
        (first[:-1], first[1:]),  # the same token of two blocks
        (flat[:, :-1], flat[:, 1:]),  # neighbouring channels
        (first, kept(seed=1, site="b")),
        (first, kept(seed=2)),
    ):
        both = (one * other).mean()
        torch.testing.assert_close(both, expected**2, atol=0.01, rtol=0)


def test_it_is_exact_in_float32():
    """The same in whole numbers of 64 bits."""
    noise = noise_of(2039)
    channels = noise.channels("x", 64)
    value = noise.block.long()[:, None]
    expected = (value[..., 0] * channels[0].long() + value[..., 1] + channels[1].long()) % 2039
    mask = Dropout(0.5).train()(torch.ones(2039, 64), noise.block, channels) != 0
    assert torch.equal(mask, expected >= round(0.5 * 2039))


def test_nothing_is_dropped_in_evaluation_or_without_addresses():
    x, noise = torch.randn(3, 5), noise_of(3)
    assert Dropout(0.5).eval()(x, noise.block, noise.channels("x", 5)) is x
    assert Dropout(0.5).train()(x, None, None) is x
    assert Dropout(0.0).train()(x, noise.block, noise.channels("x", 5)) is x


@pytest.mark.parametrize("attention", ["prefix", "full", "perceiver"])
def test_micro_batches_draw_what_the_batch_draws(dataset, encoder, attention):
    """Whatever they are padded to, and whatever they are with."""
    model = make_model(dataset, encoder, attention=attention, dropout=0.3).train()
    blocks = blocks_of(dataset, 4, np.random.default_rng(0))

    def scores(parts: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        found = {}
        for part in parts:
            batch = assemble(dataset, part)
            logits = model(batch, Noise.of(batch, seed=7)).logits
            for place in (batch.sample >= 0).nonzero():
                b, q = place.tolist()
                found[int(batch.sample[b, q])] = logits[b, q][batch.candidate_mask[b, q]]
        return found

    together, apart = scores([blocks]), scores(list(blocks.split(1)))
    other = scores(list(blocks.flip(0).split(3)))
    assert len(together) == len(dataset)
    for sample, expected in together.items():
        torch.testing.assert_close(apart[sample], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other[sample], expected, atol=1e-4, rtol=1e-4)
    batch = assemble(dataset, blocks)
    another_step = model(batch, Noise.of(batch, seed=8)).logits
    assert not torch.allclose(another_step, model(batch, Noise.of(batch, seed=7)).logits)
