"""Held-out decisions to look at: chosen at the end of a run, and kept with it as small pictures.

    evaluation/gallery.json   {"split": "test", "right": [decision], "wrong": [decision]}

The page can so be made again without the data. What is kept is bounded: few pictures of a decision,
each at most `_SIDE` pixels high or wide, short sounds, the beginning of a long context.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from arbiter.errors import MediaError
from arbiter.files import write_json_atomic
from arbiter.media import load_image
from arbiter.report.run_files import GALLERY
from arbiter.sample import AUDIO_RATE_HZ, ImageRef, Sample

_EACH = 12
_SIDE, _IMAGES, _FRAMES = 192, 2, 4
_CANDIDATES = 4
_CONTEXT_CHARACTERS = 600
_PEAKS = 120
_SOUND_BYTES = 16_000


@dataclass(frozen=True)
class Shown:
    """A held-out decision.

    Attributes:
        sample: with a known answer.
        probabilities: one per candidate.
    """

    sample: Sample
    probabilities: np.ndarray

    @property
    def right(self) -> bool:
        """Whether the most probable candidate is the answer."""
        return int(self.probabilities.argmax()) == self.sample.answer


def choose_gallery(
    samples: Sequence[Sample], probabilities: np.ndarray, count: int = _EACH
) -> list[Shown]:
    """Up to `count` right and `count` wrong decisions, spread evenly over the samples."""
    shown = [
        Shown(sample, row[: len(sample.candidates)])
        for sample, row in zip(samples, probabilities, strict=True)
    ]
    chosen = []
    for kind in (True, False):
        matching = [decision for decision in shown if decision.right is kind]
        places = np.linspace(0, len(matching) - 1, min(count, len(matching))).round().astype(int)
        chosen += [matching[place] for place in places]
    return chosen


def write_gallery(run: Path, split: str, chosen: Sequence[Shown]) -> Path:
    """Keep decisions in the run directory, with their media as small pictures."""
    path = run / "evaluation" / f"{GALLERY}.json"
    path.parent.mkdir(exist_ok=True)
    right = [_decision(shown) for shown in chosen if shown.right]
    wrong = [_decision(shown) for shown in chosen if not shown.right]
    write_json_atomic(path, {"split": split, "right": right, "wrong": wrong})
    return path


def _decision(shown: Shown) -> dict:
    """A decision as JSON: its texts, its media, and the most probable candidates."""
    sample = shown.sample
    order = np.argsort(-shown.probabilities, kind="stable").tolist()
    listed = order[:_CANDIDATES]
    if sample.answer not in listed:
        listed[-1] = sample.answer
    context = sample.context or ""
    if len(context) > _CONTEXT_CHARACTERS:
        context = context[:_CONTEXT_CHARACTERS] + " …"
    return {
        "source": sample.source,
        "id": sample.id,
        "question": sample.question,
        "context": context,
        "candidates": [
            {
                "text": sample.candidates[k],
                "probability": round(float(shown.probabilities[k]), 6),
                "answer": k == sample.answer,
            }
            for k in listed
        ],
        "more_candidates": len(order) - len(listed),
        "media": _media(sample),
    }


def _media(sample: Sample) -> list[dict]:
    """Pictures of what the sample carries; what can no longer be read is said."""
    kept = []
    for ref in sample.images[:_IMAGES]:
        kept.append(_picture("image", (ref,)))
    if sample.video:
        places = np.linspace(0, len(sample.video) - 1, min(_FRAMES, len(sample.video)))
        kept.append(_picture("video", [sample.video[i] for i in places.round().astype(int)]))
        kept[-1]["count"] = len(sample.video)
    if sample.audio is not None:
        kept.append(_sound(sample.audio))
    if len(sample.images) > _IMAGES:
        kept.append({"kind": "more", "count": len(sample.images) - _IMAGES})
    return kept


def _picture(kind: str, refs: Sequence[ImageRef]) -> dict:
    """One picture, or several beside each other, as a data URI."""
    try:
        images = [load_image(ref).copy() for ref in refs]
    except MediaError as error:
        return {"kind": "unreadable", "reason": str(error)}
    side = _SIDE if len(images) == 1 else _SIDE // 2
    for image in images:
        image.thumbnail((side, side))
    strip = images[0]
    if len(images) > 1:
        width = sum(image.width for image in images) + 2 * (len(images) - 1)
        strip = Image.new("RGB", (width, max(i.height for i in images)), "white")
        left = 0
        for image in images:
            strip.paste(image, (left, 0))
            left += image.width + 2
    return {
        "kind": kind,
        "width": strip.width,
        "height": strip.height,
        "data": min((_data_uri(strip, form) for form in ("PNG", "JPEG")), key=len),
    }


def _data_uri(image: Image.Image, form: str) -> str:
    buffer = io.BytesIO()
    options = {"optimize": True} if form == "PNG" else {"quality": 80}
    image.save(buffer, form, **options)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{form.lower()};base64,{data}"


def _sound(waveform: np.ndarray) -> dict:
    """The outline of a sound, and the sound itself where it is short."""
    parts = np.array_split(waveform, min(_PEAKS, max(len(waveform), 1)))
    peaks = [float(np.abs(part).max()) if len(part) else 0.0 for part in parts]
    kept = {
        "kind": "audio",
        "seconds": round(len(waveform) / AUDIO_RATE_HZ, 3),
        "peaks": [round(peak, 3) for peak in peaks],
    }
    buffer = io.BytesIO()
    soundfile.write(buffer, np.clip(waveform, -1, 1), AUDIO_RATE_HZ, format="MP3")
    if buffer.tell() <= _SOUND_BYTES:
        data = base64.b64encode(buffer.getvalue()).decode()
        kept["data"] = f"data:audio/mpeg;base64,{data}"
    return kept
