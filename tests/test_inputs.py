"""Every form in which a person may give an image, a clip or a sound."""

import io
import threading

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from arbiter.clips import resample
from arbiter.errors import ArbiterError, MediaError
from arbiter.inputs import read_audio, read_image, read_images, read_video
from tests.conftest import draw_square, tone

PICTURE = draw_square("red", 10, 20, 24).crop((0, 0, 64, 48))
HWC = np.asarray(PICTURE)
CHW = np.ascontiguousarray(HWC.transpose(2, 0, 1))


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "form",
    [
        PICTURE,
        encoded(PICTURE),
        HWC,
        CHW,
        torch.from_numpy(HWC.copy()),
        torch.from_numpy(CHW),
        torch.from_numpy(CHW).float() / 255,
        torch.from_numpy(HWC.copy()).double() / 255,
        HWC / 255,
        CHW.astype(np.float32) / 255,
        PICTURE.convert("RGBA"),
    ],
    ids=lambda form: f"{type(form).__name__}-{getattr(form, 'shape', '')}",
)
def test_every_form_gives_the_same_pixels(form, tmp_path):
    assert np.array_equal(np.asarray(read_image(form)), HWC)


def test_paths_may_be_texts(tmp_path):
    path = tmp_path / "x.png"
    PICTURE.save(path)
    for given_path in (path, str(path)):
        assert np.array_equal(np.asarray(read_image(given_path)), HWC)


def test_grey_images_have_one_channel_or_none():
    grey = HWC[..., 0]
    expected = np.stack([grey] * 3, axis=-1)
    for form in (grey, grey[..., None], grey[None], torch.from_numpy(grey.copy())[None]):
        assert np.array_equal(np.asarray(read_image(form)), expected)


def test_where_both_readings_fit_each_world_keeps_its_own():
    values = np.arange(3 * 5 * 3, dtype=np.uint8).reshape(3, 5, 3)
    assert read_image(values).size == (5, 3)
    assert read_image(torch.from_numpy(values)).size == (3, 5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (5, "a int is no"),
        (None, "a NoneType is no image"),
        (np.full((4, 4, 3), 1.5), "lie in"),
        (np.zeros((4, 4, 3), bool), "dtype bool"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (np.zeros((5, 4, 2), np.uint8), "shape"),
        (np.zeros(4, np.uint8), "shape"),
        (np.zeros((2, 4, 4, 3), np.uint8), "shape"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), "dtype int64"),
        (torch.full((3, 4, 4), 2.0), "lie in"),
        (torch.full((3, 4, 4), torch.nan), "lie in"),
        (torch.zeros(3, 0, 4), "shape"),
        (torch.zeros(3, 4, 4).to_sparse(), "Sparse"),
        (torch.zeros(3, 4, 4).to(torch.float8_e4m3fn), "float8_e4m3fn cannot be read"),
        (torch.zeros(3, 4, 4, device="meta"), "meta"),
        (Image.new("RGB", (0, 5)), "no pixels"),
        (b"", "not a readable image"),
        (b"\x89PNG\r\n\x1a\n", "not a readable image"),
        ("nowhere.png", "no such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_image_is_a_typed_error(wrong, said):
    with pytest.raises(MediaError, match=said) as error:
        read_image(wrong)
    assert "\n" not in str(error.value)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        st.sampled_from([np.uint8, np.float32, np.int64, np.bool_]),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_any_array_is_an_image_or_a_typed_error(array):
    for form in (array, torch.from_numpy(array.copy())):
        try:
            image = read_image(form)
        except ArbiterError:
            continue
        assert image.mode == "RGB" and 0 not in image.size


def test_clips_are_sequences_of_images_or_files(tmp_path):
    frames = np.stack([HWC, HWC[::-1]])
    for form in (frames, torch.from_numpy(frames.copy()), list(frames), (PICTURE, frames[1])):
        found = read_video(form, 8)
        pixels = [np.asarray(read_image(frame)) for frame in found]
        assert np.array_equal(pixels, frames)
    assert read_video((), 8) == ()
    for wrong, said in (
        (5, "a int is no"),
        (b"abc", "a bytes is no clip"),
        (np.zeros((4, 4), np.uint8), "shape"),
        (tmp_path / "no.mp4", "no.mp4: "),
        ("no.mp4", "no.mp4: "),
    ):
        with pytest.raises(MediaError, match=said):
            read_video(wrong, 8)


def test_several_images_are_a_sequence():
    found = read_images(PICTURE, [HWC, torch.from_numpy(CHW)])
    assert [np.array_equal(np.asarray(image), HWC) for image in found] == [True] * 3
    assert read_images(None, ()) == () and len(read_images(None, np.stack([HWC, HWC]))) == 2
    for wrong in ("x.png", b"x", PICTURE, HWC, torch.from_numpy(CHW), 5, None):
        with pytest.raises(MediaError, match="images: give a sequence"):
            read_images(None, wrong)


def test_a_clip_is_read_from_its_file(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(6):
            for packet in stream.encode(av.VideoFrame.from_image(PICTURE)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    assert len(read_video(str(path), 4)) == 4


def test_sounds_come_with_their_rate(tmp_path):
    wave = tone(440)
    path = tmp_path / "tone.wav"
    soundfile.write(path, wave, 16_000, subtype="FLOAT")
    stereo = np.stack([wave, wave])
    for form in (
        wave, (wave, 16_000), (wave, np.int64(16_000)), wave.astype(np.float64), stereo, stereo.T,
        torch.from_numpy(wave), torch.from_numpy(stereo).double(),
        (torch.from_numpy(stereo), 16_000), path, str(path),
    ):  # fmt: skip
        found = read_audio(form)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wave, atol=1e-7)
    whole = (wave * 32767).round().astype(np.int16)
    np.testing.assert_allclose(read_audio((whole, 16_000)), wave, atol=1e-4)
    other = np.sin(2 * np.pi * 440 * np.arange(22_050) / 44_100).astype(np.float32)
    assert np.array_equal(read_audio((other, 44_100)), resample(other, 44_100))
    assert len(read_audio((other, 44_100))) == 8_000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (5, "a int is no"),
        ([0.0, 0.1], "a list is no sound"),
        (np.zeros(0, np.float32), "empty"),
        (np.zeros((0, 2), np.float32), "empty"),
        (np.zeros((2, 2, 2), np.float32), "shape"),
        (np.float32(1.0), "a float32 is no sound"),
        (np.array(1.0), "shape"),
        (np.array([0, np.nan], np.float32), "not finite"),
        (np.array([0, np.inf]), "not finite"),
        (np.zeros(5, np.int64), "dtype int64"),
        (np.zeros(5, complex), "dtype complex128"),
        (torch.zeros(5).to_sparse(), "Sparse"),
        ((np.zeros(4_000_000, np.float32), 1), "longer than 3,600 seconds"),
        ((np.zeros(5, np.float32), 0), "rate 0"),
        ((np.zeros(5, np.float32), -8000), "rate -8000"),
        ((np.zeros(5, np.float32), 10**9), "rate"),
        ((np.zeros(5, np.float32), 44100.5), "rate"),
        ((np.zeros(5, np.float32), "x"), "rate"),
        ((np.zeros(5, np.float32), True), "rate"),
        ("nowhere.wav", "no such file"),
    ],
    ids=repr,
)
def test_what_is_no_sound_is_a_typed_error(wrong, said):
    with pytest.raises(MediaError, match=said):
        read_audio(wrong)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyError])
