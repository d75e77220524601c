"""Augmented features against features of the augmented image."""

import numpy as np
import pytest
import torch
from PIL import Image

from arbiter.encoders.base import FeatureSpec, StreamSpec
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.errors import ConfigError
from arbiter.features.augment import Augmenter
from arbiter.features.batch import assemble
from arbiter.features.dataset import index_samples
from arbiter.features.store import FeatureStore
from arbiter.sample import Sample

FULL = RawEncoderConfig(max_patches=64, cache_dtype="float16")


def batch_of(image: Image.Image, config: RawEncoderConfig, folder):
    encoder = RawEncoder(config)
    sample = Sample("q", ("a", "b"), images=(image,))
    data = index_samples({"": [sample]}, FeatureStore(folder, encoder), encoder.spec)[""]
    return assemble(data, torch.tensor([[0]])), encoder


def grid(batch) -> torch.Tensor:
    """Patch features laid out by position, [8, 8, D]."""
    tokens = batch.media["patches"]
    out = torch.zeros(8, 8, tokens.values.shape[-1])
    rows, columns = tokens.positions[0, :, 1], tokens.positions[0, :, 2]
    out[rows, columns] = tokens.values[0]
    return out


def test_a_mirrored_batch_is_the_batch_of_the_mirrored_image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    batch, encoder = batch_of(image, FULL, tmp_path)
    mirrored, _ = batch_of(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), FULL, tmp_path)
    augmented = Augmenter(True, 0, encoder.spec).apply(batch, torch.zeros(1, 3))
    torch.testing.assert_close(grid(augmented), grid(mirrored), atol=2e-2, rtol=2e-3)
    torch.testing.assert_close(
        augmented.media["image"].values, mirrored.media["image"].values, atol=2e-3, rtol=2e-3
    )
    untouched = Augmenter(True, 0, encoder.spec).apply(batch, torch.ones(1, 3))
    assert torch.equal(grid(untouched), grid(batch))


def test_a_shifted_batch_is_the_batch_of_the_shifted_image(tmp_path):
    from tests.conftest import draw_square

    config = RawEncoderConfig(max_patches=9, cache_dtype="float16")
    # The square covers 3 x 3 patches in part, so all nine kept patches are its own.
    batch, encoder = batch_of(draw_square("red", 20, 20), config, tmp_path)
    augmenter = Augmenter(False, 1, encoder.spec)
    seen = set()
    for draws in ((0.0, 0.0), (0.99, 0.99), (0.0, 0.99), (0.5, 0.5)):
        moved = augmenter.apply(batch, torch.tensor([[1.0, *draws]]))
        step = (moved.media["patches"].positions - batch.media["patches"].positions)[0, 0, 1:]
        rows, columns = step.tolist()
        seen.add((rows, columns))
        shifted, _ = batch_of(draw_square("red", 20 + 8 * columns, 20 + 8 * rows), config, tmp_path)
        torch.testing.assert_close(grid(moved), grid(shifted), atol=1e-2, rtol=1e-3)
    assert seen == {(-1, -1), (1, 1), (-1, 1), (0, 0)}


def test_shifts_never_leave_the_grid(dataset, encoder):
    from arbiter.features.sampler import blocks_of

    batch = assemble(dataset, blocks_of(dataset, 16))
    rng = np.random.default_rng(0)
    augmenter = Augmenter(True, 5, encoder.spec)
    for _ in range(20):
        tokens = augmenter.apply(batch, augmenter.draw(len(batch.question), rng)).media["patches"]
        places = tokens.positions[tokens.mask]
        assert places.min() >= 0 and places[:, 1:].max() <= 7


def test_features_that_cannot_be_mirrored_are_refused():
    spec = FeatureSpec({"text": {"pooled": StreamSpec(8)}, "image": {"pooled": StreamSpec(8)}})
    assert not Augmenter(False, 0, spec).active
    with pytest.raises(ConfigError, match=r"dataset\.augment\.horizontal_flip"):
        Augmenter(True, 0, spec)
