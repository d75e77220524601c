"""Audio for every encoder: a log-mel spectrogram, which is a fixed transform without weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from arbiter.encoders.base import EncoderConfig, StreamSpec, Tokens
from arbiter.sample import AUDIO_RATE_HZ

# Changing the transform must change this, so that stored features are never taken for new.
VERSION = 1

_FFT_SIZE = 400
_HOP = 160
_HOPS_PER_TOKEN = 10


@cache
def _mel_filters(bins: int) -> np.ndarray:
    """Triangular filters on the HTK mel scale, [bins, fft/2 + 1]."""
    frequencies = np.linspace(0, AUDIO_RATE_HZ / 2, _FFT_SIZE // 2 + 1)
    mel_top = 2595 * np.log10(1 + AUDIO_RATE_HZ / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, mel_top, bins + 2) / 2595) - 1)
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - lower) / (centre - lower)
    falling = (upper - frequencies) / (upper - centre)
    return np.maximum(0, np.minimum(rising, falling))


def log_mel(waveform: np.ndarray, bins: int) -> np.ndarray:
    """Log-mel power in units of 40 dB above -40 dB, float32 [frames, bins], one frame per 10 ms.

    Power below -80 dB is floored; a full-scale sine peaks near 1.
    """
    padded = np.pad(waveform.astype(np.float64), (0, max(0, _FFT_SIZE - len(waveform))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT_SIZE)[::_HOP]
    window = np.hanning(_FFT_SIZE + 1)[:-1]
    power = np.abs(np.fft.rfft(frames * window, axis=-1) / (window.sum() / 2)) ** 2
    mel = np.maximum(power @ _mel_filters(bins).T, 1e-8)
    return ((10 * np.log10(mel) + 40) / 40).astype(np.float32)


def streams(config: EncoderConfig) -> dict[str, StreamSpec]:
    """The streams of the content kind 'audio'."""
    return {"frames": StreamSpec(config.mel_bins, (config.max_audio_tokens,))}


def fingerprint(config: EncoderConfig) -> dict:
    """What audio features depend on: the same for every encoder, so that they share a table."""
    return {
        "encoder": "log-mel",
        "version": VERSION,
        "kind": "audio",
        "dtype": config.cache_dtype,
        "mel_bins": config.mel_bins,
        "max_audio_tokens": config.max_audio_tokens,
    }


def encode(waveforms: Sequence[np.ndarray], config: EncoderConfig) -> dict[str, Tokens]:
    """Log-mel frames, averaged to 0.1 s or, in longer clips, to `max_audio_tokens`."""
    values, counts = [], []
    for waveform in waveforms:
        frames = log_mel(waveform, config.mel_bins)
        tokens = min(-(-len(frames) // _HOPS_PER_TOKEN), config.max_audio_tokens)
        values += [part.mean(axis=0) for part in np.array_split(frames, tokens)]
        counts.append(tokens)
    positions = np.concatenate([np.arange(count) for count in counts])[:, None]
    return {"frames": Tokens(np.stack(values), np.array(counts), positions.astype(np.int16))}
