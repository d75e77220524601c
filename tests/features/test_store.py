"""The feature store: what is encoded when, and that nothing stale or damaged is ever read."""

from __future__ import annotations

import threading

import numpy as np
import psutil
import pytest
import torch

from arbiter import media
from arbiter.encoders import openclip
from arbiter.encoders.base import StreamSpec
from arbiter.encoders.openclip import OpenCLIPConfig, OpenCLIPEncoder
from arbiter.errors import MediaError, StoreError
from arbiter.features import build, key_memo, store, table
from arbiter.features.codec import Int8Codec
from arbiter.features.dataset import index_samples
from arbiter.features.shards import MappedShard, write_shard
from arbiter.features.store import FeatureStore, damaged_files
from arbiter.sample import Sample
from tests.encoders.tiny_openclip import write_model
from tests.features.helpers import CountingEncoder, flip_byte, picture, stored_files

TEXTS = [f"text number {number}" for number in range(100)]


def pooled(found: tuple, kind_row: int) -> np.ndarray:
    features, rows = found
    return features.streams["pooled"].gather(rows[kind_row : kind_row + 1])[0][0].numpy()


@pytest.fixture
def small_shards(monkeypatch):
    """16 contents a shard, the fewest there can be."""
    monkeypatch.setattr(build, "_SHARD_BYTES", 1)


def samples(colour: str, images: list) -> list[Sample]:
    return [
        Sample(f"is it {colour} or {number}?", ("yes", "no", colour), images=(image,))
        for number, image in enumerate(images)
    ]


# ---------------------------------------------------------------- encoded once


def test_each_content_is_encoded_once_for_all_jobs_and_datasets(tmp_path):
    for number in range(3):
        picture(number).save(tmp_path / f"{number}.png")
    picture(0).save(tmp_path / "same pixels.bmp")
    paths = [tmp_path / f"{number}.png" for number in (0, 1, 2, 0)]
    first = samples("red", [*paths, tmp_path / "same pixels.bmp", picture(2), picture(3)])
    second = samples("blue", [picture(3), picture(4), paths[1]])
    for job in range(2):
        encoder = CountingEncoder()
        features = FeatureStore(tmp_path / "store", encoder, batch_size=2)
        data = index_samples({"a": first, "b": first[:3]}, features, encoder.spec)
        assert dict(encoder.encoded) == ({} if job else {"image": 4, "text": 7 + 3})
    # Questions 0, 3 and 4 are about one picture, though it came from two files.
    assert data["a"].media.tolist() == [0, 1, 2, 0, 0, 2, 3]
    encoder = CountingEncoder()
    index_samples({"c": second}, FeatureStore(tmp_path / "store", encoder), encoder.spec)
    # New: one picture, three questions and 'blue'.
    assert dict(encoder.encoded) == {"image": 1, "text": 3 + 1}


def test_rows_lead_to_the_features_of_their_references(tmp_path, small_shards):
    encoder = CountingEncoder(cache_dtype="float16")
    refs = [TEXTS[i] for i in np.random.default_rng(0).integers(0, 100, 300)]
    features, rows = FeatureStore(tmp_path, encoder, batch_size=7).ensure("text", refs)
    values, _ = features.streams["pooled"].gather(rows)
    expected = encoder.encode_text(refs)["pooled"].values
    np.testing.assert_allclose(values.numpy(), expected, atol=5e-3)


