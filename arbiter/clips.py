"""Reading audio and video files into what samples carry: waveforms at 16 kHz, and frames."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image
from scipy.special import i0

from arbiter.errors import MediaError, first_line
from arbiter.sample import AUDIO_RATE_HZ

# With these the pass band is flat up to 0.84 of the lower Nyquist frequency, and what lies above
# that frequency is 80 dB down.
_ZERO_CROSSINGS = 32
_ROLL_OFF = 0.92
_KAISER_BETA = 8.0

# Of kernels that many outputs share: 32 MiB. A rate that shares no divisor with 16 kHz would take
# gigabytes.
_LARGEST_TABLE = 1 << 22
_BLOCK = 1024

MAX_FRAME_SIDE = 448
"""Pixels; what encoders look at is smaller, and whole frames of a long clip are large."""

HIGHEST_RATE_HZ = 768_000
MAX_SECONDS = 3600
MAX_SAMPLES = 1 << 28
"""Before resampling: an hour at 74 kHz. A few bytes of FLAC can hold days of silence."""

_READ_FRAMES = 1 << 16


def load_audio(path: Path) -> np.ndarray:
    """A WAV, FLAC, OGG or MP3 file as mono float32 at 16 kHz; channels are averaged.

    Raises:
        MediaError: it cannot be read, is empty, or as `check_length`.
    """
    _check_file(path)
    parts, length = [], 0
    try:
        with soundfile.SoundFile(path) as file:
            rate = file.samplerate
            # What a header says of the length may be false: memory is taken for what is there.
            while len(block := file.read(_READ_FRAMES, dtype="float32", always_2d=True)):
                parts.append(block.mean(axis=1))
                length += len(block)
                check_length(str(path), length, rate)
    except (soundfile.SoundFileError, OSError) as error:
        reason = getattr(error, "error_string", str(error))
        raise MediaError(f"{path}: not readable audio ({reason})") from None
    if not parts:
        raise MediaError(f"{path}: the audio is empty")
    return resample(np.concatenate(parts), rate)


def check_length(where: str, length: int, rate: int) -> None:
    """Whether `length` samples at `rate` Hz are a sound that can be held in memory at 16 kHz.

    Raises:
        MediaError: naming `where`: the rate is out of range, or the sound is too long.
    """
    if not 1 <= rate <= HIGHEST_RATE_HZ:
        raise MediaError(f"{where}: the rate {rate} is not within 1 to {HIGHEST_RATE_HZ} Hz")
    if length > min(MAX_SAMPLES, MAX_SECONDS * rate):
        raise MediaError(
            f"{where}: longer than {MAX_SECONDS:,} seconds or {MAX_SAMPLES:,} samples; "
            "cut it into pieces"
        )


def _check_file(path: Path) -> None:
    # Unlike Path.is_file, this takes a name that the system refuses, as too long, for one of none.
    if not os.path.isfile(path):
        raise MediaError(f"{path}: no such file")


def resample(waveform: np.ndarray, rate: int) -> np.ndarray:
    """Bring a waveform [n] from `rate` Hz to 16 kHz: [ceil(n * 16000 / rate)], float32.

    Band-limited interpolation with a Kaiser-windowed sinc (polyphase): frequencies above the new
    Nyquist frequency are filtered out, not folded back. Beyond the ends lies silence.
    """
    waveform = np.asarray(waveform, np.float64)
    if rate == AUDIO_RATE_HZ:
        return waveform.astype(np.float32)
    divisor = math.gcd(rate, AUDIO_RATE_HZ)
    step, phases = rate // divisor, AUDIO_RATE_HZ // divisor
    cutoff = _ROLL_OFF * min(1.0, AUDIO_RATE_HZ / rate)  # of the input's Nyquist frequency
    reach = math.ceil(_ZERO_CROSSINGS / cutoff)
    length = -(-len(waveform) * phases // step)
    if phases * (step + 2 * reach) > _LARGEST_TABLE:
        return _interpolate(waveform, np.arange(length), step / phases, cutoff, reach)
    # Output k lies at input position k * step / phases; outputs k = q * phases + p share a kernel.
    fraction = np.arange(phases) * step / phases
    offset = np.arange(-reach, step + reach + 1)[None, :] - fraction[:, None]
    kernels = _kernel(offset, cutoff, reach)
    blocks = -(-length // phases)
    padded = np.zeros(reach + max(len(waveform), blocks * step) + step + reach + 1)
    padded[reach : reach + len(waveform)] = waveform
    frames = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[1])[::step][:blocks]
    return (frames @ kernels.T).reshape(-1)[:length].astype(np.float32)


def _kernel(offset: np.ndarray, cutoff: float, reach: int) -> np.ndarray:
    """The windowed sinc at distances in input samples."""
    window = i0(_KAISER_BETA * np.sqrt(np.clip(1 - (offset / reach) ** 2, 0, None)))
    window = np.where(np.abs(offset) <= reach, window / i0(_KAISER_BETA), 0)
    return cutoff * np.sinc(cutoff * offset) * window


def _interpolate(
    waveform: np.ndarray, outputs: np.ndarray, step: float, cutoff: float, reach: int
) -> np.ndarray:
    """The same sums, each with a kernel of its own: for rates with which few outputs share one."""
    padded = np.pad(waveform, (reach, reach + 2))
    found = np.empty(len(outputs), np.float32)
    near = np.arange(2 * reach + 2)
    for start in range(0, len(outputs), _BLOCK):
        position = outputs[start : start + _BLOCK, None] * step
        first = np.floor(position).astype(np.int64)
        kernels = _kernel(first + near - reach - position, cutoff, reach)
        found[start : start + _BLOCK] = (padded[first + near] * kernels).sum(axis=1)
    return found


def load_video(path: Path, count: int, max_side: int = MAX_FRAME_SIDE) -> tuple[np.ndarray, ...]:
    """`count` frames spread evenly over a video file, as uint8 [H, W, 3]; all if it has fewer.

    The clip is cut into `count` equal parts, and the middle frame of each is taken. Frames whose
    longer side exceeds `max_side` pixels are made smaller.

    Raises:
        MediaError: it cannot be read, or PyAV is not installed.
    """
    try:
        import av
    except ImportError:
        raise MediaError(
            f"{path}: reading video files needs PyAV; pip install av, "
            "or give the frames as a list of images"
        ) from None
    _check_file(path)
    try:
        with av.open(str(path)) as container:
            # Containers often state no frame count, or a wrong one: counting is decoding.
            total = sum(1 for _ in container.decode(video=0))
        wanted = {int((i + 0.5) * total / count) for i in range(count)}
        frames = []
        with av.open(str(path)) as container:
            for number, frame in enumerate(container.decode(video=0)):
                if number in wanted:
                    image = frame.to_image()
                    image.thumbnail((max_side, max_side), Image.Resampling.BICUBIC)
                    frames.append(np.asarray(image))
    except (av.FFmpegError, OSError, ValueError, IndexError, MemoryError) as error:
        raise MediaError(f"{path}: not a readable video ({first_line(error)})") from None
    if not frames:
        raise MediaError(f"{path}: the video has no frames")
    return tuple(frames)
