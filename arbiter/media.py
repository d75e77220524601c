"""Decoding image references, and naming contents by their digest.

Sources check their media with this, encoders read through it: both see the same pixels.
"""

from __future__ import annotations

import hashlib
import io
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from arbiter.errors import MediaError, first_line
from arbiter.sample import ImageRef

# Pillow's decoders report damaged data through any of these.
_DAMAGED = (
    OSError, EOFError, ValueError, TypeError, SyntaxError, LookupError, ArithmeticError,
    RuntimeError, MemoryError,
)  # fmt: skip

# A lazy image is decoded in place: threads that share one must not find it half done.
_CALLERS_IMAGES = threading.Lock()


def load_image(ref: ImageRef) -> Image.Image:
    """Decode an image reference to RGB, upright as its EXIF orientation says.

    Transparent pixels are laid on white. Arrays are uint8 [H, W, 3] or [H, W]. Grey of 16 bits
    (Pillow's modes I;16 and I) is divided by 257, so that 65535 is white; floating-point grey
    (mode F) is taken to lie in [0, 1].

    Raises:
        MediaError: it cannot be read, is no image, or is grey outside of these ranges.
    """
    name = "image"
    try:
        if isinstance(ref, (str, Path)):
            name = str(ref)
            image = Image.open(ref)
        elif isinstance(ref, bytes):
            image = Image.open(io.BytesIO(ref))
        elif isinstance(ref, np.ndarray):
            if ref.dtype != np.uint8:
                raise MediaError(f"image array has dtype {ref.dtype}; give uint8 [H, W, 3]")
            image = Image.fromarray(ref)
        elif isinstance(ref, Image.Image):
            image = ref
        else:
            raise MediaError(
                f"image: a {type(ref).__name__} is no image; give a path, encoded bytes, a PIL "
                "image, an array or a tensor"
            )
        if 0 in image.size:
            raise MediaError(f"{name}: it has no pixels ({image.width} x {image.height})")
        with _CALLERS_IMAGES if image is ref else nullcontext():
            image = ImageOps.exif_transpose(image)  # a copy in any case
        if image.mode == "F" or image.mode.startswith("I"):
            return _eight_bits(image, name).convert("RGB")
        if image.mode == "RGB":
            image.load()
            return image
        if "A" in image.getbands() or "transparency" in image.info:
            image = image.convert("RGBA")
            backdrop = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(backdrop, image)
        return image.convert("RGB")
    except FileNotFoundError:
        raise MediaError(f"{name}: no such file") from None
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise MediaError(f"{name}: not a readable image ({first_line(error)})") from None


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Grey of 16 bits, or floating-point grey, as grey of 8 bits; Pillow would clip it at 255."""
    values = np.asarray(image)
    top = 1 if image.mode == "F" else 65535
    if not ((values >= 0) & (values <= top)).all():
        raise MediaError(
            f"{name}: grey values outside 0 to {top} (mode {image.mode}); scale them to 8 bits"
        )
    if image.mode == "F":
        return Image.fromarray(np.rint(values * 255).astype(np.uint8))
    # 257 turns 8 bits into 16, so a picture saved either way has the same pixels.
    grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    grey[values == image.info.get("transparency", -1)] = 255
    return Image.fromarray(grey)


def text_key(text: str) -> bytes:
    """The 32-byte content key of a text."""
    return hashlib.sha256(b"text\0" + text.encode()).digest()


def image_key(image: Image.Image) -> bytes:
    """The 32-byte content key of an RGB image: its size and pixels, not its file format."""
    header = f"image\0{image.width}x{image.height}\0".encode()
    return hashlib.sha256(header + image.tobytes()).digest()


def audio_key(waveform: np.ndarray) -> bytes:
    """The 32-byte content key of a mono float32 waveform at 16 kHz."""
    return hashlib.sha256(b"audio\0" + np.ascontiguousarray(waveform).tobytes()).digest()


def load(kind: str, ref: object) -> object:
    """What an encoder takes of a reference to 'text', 'image' or 'audio'.

    Raises:
        MediaError: an image cannot be read.
    """
    if kind == "image":
        return load_image(ref)
    return np.ascontiguousarray(ref) if kind == "audio" else ref


def content_key(kind: str, content: object) -> bytes:
    """The 32-byte key of what `load` gave."""
    return {"text": text_key, "image": image_key, "audio": audio_key}[kind](content)
