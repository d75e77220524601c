"""What samples look like: measured on samples at hand, or told of sources not yet downloaded."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from arbiter.datasets.base import SourceConfig
from arbiter.datasets.mix import DatasetConfig, load_mix
from arbiter.sample import AUDIO_RATE_HZ, Modality, Sample

Size = tuple[int, int]


@dataclass(frozen=True)
class SampleShape:
    """How large the samples of a mix are.

    Attributes:
        modalities: what any of them carries.
        samples: of the training split.
        evaluated: of the largest other split.
        candidates: the most of a sample.
        questions: the most about one media set.
        mean_questions: on average.
        images: distinct image contents, frames of clips among them, of all splits.
        texts: distinct texts.
        answers: distinct candidate texts.
        image_sizes: (width, height) of the images of each distinct media set, None where unknown;
            the largest set where nothing is known of the rest.
        frames: the most frames of a clip.
        audio_seconds: the longest sound.
        exact: whether all this was counted.
    """

    modalities: frozenset[Modality]
    samples: int
    evaluated: int
    candidates: int
    questions: int
    mean_questions: float
    images: int
    texts: int
    answers: int
    image_sizes: tuple[tuple[Size | None, ...], ...]
    frames: int
    audio_seconds: float
    exact: bool


def measure(splits: dict[str, Sequence[Sample]]) -> SampleShape:
    """Count what a loaded mix holds; files of images are opened for their size only."""
    every = [sample for part in splits.values() for sample in part]
    media = Counter(map(_media, splits["train"]))
    size_of: dict[object, Size | None] = {}

    def size(ref: object) -> Size | None:
        name = ref if isinstance(ref, Path) else id(ref)
        if name not in size_of:
            size_of[name] = _size(ref)
        return size_of[name]

    sets = {_media(s): tuple(size(ref) for ref in s.images) for s in every}
    images = {name for s in every for name in _names((*s.images, *s.video))}
    answers = {c for s in every for c in s.candidates}
    texts = answers | {t for s in every for t in (s.question, s.context) if t}
    return SampleShape(
        modalities=frozenset().union(*(s.modalities for s in every)),
        samples=len(splits["train"]),
        evaluated=max(len(part) for name, part in splits.items() if name != "train"),
        candidates=max(len(s.candidates) for s in every),
        questions=max(media.values()),
        mean_questions=len(splits["train"]) / len(media),
        images=len(images),
        texts=len(texts),
        answers=len(answers),
        image_sizes=tuple(sets.values()),
        frames=max(len(s.video) for s in every),
        audio_seconds=max(0.0 if s.audio is None else len(s.audio) / AUDIO_RATE_HZ for s in every),
        exact=True,
    )


def _names(refs: Sequence[object]) -> tuple:
    return tuple(ref if isinstance(ref, Path) else id(ref) for ref in refs)


def _media(sample: Sample) -> tuple:
    return (_names(sample.images), _names(sample.video), _names((sample.audio,)))


def _size(ref: object) -> Size | None:
    if isinstance(ref, Image.Image):
        return ref.size
    if isinstance(ref, np.ndarray):
        return ref.shape[1], ref.shape[0]
    with Image.open(io.BytesIO(ref) if isinstance(ref, bytes) else ref) as image:
        return image.size


# ---------------------------------------------------------------- before anything is downloaded


@dataclass(frozen=True)
class _Known:
    """What is known of a source that is read from the hub (docs/datasets.md).

    Attributes:
        samples: of all splits together.
        candidates: the most of a sample.
        per_image: questions about an image.
        modalities: beside the question.
        vocabulary: distinct answers, where they are few.
    """

    samples: int
    candidates: int
    per_image: int
    modalities: tuple[Modality, ...] = (Modality.IMAGE,)
    vocabulary: int | None = None


_KNOWN = {
    "ScienceQA": _Known(21_208, 5, 1, (Modality.IMAGE, Modality.CONTEXT)),
    "AI2D": _Known(10_000, 4, 4),
    "GQA": _Known(943_000, 10, 13, vocabulary=1_850),
    "SeedBench": _Known(17_990, 4, 1, (Modality.IMAGE, Modality.VIDEO)),
    "SeedBench2": _Known(24_371, 4, 1, (Modality.IMAGE, Modality.VIDEO)),
}
_CLIP_FRAMES = 8


def describe(config: DatasetConfig, seed: int) -> SampleShape:
    """The shape of a mix; nothing is downloaded.

    Sources on this machine are read. Of those on the hub, size and kind are known, and each sample
    counts as one image: questions of SEED-Bench about several are known when they are read.
    """
    on_hub = {n: s for n, s in config.sources.items() if _class_name(s) in _KNOWN}
    here = {n: s for n, s in config.sources.items() if n not in on_hub}
    shapes = [_told(source) for source in on_hub.values()]
    if here:
        shapes.append(measure(load_mix(replace(config, sources=here), seed)))
    return shapes[0] if len(shapes) == 1 else _merge(shapes)


def _class_name(source: SourceConfig) -> str:
    return source._target_.rpartition(".")[2]


def _told(source: SourceConfig) -> SampleShape:
    known = _KNOWN[_class_name(source)]
    total = min(known.samples, source.max_samples or known.samples)
    images = -(-total // known.per_image)
    answers = min(known.vocabulary or known.candidates * total, known.candidates * total)
    contexts = total if Modality.CONTEXT in known.modalities else 0
    clips = Modality.VIDEO in known.modalities
    train = round(total * source.split.train)
    return SampleShape(
        modalities=frozenset(known.modalities),
        samples=train,
        evaluated=max(total - train, 1),
        candidates=getattr(source, "num_candidates", known.candidates),
        questions=known.per_image,
        mean_questions=float(known.per_image),
        images=images * (_CLIP_FRAMES if clips else 1),
        texts=answers + total + contexts,
        answers=answers,
        image_sizes=((None,),),
        frames=_CLIP_FRAMES if clips else 0,
        audio_seconds=0.0,
        exact=False,
    )


def _merge(shapes: Sequence[SampleShape]) -> SampleShape:
    samples = sum(s.samples for s in shapes)
    return SampleShape(
        modalities=frozenset().union(*(s.modalities for s in shapes)),
        samples=samples,
        evaluated=sum(s.evaluated for s in shapes),
        candidates=max(s.candidates for s in shapes),
        questions=max(s.questions for s in shapes),
        mean_questions=samples / sum(s.samples / s.mean_questions for s in shapes),
        images=sum(s.images for s in shapes),
        texts=sum(s.texts for s in shapes),
        answers=sum(s.answers for s in shapes),
        image_sizes=tuple(size for s in shapes for size in s.image_sizes),
        frames=max(s.frames for s in shapes),
        audio_seconds=max(s.audio_seconds for s in shapes),
        exact=False,
    )