def test_a_warm_store_never_builds_the_towers(tmp_path, monkeypatch):
    directory = write_model(tmp_path / "model", tokenizer=True)

    def encoder() -> OpenCLIPEncoder:
        return OpenCLIPEncoder(OpenCLIPConfig(model_name=f"local-dir:{directory}", weights=None))

    data = {"": samples("red", [picture(0), picture(1)])}
    index_samples(data, FeatureStore(tmp_path / "store", encoder()), encoder().spec)

    def refuse(*arguments):
        raise AssertionError("the towers were built")

    monkeypatch.setattr(openclip, "load_towers", refuse)
    index_samples(data, FeatureStore(tmp_path / "store", encoder()), encoder().spec)
    with pytest.raises(AssertionError, match="were built"):
        index_samples(
            {"": samples("red", [picture(2)])}, FeatureStore(tmp_path / "store", encoder()),
            encoder().spec,
        )  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"image_size": [32, 64]}, {"max_patches": 9}, {"cache_dtype": "float16"}]
)
def test_a_changed_encoder_reads_no_old_feature(tmp_path, change):
    FeatureStore(tmp_path, CountingEncoder()).ensure("image", [picture(0)])
    encoder = CountingEncoder(**change)
    found = FeatureStore(tmp_path, encoder).ensure("image", [picture(0)])
    assert encoder.encoded["image"] == 1
    expected = encoder.encode_image([picture(0)])["pooled"].values[0]
    np.testing.assert_allclose(pooled(found, 0), expected, atol=0.02)


# ---------------------------------------------------------------- decoding


def test_images_are_decoded_once_for_key_and_encoding_and_files_not_again(tmp_path, monkeypatch):
    monkeypatch.setattr(key_memo, "_GRAIN_SECONDS", -1)
    decoded = []
    load_image = media.load_image
    monkeypatch.setattr(media, "load_image", lambda ref: decoded.append(ref) or load_image(ref))
    paths = [tmp_path / f"{number}.png" for number in range(40)]
    for number, path in enumerate(paths):
        picture(number % 30).save(path)
    for expected in (40, 0):
        decoded.clear()
        encoder = CountingEncoder()
        _, rows = FeatureStore(tmp_path / "store", encoder, batch_size=8).ensure("image", paths)
        assert len(decoded) == expected
        assert rows.tolist() == [number % 30 for number in range(40)]
    # Another encoder needs the pixels, of distinct contents or not.
    decoded.clear()
    FeatureStore(tmp_path / "store", CountingEncoder(max_patches=5)).ensure("image", paths)
    assert len(decoded) == 40


def test_decoding_runs_ahead_of_the_encoder(tmp_path, monkeypatch):
    next_batch_seen = threading.Event()

    class Waiting(CountingEncoder):
        def prepare(self, kind, content):
            if content.tobytes() == picture(7).tobytes():
                next_batch_seen.set()
            return content

        def encode_image(self, images):
            # The first batch of four is not finished before the eighth picture is prepared.
            assert next_batch_seen.wait(timeout=20)
            return super().encode_image(images)

    refs = [picture(number) for number in range(8)]
    FeatureStore(tmp_path, Waiting(), batch_size=4, decode_threads=2).ensure("image", refs)


def test_an_unreadable_image_ends_the_build_and_keeps_what_is_whole(tmp_path, small_shards):
    (tmp_path / "broken.png").write_bytes(b"no image")
    refs = [*map(picture, range(40)), tmp_path / "broken.png"]
    with pytest.raises(MediaError, match=r"broken\.png"):
        FeatureStore(tmp_path / "store", CountingEncoder()).ensure("image", refs)
    encoder = CountingEncoder()
    FeatureStore(tmp_path / "store", encoder).ensure("image", refs[:-1])
    assert encoder.encoded["image"] == 8


def test_progress_counts_to_the_end(tmp_path):
    seen = []
    features = FeatureStore(tmp_path, CountingEncoder(), progress=lambda *a: seen.append(a))
    features.ensure("text", [*TEXTS[:3], TEXTS[0]])
    assert seen == [("text", 1, 4), ("text", 2, 4), ("text", 3, 4), ("text", 4, 4)]


# ---------------------------------------------------------------- damage


