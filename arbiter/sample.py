"""Sample: one decision problem, and what makes it legal.

A sample refers to its media (a path, encoded bytes, a PIL image or an array); nothing is decoded
until an encoder asks. Sources make samples, features consume them; neither needs the other.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from arbiter.errors import SampleError
from arbiter.strict_json import is_unicode

ImageRef = Path | bytes | Image.Image | np.ndarray

AUDIO_RATE_HZ = 16_000
MAX_CANDIDATES = 10_000


class Modality(str, enum.Enum):
    """What a sample can carry beside its question and candidates."""

    CONTEXT = "context"
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


MEDIA = (Modality.IMAGE, Modality.VIDEO, Modality.AUDIO)


@dataclass(frozen=True, eq=False)
class Sample:
    """A question, its candidate answers, and whatever helps to choose among them.

    Attributes:
        question: not empty.
        candidates: 2 to `MAX_CANDIDATES`, distinct and not empty after stripping.
        answer: index of the right candidate, or None when unknown.
        context: text to read, or None.
        images: image references, in order.
        video: frames of one clip, in order, as image references.
        audio: mono waveform, float32 in [-1, 1], at 16 kHz, or None.
        source: the name of the data source.
        group: samples that share an image or clip share a group; a split never cuts one.
        id: names the sample within its source, for messages.
        meta: what the source knows beside (question type, topic): only for reports.

    Raises:
        SampleError: naming source and id, when one of the above does not hold.
    """

    question: str
    candidates: tuple[str, ...]
    answer: int | None = None
    context: str | None = None
    images: tuple[ImageRef, ...] = ()
    video: tuple[ImageRef, ...] = ()
    audio: np.ndarray | None = None
    source: str = ""
    group: str = ""
    id: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            where = f"{self.source or 'sample'} {self.id}".strip()
            raise SampleError(problem, where)

    def _problem(self) -> str | None:
        if not isinstance(self.question, str) or not self.question.strip():
            return "the question is empty; give it as text"
        if not _is_sequence(self.candidates) or not all(
            isinstance(candidate, str) for candidate in self.candidates
        ):
            return "candidates must be a sequence of texts"
        if len(self.candidates) > MAX_CANDIDATES:
            return (
                f"{len(self.candidates):,} candidates given, more than {MAX_CANDIDATES:,}; choose "
                "among fewer"
            )
        for name in ("images", "video"):
            if not _is_sequence(getattr(self, name)):
                return f"{name} must be a sequence; put the one that there is into a tuple"
        for name in ("source", "group"):
            if not isinstance(getattr(self, name), str):
                return f"the {name} must be a text"
        stripped = [c.strip() for c in self.candidates]
        if len(stripped) < 2:
            given = "one candidate" if stripped else "no candidate"
            return f"{given} given; a decision needs at least two"
        if not all(stripped):
            return "a candidate is empty; leave it out or give its text"
        repeated = sorted(c for c, count in Counter(stripped).items() if count > 1)
        if repeated:
            return f"candidate {repeated[0]!r} is given more than once; candidates must be distinct"
        if self.answer is not None:
            whole = isinstance(self.answer, (int, np.integer)) and not isinstance(self.answer, bool)
            if not (whole and 0 <= self.answer < len(stripped)):
                return f"answer {self.answer!r} is not an index into {len(stripped)} candidates"
        if self.context is not None and not isinstance(self.context, str):
            return "the context must be a text"
        for text in (self.question, self.context or "", *self.candidates):
            if not is_unicode(text):
                return f"the text {text[:40]!r} is not Unicode (it holds half of a surrogate pair)"
        mono = isinstance(self.audio, np.ndarray) and self.audio.ndim == 1
        if self.audio is not None and not (mono and self.audio.dtype == np.float32):
            return f"audio must be a mono float32 waveform at {AUDIO_RATE_HZ} Hz"
        if self.audio is not None and not len(self.audio):
            return "the audio is empty; leave it out"
        if self.audio is not None and not np.isfinite(self.audio).all():
            return "the audio holds values that are not finite"
        return None

    @property
    def modalities(self) -> frozenset[Modality]:
        """The modalities that this sample carries."""
        present = {
            Modality.CONTEXT: bool(self.context and self.context.strip()),
            Modality.IMAGE: bool(self.images),
            Modality.VIDEO: bool(self.video),
            Modality.AUDIO: self.audio is not None,
        }
        return frozenset(modality for modality, there in present.items() if there)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
