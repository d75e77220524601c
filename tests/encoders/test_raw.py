"""The raw encoder against definitions written out in loops, in float64."""

import math
import zlib

import numpy as np
import pytest
from PIL import Image

from arbiter.encoders.audio import log_mel
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig, block_dct, hash_text
from tests.conftest import draw_square, tone


def noise_image(height: int, width: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_block_dct_is_the_weighted_dct_of_each_patch():
    image = noise_image(8, 16)
    pixels = np.asarray(image, np.float64) / 127.5 - 1
    features = block_dct(image, 8, 16, 4)
    assert features.shape == (2, 4, 48)
    for row, column, channel, u, v in [(0, 0, 0, 0, 0), (1, 3, 2, 3, 1), (0, 2, 1, 2, 3)]:
        total = 0.0
        for y in range(4):
            for x in range(4):
                total += (
                    pixels[row * 4 + y, column * 4 + x, channel]
                    * math.cos(math.pi * (2 * y + 1) * u / 8)
                    * math.cos(math.pi * (2 * x + 1) * v / 8)
                )
        scale = (math.sqrt(1 / 4) if u == 0 else math.sqrt(2 / 4)) * (
            math.sqrt(1 / 4) if v == 0 else math.sqrt(2 / 4)
        )
        expected = total * scale * math.sqrt(1 + u * u + v * v)
        assert features[row, column, channel * 16 + u * 4 + v] == pytest.approx(expected, abs=1e-5)


def test_patches_add_back_to_the_picture_and_the_busiest_are_kept():
    config = RawEncoderConfig(max_patches=64)
    encoder = RawEncoder(config)
    image = draw_square("red", 20, 30)
    out = encoder.encode_image([image])
    grid = block_dct(image, 64, 64, 8).reshape(64, -1)
    np.testing.assert_allclose(out["pooled"].values[0], grid.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(out["patches"].values + out["pooled"].values, grid, atol=1e-4)
    few = RawEncoder(RawEncoderConfig(max_patches=9)).encode_image([image])["patches"]
    energy = np.square(grid - grid.mean(axis=0)).sum(axis=1)
    kept = few.positions[:, 1] * 8 + few.positions[:, 2]
    assert set(kept) == set(np.argsort(-energy, kind="stable")[:9])


def test_rectangular_images_and_odd_sizes_are_taken():
    encoder = RawEncoder(RawEncoderConfig(image_size=[32, 64], max_patches=100))
    out = encoder.encode_image([noise_image(50, 33), noise_image(32, 64)])
    assert out["patches"].counts.tolist() == [32, 32]
    assert out["patches"].positions[:, 1].max() == 3
    assert out["patches"].positions[:, 2].max() == 7


def test_images_do_not_influence_each_other():
    encoder = RawEncoder(RawEncoderConfig())
    one, two = noise_image(64, 64, 1), noise_image(64, 64, 2)
    both = encoder.encode_image([one, two])["patches"]
    np.testing.assert_array_equal(both.values[24:], encoder.encode_image([two])["patches"].values)


def test_texts_have_unit_rms_and_ignore_case_and_spacing():
    vector = hash_text("What  color is the Shape?", 256)
    assert np.sqrt(np.mean(vector**2)) == pytest.approx(1, abs=1e-6)
    np.testing.assert_array_equal(vector, hash_text("what color is the shape ?", 256))
    other = hash_text("is there a red shape?", 256)
    near = hash_text("is there a red circle?", 256)
    assert np.dot(other, near) > np.dot(other, vector)


def test_hashing_is_the_same_in_every_process():
    # Python's own hash() is salted per process; crc32 is not. One word, so no collisions of words.
    vector = hash_text("red", 1024)
    for gram, weight in (("w:red", 1.0), ("c: re", 0.5), ("c:red ", 0.5)):
        digest = zlib.crc32(gram.encode())
        sign = 1 if digest & 1 else -1
        assert vector[(digest >> 1) % 1024] * sign == pytest.approx(
            weight * np.sqrt(1024 / (1 + 5 * 0.25)), rel=1e-6
        )


def test_unusual_texts_have_features():
    for text in ("?", "5 + 7", "número", "日本", "🙂", " "):
        assert np.isfinite(hash_text(text, 64)).all()
    assert np.abs(hash_text("🙂", 64)).sum() > 0


def test_log_mel_peaks_at_the_tone_and_is_silent_in_silence():
    quiet = log_mel(np.zeros(8000, np.float32), 64)
    assert quiet.max() == pytest.approx(-1.0)
    low, high = (log_mel(tone(f), 64).mean(axis=0).argmax() for f in (300, 3000))
    top = 2595 * math.log10(1 + 8000 / 700)
    for band, frequency in ((low, 300), (high, 3000)):
        centre = 700 * (10 ** (top * (band + 1) / 65 / 2595) - 1)
        assert centre == pytest.approx(frequency, rel=0.1)


def test_louder_by_ten_decibels_is_higher_by_a_quarter():
    difference = log_mel(tone(1000), 64) - log_mel(tone(1000) / math.sqrt(10), 64)
    assert difference.max() == pytest.approx(0.25, abs=1e-3)


def test_audio_tokens_cover_the_whole_clip():
    encoder = RawEncoder(RawEncoderConfig(max_audio_tokens=5))
    long = np.concatenate([np.zeros(16_000, np.float32), tone(1000, 1.0)])
    short = tone(1000, 0.02)
    out = encoder.encode_audio([long, short])["frames"]
    assert out.counts.tolist() == [5, 1]
    assert out.values[0].max() == pytest.approx(-1.0)
    assert out.values[4].max() > 0.8
    assert out.positions[:, 0].tolist() == [0, 1, 2, 3, 4, 0]
