"""Samples as indices into feature tables: everything that batches are assembled from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from arbiter.encoders.base import FeatureSpec
from arbiter.errors import EncoderError
from arbiter.features.ragged import Ragged
from arbiter.features.store import FeatureTable
from arbiter.media import audio_key, image_key, load_image, text_key
from arbiter.sample import Modality, Sample


class Store(Protocol):
    """Anything that turns contents into a feature table."""

    def ensure(
        self, kind: str, keys: Sequence[bytes], load: Callable[[int], object]
    ) -> FeatureTable:
        """A table that holds every one of `keys`."""


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

    def __len__(self) -> int:
        return len(self.question)


class _Contents:
    """Content keys of one kind, each distinct reference read once."""

    def __init__(self, key_of: Callable[[object], bytes], load: Callable[[object], object]):
        self._key_of, self._load = key_of, load
        self._known: dict[object, bytes] = {}
        self.keys: list[bytes] = []
        self._refs: list[object] = []

    def add(self, ref: object) -> bytes:
        """The content key of what `ref` refers to."""
        # Arrays and images are not hashable by value; their identity is enough to save work.
        name = ref if isinstance(ref, str) or hasattr(ref, "joinpath") else id(ref)
        if name not in self._known:
            self._known[name] = self._key_of(self._load(ref))
            self.keys.append(self._known[name])
            self._refs.append(ref)
        return self._known[name]

    def load(self, position: int) -> object:
        """Decode the content of `keys[position]`."""
        return self._load(self._refs[position])


def index_samples(
    samples: dict[str, Sequence[Sample]], store: Store, spec: FeatureSpec
) -> dict[str, FeatureDataset]:
    """Make the features of all samples and express each named list of samples over them.

    Raises:
        EncoderError: a sample carries a modality that the encoder cannot perceive.
        MediaError: an image cannot be decoded.
    """
    contents = {
        "text": _Contents(text_key, lambda text: text),
        "image": _Contents(image_key, load_image),
        "audio": _Contents(audio_key, lambda waveform: np.ascontiguousarray(waveform)),
    }
    keyed = {
        name: [_keys(sample, contents, spec) for sample in part] for name, part in samples.items()
    }
    tables = {
        kind: store.ensure(kind, part.keys, part.load)
        for kind, part in contents.items()
        if part.keys
    }
    return {name: _dataset(keyed[name], tables, samples[name]) for name in samples}


@dataclass(frozen=True)
class _SampleKeys:
    question: bytes
    context: bytes | None
    candidates: tuple[bytes, ...]
    media: tuple[tuple[bytes, ...], tuple[bytes, ...], bytes | None]


def _keys(sample: Sample, contents: dict[str, _Contents], spec: FeatureSpec) -> _SampleKeys:
    needs = {Modality.IMAGE: "image", Modality.VIDEO: "image", Modality.AUDIO: "audio"}
    for modality in sample.modalities & needs.keys():
        if needs[modality] not in spec:
            raise EncoderError(
                f"{sample.source} {sample.id}: the encoder has no features for {modality.value}; "
                "choose another encoder or leave the source out"
            )
    text, image = contents["text"].add, contents["image"].add
    return _SampleKeys(
        question=text(sample.question),
        context=text(sample.context) if Modality.CONTEXT in sample.modalities else None,
        candidates=tuple(text(candidate) for candidate in sample.candidates),
        media=(
            tuple(image(ref) for ref in sample.images),
            tuple(image(ref) for ref in sample.video),
            None if sample.audio is None else contents["audio"].add(sample.audio),
        ),
    )


def _dataset(
    keyed: list[_SampleKeys], tables: dict[str, FeatureTable], samples: Sequence[Sample]
) -> FeatureDataset:
    rows = {kind: table.rows for kind, table in tables.items()}
    media_ids: dict[tuple, int] = {}
    media = [media_ids.setdefault(keys.media, len(media_ids)) for keys in keyed]
    text = rows["text"]

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    def images(part: int) -> Ragged:
        return Ragged.of([[rows["image"][key] for key in m[part]] for m in media_ids])

    return FeatureDataset(
        tables=tables,
        question=tensor([text[keys.question] for keys in keyed]),
        context=tensor([-1 if k.context is None else text[k.context] for k in keyed]),
        candidates=Ragged.of([[text[c] for c in keys.candidates] for keys in keyed]),
        answer=tensor([-1 if s.answer is None else s.answer for s in samples]),
        media=tensor(media),
        media_images=images(0),
        media_frames=images(1),
        media_audio=tensor([-1 if m[2] is None else rows["audio"][m[2]] for m in media_ids]),
        samples=samples,
    )