def test_a_flipped_byte_costs_its_shard_only(tmp_path, small_shards):
    refs = list(map(picture, range(50)))
    FeatureStore(tmp_path, CountingEncoder(), batch_size=5).ensure("image", refs)
    before = stored_files(tmp_path)
    shards = [path for path in before if path.split("/")[1].startswith("0")]
    assert len(shards) == 4
    for number, shard in enumerate(shards):
        # In the header, among the values, in the last byte.
        for offset in (9, len(before[shard]) // 2, len(before[shard]) - 1):
            flip_byte(tmp_path / shard, offset)
            encoder = CountingEncoder()
            FeatureStore(tmp_path, encoder, batch_size=5).ensure("image", refs)
            assert encoder.encoded["image"] == (2 if number == 3 else 16)
            assert stored_files(tmp_path) == before


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_without_its_codec_a_table_is_built_anew(tmp_path, how):
    FeatureStore(tmp_path, CountingEncoder()).ensure("text", TEXTS)
    before = stored_files(tmp_path)
    (codec,) = tmp_path.glob("*/codec-*")
    codec.unlink() if how == "missing" else flip_byte(codec, codec.stat().st_size - 1)
    encoder = CountingEncoder()
    FeatureStore(tmp_path, encoder).ensure("text", TEXTS)
    assert encoder.encoded["text"] == 100
    assert stored_files(tmp_path) == before


def test_large_tables_are_checked_by_length_at_once_and_by_content_on_request(
    tmp_path, monkeypatch, small_shards
):
    monkeypatch.setattr(store, "VERIFY_BYTES", 0)
    features = FeatureStore(tmp_path, CountingEncoder())
    features.ensure("text", TEXTS)
    directory = features.directory("text")
    first, second = sorted(directory.glob("0*.safetensors"))[:2]
    flip_byte(first, first.stat().st_size // 2)
    second.write_bytes(second.read_bytes()[:-1])
    assert damaged_files(directory, int8=True) == [second]
    assert damaged_files(directory, int8=True, verify=True) == [first, second]
    encoder = CountingEncoder()
    FeatureStore(tmp_path, encoder).ensure("text", TEXTS)
    assert encoder.encoded["text"] == 16
    with pytest.raises(StoreError, match="damaged header"):
        second.write_bytes(b"\0" * 100)
        MappedShard(second)


def test_leftovers_of_killed_builders_are_cleared(tmp_path):
    features = FeatureStore(tmp_path, CountingEncoder())
    features.ensure("text", TEXTS[:1])
    leftover = features.directory("text") / ".writing-1234-00001"
    leftover.write_bytes(b"half a shard")
    features.ensure("text", TEXTS[:2])
    assert not leftover.exists()


# ---------------------------------------------------------------- memory


def test_reading_far_more_than_is_kept_leaves_memory_flat(tmp_path, monkeypatch):
    limit, tokens, dim, items = 16 * 2**20, 196, 768, 200
    monkeypatch.setattr(table, "_RELEASE_BYTES", limit)
    rng = np.random.default_rng(0)
    paths = []
    for number in range(4):  # 4 x 30 MB
        keys = rng.integers(0, 256, (items, 32), dtype=np.uint8)
        paths.append(
            write_shard(
                tmp_path,
                number,
                {
                    "keys": keys,
                    "patches.values": np.full((items * tokens, dim), number, np.int8),
                    "patches.scales": np.ones(items * tokens, np.float32),
                    "patches.offsets": np.arange(items + 1) * tokens,
                },
            )
        )
    shards = [MappedShard(path) for path in paths]

    def release():
        for shard in shards:
            shard.release()

    spec, codec = StreamSpec(dim), Int8Codec(np.ones(dim, np.float32))
    features = table.FeatureTable(
        {"patches": spec}, [s.tensors for s in shards], {"patches": codec}, release
    )
    rows = torch.arange(800).view(200, 4).flatten()
    features.streams["patches"].gather(rows[:8])
    before = psutil.Process().memory_info().rss
    highest = 0
    for batch in rows.split(8):
        values, _ = features.streams["patches"].gather(batch)
        assert values[0, 0] == batch[0] // items and values[-1, 0] == batch[-1] // items
        highest = max(highest, psutil.Process().memory_info().rss - before)
    assert highest < 2 * limit + 30e6
