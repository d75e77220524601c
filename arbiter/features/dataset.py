"""Samples as indices into feature tables: everything that batches are assembled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from arbiter.encoders.base import FeatureSpec
from arbiter.errors import EncoderError
from arbiter.features.foil_table import FoilTable
from arbiter.features.ragged import Ragged
from arbiter.features.table import FeatureTable
from arbiter.sample import Modality, Sample


class Store(Protocol):
    """Anything that turns contents into a feature table."""

    def ensure(self, kind: str, refs: Sequence[object]) -> tuple[FeatureTable, torch.Tensor]:
        """A table that holds all of `refs`, and each one's row in it, int64 [len(refs)]."""


@dataclass(frozen=True)
class FeatureDataset:
    """N samples over M distinct media sets, as rows of feature tables.

    Attributes:
        tables: feature tables by content kind.
        question: text rows [N].
        context: text rows [N], -1 where there is none.
        candidates: text rows of each sample's candidates.
        answer: candidate index [N], -1 where unknown.
        media: media set of each sample [N]; samples with the same contents share one.
        media_images, media_frames: image rows of each media set.
        media_audio: audio row of each media set, -1 where there is none.
        samples: the samples themselves, for reports.
        max_frames: places in time of a video's frames.
        foils: wrong answers from other samples to train against, or None.
    """

    tables: dict[str, FeatureTable]
    question: torch.Tensor
    context: torch.Tensor
    candidates: Ragged
    answer: torch.Tensor
    media: torch.Tensor
    media_images: Ragged
    media_frames: Ragged
    media_audio: torch.Tensor
    samples: Sequence[Sample]
    max_frames: int
    foils: FoilTable | None = None

    def __len__(self) -> int:
        return len(self.question)

    def take(self, rows: Sequence[int] | torch.Tensor) -> FeatureDataset:
        """Some of the samples, over the same tables and media sets."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        foils = self.foils
        return replace(
            self,
            question=self.question[index],
            context=self.context[index],
            candidates=self.candidates.select(index),
            answer=self.answer[index],
            media=self.media[index],
            samples=[self.samples[row] for row in index.tolist()],
            foils=None if foils is None else replace(foils, place=foils.place[index]),
        )


class _References:
    """Distinct references to contents of one kind, in order of first appearance."""

    def __init__(self) -> None:
        self._places: dict[object, int] = {}
        self.refs: list[object] = []

    def add(self, ref: object) -> int:
        """The place of a reference in `refs`."""
        # Arrays and images are not hashable by value; their identity is enough to save work.
        name = ref if isinstance(ref, (str, Path)) else id(ref)
        if name not in self._places:
            self._places[name] = len(self.refs)
            self.refs.append(ref)
        return self._places[name]


def index_samples(
    samples: dict[str, Sequence[Sample]],
    store: Store,
    spec: FeatureSpec,
    further_texts: Sequence[str] = (),
) -> dict[str, FeatureDataset]:
    """Make the features of all samples and express each named list of samples over them.

    Args:
        samples: by name of the list.
        store: where features are kept.
        spec: what the encoder gives.
        further_texts: are to be in the text table as well.

    Raises:
        EncoderError: a sample carries a modality that the encoder cannot perceive.
        MediaError: an image cannot be decoded.
    """
    references = {kind: _References() for kind in ("text", "image", "audio")}
    placed = {
        name: [_places(sample, references, spec) for sample in part]
        for name, part in samples.items()
    }
    for text in further_texts:
        references["text"].add(text)
    tables, rows = {}, {}
    for kind, part in references.items():
        if part.refs:
            tables[kind], found = store.ensure(kind, part.refs)
            rows[kind] = found.tolist()
    return {
        name: _dataset(placed[name], tables, rows, samples[name], spec.max_frames)
        for name in samples
    }


@dataclass(frozen=True)
class _Places:
    """A sample's contents as places in the references of their kinds."""

    question: int
    context: int | None
    candidates: tuple[int, ...]
    images: tuple[int, ...]
    video: tuple[int, ...]
    audio: int | None


def _places(sample: Sample, references: dict[str, _References], spec: FeatureSpec) -> _Places:
    needs = {Modality.IMAGE: "image", Modality.VIDEO: "image", Modality.AUDIO: "audio"}
    for modality in sample.modalities & needs.keys():
        if needs[modality] not in spec:
            raise EncoderError(
                f"{sample.source} {sample.id}: the encoder has no features for {modality.value}; "
                "choose another encoder or leave the source out"
            )
    text, image = references["text"].add, references["image"].add
    return _Places(
        question=text(sample.question),
        context=text(sample.context) if Modality.CONTEXT in sample.modalities else None,
        candidates=tuple(text(candidate) for candidate in sample.candidates),
        images=tuple(image(ref) for ref in sample.images),
        video=tuple(image(ref) for ref in evenly(sample.video, spec.max_frames)),
        audio=None if sample.audio is None else references["audio"].add(sample.audio),
    )


def evenly(frames: Sequence, count: int) -> list:
    """`count` of the frames, the middle ones of equal parts; all if there are no more."""
    if len(frames) <= count:
        return list(frames)
    return [frames[int((i + 0.5) * len(frames) / count)] for i in range(count)]


def _dataset(
    placed: list[_Places],
    tables: dict[str, FeatureTable],
    rows: dict[str, list[int]],
    samples: Sequence[Sample],
    max_frames: int,
) -> FeatureDataset:
    text, image, audio = rows["text"], rows.get("image", []), rows.get("audio", [])
    # By row, so that equal contents under two names are one media set.
    media_ids: dict[tuple, int] = {}
    media = []
    for places in placed:
        contents = (
            tuple(image[i] for i in places.images),
            tuple(image[i] for i in places.video),
            -1 if places.audio is None else audio[places.audio],
        )
        media.append(media_ids.setdefault(contents, len(media_ids)))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    return FeatureDataset(
        tables=tables,
        question=tensor([text[p.question] for p in placed]),
        context=tensor([-1 if p.context is None else text[p.context] for p in placed]),
        candidates=Ragged.of([[text[c] for c in p.candidates] for p in placed]),
        answer=tensor([-1 if s.answer is None else s.answer for s in samples]),
        media=tensor(media),
        media_images=Ragged.of([images for images, _, _ in media_ids]),
        media_frames=Ragged.of([frames for _, frames, _ in media_ids]),
        media_audio=tensor([sound for _, _, sound in media_ids]),
        samples=samples,
        max_frames=max_frames,
    )
