import numpy as np
import pytest

from arbiter.features.codec import Int8Codec


def cosine_error(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(
        1 - ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean()
    )


def vit_like_tokens(seed: int) -> np.ndarray:
    """Normal tokens with three channels twenty times as large, as in a vision transformer."""
    values = np.random.default_rng(seed).standard_normal((196, 768))
    values[:, [5, 300, 700]] *= 20
    return values.astype(np.float32)


def test_outlier_channels_cost_almost_nothing():
    codec = Int8Codec.fit(vit_like_tokens(0))
    fresh = vit_like_tokens(1)
    assert cosine_error(codec.decode(*codec.encode(fresh)), fresh) < 1e-4
    # Without the channel scale the same error is far larger: this is what the scale is for.
    flat = Int8Codec(np.ones(768, np.float32))
    assert cosine_error(flat.decode(*flat.encode(fresh)), fresh) > 5e-4


def test_the_error_is_at_most_half_a_step():
    codec = Int8Codec.fit(vit_like_tokens(0))
    fresh = vit_like_tokens(2)
    encoded, scale = codec.encode(fresh)
    step = scale[:, None] * codec.channel_scale
    assert (np.abs(codec.decode(encoded, scale) - fresh) <= step * 0.5001).all()


@pytest.mark.parametrize("values", [np.zeros((3, 8)), np.eye(8) * 1e-9, np.eye(8) * 1e9])
def test_extreme_tokens_stay_finite(values):
    values = values.astype(np.float32)
    codec = Int8Codec.fit(values)
    decoded = codec.decode(*codec.encode(values))
    np.testing.assert_allclose(decoded, values, rtol=1e-2, atol=1e-12)


def test_a_channel_silent_at_fitting_can_speak_later():
    values = vit_like_tokens(0)
    values[:, 10] = 0
    codec = Int8Codec.fit(values)
    assert cosine_error(codec.decode(*codec.encode(vit_like_tokens(1))), vit_like_tokens(1)) < 1e-3
