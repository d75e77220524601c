"""What a person may give as image, clip or sound, turned into what samples carry.

Images: a path, encoded bytes, a PIL image, a numpy array or a torch tensor. Arrays and tensors are
[H, W, C], [C, H, W] or [H, W] with C of 1, 3 or 4 channels; where both readings fit, an array is
read as [H, W, C] and a tensor as [C, H, W], as is usual in either world. They are uint8, or
floating point in [0, 1]. A PIL image of 16-bit or floating-point grey is read as
`arbiter.media.load_image` says.

Clips: a path of a video file, or frames in order, each as an image; an array [T, ...] holds T.

Sounds: a path of a sound file; a waveform at 16 kHz; or (waveform, rate in Hz), which is resampled.
Waveforms are floating point in [-1, 1] or int16, [samples], [samples, channels] or
[channels, samples] with fewer channels than samples; channels are averaged. They last an hour at
most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from arbiter.clips import check_length, load_audio, load_video, resample
from arbiter.errors import DecisionError, MediaError, SampleError, first_line
from arbiter.features.dataset import evenly
from arbiter.media import load_image
from arbiter.sample import AUDIO_RATE_HZ, ImageRef, Sample

ImageInput = ImageRef | str | torch.Tensor
VideoInput = str | Path | np.ndarray | torch.Tensor | Sequence[ImageInput]
AudioInput = str | Path | np.ndarray | torch.Tensor | tuple[np.ndarray | torch.Tensor, int]

_CHANNELS = (1, 3, 4)


def read_image(value: ImageInput) -> Image.Image:
    """An image input, decoded to RGB.

    Raises:
        MediaError: it is none, or cannot be read.
    """
    if isinstance(value, torch.Tensor):
        value = _pixels(_array(value), channels_first=True)
    elif isinstance(value, np.ndarray):
        value = _pixels(value, channels_first=False)
    return load_image(Path(value) if isinstance(value, str) else value)


def read_images(one: ImageInput | None, several: Sequence[ImageInput]) -> tuple[Image.Image, ...]:
    """One image, if there is one, and a sequence of further ones, decoded to RGB.

    Raises:
        MediaError: it is no sequence, or one cannot be read.
    """
    array = isinstance(several, (np.ndarray, torch.Tensor))
    listed = isinstance(several, Sequence) and not isinstance(several, (str, bytes))
    if not (listed or (array and several.ndim == 4)):
        raise MediaError("images: give a sequence of images; a single one is `image`")
    return tuple(map(read_image, [*([] if one is None else [one]), *several]))


def read_video(value: VideoInput, max_frames: int) -> tuple[ImageInput, ...]:
    """The frames of a clip, as image inputs; none for an empty list.

    Raises:
        MediaError: it is none, or a file cannot be read.
    """
    if isinstance(value, (str, Path)):
        return load_video(Path(value), max_frames)
    if isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim not in (3, 4):
        raise MediaError(
            f"video: shape {list(value.shape)} is no clip; give frames [T, H, W, 3] or [T, H, W]"
        )
    if isinstance(value, (np.ndarray, torch.Tensor, Sequence)) and not isinstance(value, bytes):
        return tuple(value)
    raise MediaError(
        f"video: a {type(value).__name__} is no clip; give a path or a sequence of images"
    )


def read_audio(value: AudioInput) -> np.ndarray:
    """A sound input as mono float32 at 16 kHz.

    Raises:
        MediaError: it is none, cannot be read, is too long, or holds values that are not finite.
    """
    if isinstance(value, (str, Path)):
        return load_audio(Path(value))
    rate = AUDIO_RATE_HZ
    if isinstance(value, tuple) and len(value) == 2:
        value, rate = value
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)):
        raise MediaError(f"audio: the rate {rate!r} is not a whole number of Hz")
    if isinstance(value, torch.Tensor):
        value = _array(value)
    if not isinstance(value, np.ndarray):
        raise MediaError(
            f"audio: a {type(value).__name__} is no sound; give a path, a waveform, or both it and "
            "its rate in Hz: (waveform, rate)"
        )
    waveform = _mono(value)
    check_length("audio", len(waveform), int(rate))
    return resample(waveform, int(rate))


def check_modalities(sample: Sample, known: Sequence[str]) -> None:
    """Whether a model knows everything that a sample carries.

    Args:
        known: modalities of the model, by name.

    Raises:
        SampleError: it is no sample.
        DecisionError: the model was trained without one of the sample's modalities.
    """
    if not isinstance(sample, Sample):
        raise SampleError(f"a {type(sample).__name__} is no Sample; make one")
    check_known((modality.value for modality in sample.modalities), known)


def check_known(carried: Iterable[str], known: Sequence[str]) -> None:
    """Whether a model knows the modalities of these names; what it does not is not worth decoding.

    Raises:
        DecisionError: the model was trained without one of them.
    """
    for name in sorted(carried):
        if name not in known:
            raise DecisionError(
                f"{name}: this model was trained without it; leave it out "
                f"(it knows {', '.join(known) or 'text only'})"
            )


def read_sample(sample: Sample, max_frames: int, decoded: dict[object, Image.Image]) -> Sample:
    """The sample with its images decoded, so that what follows cannot fail on one of many.

    Args:
        max_frames: how many frames of a clip are looked at.
        decoded: images of the batch, by path or identity; each is decoded once.

    Raises:
        MediaError: an image cannot be read.
    """

    def read(ref: ImageInput) -> Image.Image:
        name = ref if isinstance(ref, (str, Path)) else id(ref)
        if name not in decoded:
            decoded[name] = read_image(ref)
        return decoded[name]

    return dataclasses.replace(
        sample,
        images=tuple(map(read, sample.images)),
        video=tuple(map(read, evenly(sample.video, max_frames))),
    )


def _mono(waveform: np.ndarray) -> np.ndarray:
    if waveform.dtype == np.int16:
        waveform = waveform.astype(np.float32) / 32768
    if waveform.dtype not in (np.float16, np.float32, np.float64):
        raise MediaError(
            f"audio: the waveform has dtype {waveform.dtype}; give floating point in [-1, 1], "
            "or int16"
        )
    if not waveform.size:
        raise MediaError("audio: the waveform is empty")
    if waveform.ndim == 2:
        waveform = waveform.mean(axis=int(waveform.shape[0] > waveform.shape[1]))
    if waveform.ndim != 1:
        raise MediaError(f"audio: a waveform of shape {list(waveform.shape)} is not a sound")
    if not np.isfinite(waveform).all():
        raise MediaError("audio: the waveform holds values that are not finite")
    return waveform


def _array(tensor: torch.Tensor) -> np.ndarray:
    try:
        tensor = tensor.detach().cpu()
        # numpy has no bfloat16.
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except (TypeError, RuntimeError) as error:
        raise MediaError(
            f"a tensor of {tensor.dtype} cannot be read ({first_line(error)}); give a dense one of "
            "uint8 or float32"
        ) from None


def _pixels(array: np.ndarray, channels_first: bool) -> np.ndarray:
    """uint8 [H, W, C] or [H, W]."""
    if np.issubdtype(array.dtype, np.floating):
        if not ((array >= 0) & (array <= 1)).all():
            raise MediaError("image: floating-point pixels must lie in [0, 1]; uint8 in [0, 255]")
        array = np.rint(array.astype(np.float32) * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise MediaError(
            f"image array has dtype {array.dtype}; give uint8, or floating point in [0, 1]"
        )
    if array.ndim == 3 and 0 not in array.shape:
        first, last = array.shape[0] in _CHANNELS, array.shape[-1] in _CHANNELS
        if not (first or last):
            raise MediaError(
                f"image array has shape {list(array.shape)}; give [H, W, 3] or [3, H, W]"
            )
        if first and (channels_first or not last):
            array = array.transpose(1, 2, 0)
        array = array[..., 0] if array.shape[-1] == 1 else array
    elif array.ndim != 2 or 0 in array.shape:
        raise MediaError(f"image array has shape {list(array.shape)}; give [H, W, 3] or [3, H, W]")
    return np.ascontiguousarray(array)
