import builtins
import tracemalloc

import numpy as np
import pytest
import soundfile

from arbiter.clips import MAX_SECONDS, load_audio, load_video, resample
from arbiter.errors import MediaError


def sine(frequency, rate, seconds=1.0):
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)


def rms(wave):
    return float(np.sqrt(np.square(wave[400:-400]).mean()))  # away from the ends


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000])
def test_tones_keep_pitch_phase_and_loudness(rate):
    for frequency in (100, 1000, 0.4 * min(rate, 16000)):
        expected = sine(frequency, 16000)
        got = resample(sine(frequency, rate), rate)
        assert got.shape == expected.shape and got.dtype == np.float32
        assert rms(got - expected) < 1e-3


@pytest.mark.parametrize("rate", [22050, 44100, 48000])
def test_what_lies_above_8_kHz_is_filtered_out_and_not_folded_back(rate):
    for frequency in (8100, 9000, 10500):
        assert rms(resample(sine(frequency, rate), rate)) < 1e-3
    # Dropping samples instead would leave a tone of full loudness.
    assert rms(sine(9000, 48000)[::3]) > 0.7


@pytest.mark.parametrize("samples", [1, 2, 100, 441, 12345])
def test_lengths_are_rounded_up(samples):
    assert len(resample(np.ones(samples), 44100)) == -(-samples * 160 // 441)
    assert len(resample(np.ones(samples), 8000)) == 2 * samples


def test_no_change_at_16_kHz():
    wave = np.random.default_rng(0).uniform(-1, 1, 999).astype(np.float32)
    assert (resample(wave, 16000) == wave).all()


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_files_become_mono_at_16_kHz(tmp_path, suffix):
    path = tmp_path / f"tone.{suffix}"
    stereo = np.stack([0.8 * sine(500, 44100), 0.2 * sine(500, 44100)], axis=1)
    soundfile.write(path, stereo, 44100)
    wave = load_audio(path)
    assert wave.shape == (16000,) and wave.dtype == np.float32
    assert rms(wave - 0.5 * sine(500, 16000)) < 1e-3


def test_what_is_no_audio_is_one_line(tmp_path):
    text = tmp_path / "a.wav"
    text.write_text("not audio")
    with pytest.raises(MediaError, match=r"a\.wav: not readable audio"):
        load_audio(text)
    with pytest.raises(MediaError, match=r"b\.wav: no such file"):
        load_audio(tmp_path / "b.wav")
    soundfile.write(tmp_path / "c.wav", np.zeros(0), 16000)
    with pytest.raises(MediaError, match=r"c\.wav: the audio is empty"):
        load_audio(tmp_path / "c.wav")


def write_video(path, frames, side=64):
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for level in frames:
            picture = np.full((side, side, 3), level, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())


def test_frames_are_spread_evenly_over_a_video(tmp_path):
    # Frame n has the grey level 10 * n, so its number can be read from it.
    write_video(tmp_path / "clip.mp4", [10 * n for n in range(20)])
    frames = load_video(tmp_path / "clip.mp4", 4, 64)
    assert [round(frame.mean() / 10) for frame in frames] == [2, 7, 12, 17]
    assert frames[0].shape == (64, 64, 3) and frames[0].dtype == np.uint8
    few = load_video(tmp_path / "clip.mp4", 50, 32)
    assert len(few) == 20 and few[0].shape == (32, 32, 3)


def test_what_is_no_video_is_one_line(tmp_path):
    pytest.importorskip("av")
    text = tmp_path / "a.mp4"
    text.write_text("not a video")
    with pytest.raises(MediaError, match=r"a\.mp4: not a readable video"):
        load_video(text, 4, 64)
    with pytest.raises(MediaError, match=r"b\.mp4: no such file"):
        load_video(tmp_path / "b.mp4", 4, 64)


def test_without_pyav_the_error_says_what_to_install(tmp_path, monkeypatch):
    importer = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "av":
            raise ImportError(name)
        return importer(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MediaError, match="pip install av, or give the frames"):
        load_video(tmp_path / "clip.mp4", 4, 64)


@pytest.mark.parametrize("rate", [7999, 44101, 191_999])
def test_rates_that_share_no_divisor_take_no_more_memory(rate):
    """A table of kernels for them would hold up to gigabytes; the result is the same sine."""
    tracemalloc.start()
    got = resample(sine(440, rate), rate)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20
    time = np.arange(len(got)) / 16000
    inner = slice(1000, -1000)
    np.testing.assert_allclose(got[inner], np.sin(2 * np.pi * 440 * time)[inner], atol=2e-3)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_a_file_read_in_blocks_holds_the_same_samples(tmp_path, suffix):
    path = tmp_path / f"noise.{suffix}"
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (150_000, 2))
    soundfile.write(path, noise, 44100)
    whole, rate = soundfile.read(path, dtype="float32", always_2d=True)
    assert np.array_equal(load_audio(path), resample(whole.mean(axis=1), rate))


def test_a_header_that_claims_days_takes_no_memory(tmp_path):
    path = tmp_path / "bomb.flac"
    soundfile.write(path, np.zeros(16_000), 16_000)
    raw = bytearray(path.read_bytes())
    # The last 36 bits before the digest of the stream are its number of samples.
    raw[21] |= 0x0F
    raw[22:26] = b"\xff" * 4
    path.write_bytes(raw)
    assert soundfile.info(path).frames == (1 << 36) - 1
    with pytest.raises(MediaError, match=r"bomb\.flac: "):
        load_audio(path)


def test_sounds_that_would_not_fit_are_refused(tmp_path):
    path = tmp_path / "slow.wav"
    soundfile.write(path, np.zeros(MAX_SECONDS + 1), 1)
    with pytest.raises(MediaError, match=r"slow\.wav: longer than 3,600 seconds"):
        load_audio(path)
    soundfile.write(path, np.zeros(9), 2_000_000)
    with pytest.raises(MediaError, match=r"slow\.wav: the rate 2000000 is not within 1 to"):
        load_audio(path)


@pytest.mark.parametrize("load", [load_audio, lambda path: load_video(path, 4)])
def test_names_that_the_system_refuses_are_no_files(tmp_path, load):
    if load is not load_audio:
        pytest.importorskip("av")
    with pytest.raises(MediaError, match="no such file"):
        load(tmp_path / ("n" * 300))