def test_whatever_a_decoder_raises_is_a_typed_error(monkeypatch, error):
    """As Pillow's AVIF decoder does of a damaged file."""

    def broken(*arguments):
        raise error("no image item")

    monkeypatch.setattr(Image, "open", broken)
    with pytest.raises(MediaError, match=r"not a readable image .*no image item"):
        read_image(b"x")


GREY = np.arange(256, dtype=np.uint16).reshape(16, 16)


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(GREY * 257),
        Image.fromarray(GREY * 257).convert("I"),
        Image.fromarray(GREY * 257).convert("I").convert("I;16B"),
        Image.fromarray((GREY / 255).astype(np.float32)),
    ],
    ids=lambda image: image.mode,
)
def test_grey_of_more_than_8_bits_is_scaled(image):
    assert np.array_equal(np.asarray(read_image(image)), np.stack([GREY] * 3, axis=-1))


def test_16_bit_files_are_scaled_and_their_transparent_grey_is_white():
    image = Image.fromarray(GREY * 257)
    assert np.array_equal(np.asarray(read_image(encoded(image)))[..., 0], GREY)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=3 * 257)
    found = np.asarray(read_image(buffer.getvalue()))[..., 0]
    assert np.array_equal(found, np.where(GREY == 3, 255, GREY))


@pytest.mark.parametrize(
    "values", [GREY.astype(np.float32), np.int32(GREY) - 1, np.int32([[1 << 16]])]
)
def test_grey_of_unknown_range_is_refused(values):
    with pytest.raises(MediaError, match="grey values outside 0 to"):
        read_image(Image.fromarray(values))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_threads_may_share_a_lazy_image(kind):
    """Pillow decodes it in place when it is first looked at."""
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    buffer, turned = io.BytesIO(), Image.Exif()
    turned[0x0112] = 6  # orientation: a quarter turn
    Image.fromarray(noise).save(buffer, kind, exif=turned)
    expected = np.asarray(read_image(buffer.getvalue()))
    same = []

    def look(image, barrier):
        barrier.wait()
        same.append(np.array_equal(np.asarray(read_image(image)), expected))

    for _ in range(10):
        shared = Image.open(io.BytesIO(buffer.getvalue())), threading.Barrier(6)
        threads = [threading.Thread(target=look, args=shared) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert same == [True] * 60
