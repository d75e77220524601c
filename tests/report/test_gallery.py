import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from arbiter.report import choose_gallery, write_gallery
from arbiter.sample import Sample
from tests.conftest import draw_square, tone


def kept(tmp_path: Path, sample: Sample, probabilities: list[float]) -> dict:
    """The one decision of a gallery, as it is read back."""
    chosen = choose_gallery([sample], np.array([probabilities]))
    gallery = json.loads(write_gallery(tmp_path, "test", chosen).read_text())
    assert gallery["split"] == "test"
    (decision,) = gallery["right"] + gallery["wrong"]
    return decision


def decoded(uri: str) -> io.BytesIO:
    return io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))


def test_a_gallery_holds_up_to_twelve_of_each_spread_evenly():
    samples = [Sample("q?", ("a", "b"), 0, id=str(i)) for i in range(60)]
    right = np.arange(60) % 3 > 0  # 40 right and 20 wrong
    probabilities = np.where(right[:, None], [0.9, 0.1], [0.2, 0.8])
    chosen = choose_gallery(samples, probabilities)
    assert [shown.right for shown in chosen] == [True] * 12 + [False] * 12
    places = [int(shown.sample.id) for shown in chosen[:12]]
    assert (places[0], places[-1]) == (1, 59)
    assert max(np.diff(places)) <= 7


def test_padding_is_no_candidate():
    (shown,) = choose_gallery([Sample("q?", ("a", "b"), 1)], np.array([[0.4, 0.6, 0.0, 0.0]]))
    assert shown.probabilities.tolist() == [0.4, 0.6]


def test_the_answer_is_listed_even_when_it_is_the_least_probable(tmp_path):
    sample = Sample("q?", tuple("abcdefg"), 6, context="x" * 5000, source="s")
    decision = kept(tmp_path, sample, [0.3, 0.25, 0.2, 0.1, 0.08, 0.05, 0.02])
    listed = [(c["text"], c["probability"], c["answer"]) for c in decision["candidates"]]
    assert listed == [("a", 0.3, False), ("b", 0.25, False), ("c", 0.2, False), ("g", 0.02, True)]
    assert decision["more_candidates"] == 3
    assert len(decision["context"]) < 700


def test_pictures_are_small_and_look_like_the_original(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (800, 1200, 3), dtype=np.uint8)
    square = draw_square("red", 8, 24)
    images = (square, noise, square, square)
    media = kept(tmp_path, Sample("q?", ("a", "b"), 0, images=images), [1, 0])["media"]
    assert [m["kind"] for m in media] == ["image", "image", "more"]
    assert media[2]["count"] == 2
    with Image.open(decoded(media[0]["data"])) as shown:
        assert shown.convert("RGB").tobytes() == square.tobytes()
    with Image.open(decoded(media[1]["data"])) as shown:
        assert shown.size == (192, 128)
        assert len(media[1]["data"]) < 40_000


def test_a_clip_becomes_a_strip_of_frames_from_its_beginning_to_its_end(tmp_path):
    colors = ("red", "green", "blue", "black", "white", "yellow", "gray")
    frames = tuple(Image.new("RGB", (96, 96), color) for color in colors)
    (strip,) = kept(tmp_path, Sample("q?", ("a", "b"), 0, video=frames), [1, 0])["media"]
    assert (strip["kind"], strip["count"]) == ("video", 7)
    with Image.open(decoded(strip["data"])) as shown:
        seen = [shown.convert("RGB").getpixel((98 * i + 48, 48)) for i in range(4)]
        wanted = [frames[i].getpixel((0, 0)) for i in (0, 2, 4, 6)]
        assert np.abs(np.subtract(seen, wanted)).max() <= 3


def test_a_short_sound_can_be_played_and_a_long_one_is_drawn(tmp_path):
    sound = np.concatenate([tone(440, 0.5), np.zeros(8000, np.float32)])
    (short,) = kept(tmp_path, Sample("q?", ("a", "b"), 0, audio=sound), [1, 0])["media"]
    assert short["seconds"] == 1
    peaks = np.array(short["peaks"])
    assert peaks[:58] == pytest.approx(0.5, abs=0.02)
    assert peaks[62:] == pytest.approx(0)
    waveform, rate = soundfile.read(decoded(short["data"]))
    assert rate == 16_000
    spectrum = np.abs(np.fft.rfft(waveform[1000:7000]))
    assert np.argmax(spectrum) * rate / 6000 == pytest.approx(440, abs=3)

    long = np.random.default_rng(0).uniform(-1, 1, 16_000 * 60).astype(np.float32)
    (drawn,) = kept(tmp_path, Sample("q?", ("a", "b"), 0, audio=long), [1, 0])["media"]
    assert "data" not in drawn
    assert len(drawn["peaks"]) == 120


def test_media_that_are_gone_are_said_and_fail_nothing(tmp_path):
    gone = Sample("q?", ("a", "b"), 0, images=(tmp_path / "gone.png",))
    (medium,) = kept(tmp_path, gone, [1, 0])["media"]
    assert medium["kind"] == "unreadable"
    assert "gone.png: no such file" in medium["reason"]


def test_a_gallery_of_large_media_stays_small(tmp_path):
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (400, 400, 3), dtype=np.uint8)
    sample = Sample(
        "q?", ("a", "b"), 0, context="word " * 2000, images=(picture,) * 9, video=(picture,) * 9,
        audio=rng.uniform(-1, 1, 16_000).astype(np.float32),
    )  # fmt: skip
    samples = [replace(sample, answer=i % 2) for i in range(24)]
    chosen = choose_gallery(samples, np.tile([0.9, 0.1], (24, 1)))
    assert len(chosen) == 24
    # White noise is the worst there is for JPEG.
    assert write_gallery(tmp_path, "test", chosen).stat().st_size < 2_500_000
