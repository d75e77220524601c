import dataclasses

import pytest
import torch

from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.features.codec import Int8Codec
from arbiter.features.deployed_store import DeployedStore
from arbiter.features.memory import MemoryStore
from arbiter.features.shard_writer import write_codecs
from arbiter.features.store import FeatureStore
from tests.conftest import draw_square

IMAGES = [draw_square("red", 4, 20), draw_square("blue", 20, 30), draw_square("red", 4, 20)]


@pytest.fixture
def codecs(encoder, tmp_path):
    """Codecs of a model trained on other pictures."""
    store = FeatureStore(tmp_path / "elsewhere", encoder)
    store.ensure("image", [draw_square("green", 0, 40)])
    return {"image": store.codecs("image")}


def everything(found) -> dict[str, torch.Tensor]:
    table, rows = found
    return {name: stream.gather(rows)[0] for name, stream in table.streams.items()}


def assert_as_the_engine(store, encoder, codecs):
    expected = everything(MemoryStore(encoder, codecs).ensure("image", IMAGES))
    for name, values in everything(store.ensure("image", IMAGES)).items():
        torch.testing.assert_close(values, expected[name], rtol=0, atol=0)


def test_a_new_table_is_rounded_as_the_models(encoder, codecs, tmp_path):
    kept = FeatureStore(tmp_path / "features", encoder)
    assert_as_the_engine(DeployedStore(kept, codecs), encoder, codecs)
    assert len(kept.open("image").rows) == 2
    # And the next time it is read, not made.
    encode, encoder.encode_image = encoder.encode_image, None
    try:
        DeployedStore(FeatureStore(tmp_path / "features", encoder), codecs).ensure("image", IMAGES)
    finally:
        encoder.encode_image = encode


def test_a_table_with_another_rounding_is_left_alone(encoder, codecs, tmp_path):
    kept = FeatureStore(tmp_path / "features", encoder)
    other = {n: Int8Codec(c.channel_scale * 1.5) for n, c in codecs["image"].items()}
    kept.directory("image").mkdir(parents=True)
    write_codecs(kept.directory("image"), other)
    assert_as_the_engine(DeployedStore(kept, codecs), encoder, codecs)
    assert not kept.open("image").rows
    assert len(list(kept.directory("image").glob("codec-*"))) == 1


def test_float16_features_need_no_codec(tmp_path):
    config = dataclasses.replace(RawEncoderConfig(), cache_dtype="float16")
    encoder = RawEncoder(config)
    assert_as_the_engine(DeployedStore(FeatureStore(tmp_path, encoder), {"image": {}}), encoder, {})
