"""DecisionBatch: what the model sees, assembled by vectorised gathers.

Shape letters: B media sets, Q questions per media set, K candidates, F foils, T tokens,
U distinct texts, D features. Everything is padded; masks say what is real.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from arbiter.encoders.base import FeatureSpec, StreamSpec
from arbiter.features.dataset import FeatureDataset
from arbiter.features.ragged import owners, pad


@dataclass(frozen=True)
class MediaTokens:
    """One kind of media token.

    Attributes:
        values: float32 [B, T, D].
        mask: bool [B, T], true where a token is real.
        positions: int64 [B, T, axes], or None.
    """

    values: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor | None = None

    def to(self, device: torch.device) -> MediaTokens:
        """The same tokens on another device."""
        positions = None if self.positions is None else self.positions.to(device)
        return MediaTokens(self.values.to(device), self.mask.to(device), positions)


@dataclass(frozen=True)
class TextTokens:
    """The tokens of V distinct texts, and which of them each question has.

    Attributes:
        tokens: values [V, T, D], mask [V, T] and positions [V, T, 1].
        index: int64 [B, Q] into the texts.
        present: bool [B, Q], true where a question has such a text.
    """

    tokens: MediaTokens
    index: torch.Tensor
    present: torch.Tensor

    def to(self, device: torch.device) -> TextTokens:
        """The same tokens on another device."""
        return TextTokens(self.tokens.to(device), self.index.to(device), self.present.to(device))


@dataclass(frozen=True)
class DecisionBatch:
    """Questions grouped by the media they are about.

    Attributes:
        texts: float32 [U, D], every distinct text of the batch once.
        text_ids: int64 [U], a number for each text that no other has.
        question: int64 [B, Q], index into texts.
        question_mask: bool [B, Q].
        context: int64 [B, Q], index into texts.
        context_mask: bool [B, Q], true where a question has context.
        candidates: int64 [B, Q, K], index into texts.
        candidate_mask: bool [B, Q, K].
        answer: int64 [B, Q], index into candidates, -1 where unknown or padding.
        sample: int64 [B, Q], index into the dataset, -1 for padding.
        media: token kind ('image', 'patches', 'video', 'audio') -> tokens; absent kinds are absent.
        text_tokens: 'question' and 'context' -> their tokens, where the encoder gives such.
        foils: int64 [B, Q, F], index into texts of wrong answers beyond the candidates, or None.
        foil_mask: bool [B, Q, F], or None.
    """

    texts: torch.Tensor
    text_ids: torch.Tensor
    question: torch.Tensor
    question_mask: torch.Tensor
    context: torch.Tensor
    context_mask: torch.Tensor
    candidates: torch.Tensor
    candidate_mask: torch.Tensor
    answer: torch.Tensor
    sample: torch.Tensor
    media: dict[str, MediaTokens] = field(default_factory=dict)
    text_tokens: dict[str, TextTokens] = field(default_factory=dict)
    foils: torch.Tensor | None = None
    foil_mask: torch.Tensor | None = None

    def to(self, device: torch.device) -> DecisionBatch:
        """The same batch on another device."""
        return DecisionBatch(
            **{
                name: {k: v.to(device) for k, v in value.items()}
                if isinstance(value, dict)
                else value.to(device)
                for name, value in vars(self).items()
                if value is not None
            }
        )

    def without_media(self) -> DecisionBatch:
        """The same questions with all media absent."""
        return DecisionBatch(**{**vars(self), "media": {}})


def media_specs(spec: FeatureSpec) -> dict[str, StreamSpec]:
    """The kinds of media token that an encoder's features give, in the model's order."""
    kinds = {}
    if "image" in spec:
        kinds["image"] = spec["image"]["pooled"]
        if "patches" in spec["image"]:
            kinds["patches"] = spec["image"]["patches"]
        kinds["video"] = StreamSpec(spec["image"]["pooled"].dim, (spec.max_frames,))
    if "audio" in spec:
        kinds["audio"] = spec["audio"]["frames"]
    return kinds


def assemble(dataset: FeatureDataset, blocks: torch.Tensor) -> DecisionBatch:
    """Gather the batch of B blocks of questions.

    Args:
        dataset: where the rows come from.
        blocks: int64 [B, Q] of sample indices; each row shares one media set and begins with a
            sample; -1 pads.
    """
    mask = blocks >= 0
    sample = blocks.clamp(min=0)
    flat = sample[mask]
    candidate_rows, candidate_counts = dataset.candidates.take(flat)
    padded_candidates, padded_mask = pad(candidate_rows, candidate_counts)
    context_rows = dataset.context[flat]
    parts = [dataset.question[flat], context_rows.clamp(min=0), padded_candidates.flatten()]
    foil_rows = None if dataset.foils is None else dataset.foils.take(flat)
    if foil_rows is not None:
        # A place without a foil takes the question's text, which is there already.
        places = torch.where(foil_rows >= 0, foil_rows, dataset.question[flat, None])
        parts.append(places.flatten())
    # Each distinct text once; the index tensors point into that list.
    distinct, inverse = torch.unique(torch.cat(parts), return_inverse=True)
    texts, _ = dataset.tables["text"].streams["pooled"].gather(distinct)
    question, context, candidates, *foils = inverse.split([len(part) for part in parts])

    def spread(values: torch.Tensor, fill: int | bool = 0) -> torch.Tensor:
        out = values.new_full((*mask.shape, *values.shape[1:]), fill)
        out[mask] = values
        return out

    return DecisionBatch(
        texts=texts,
        text_ids=dataset.tables["text"].ids[distinct],
        question=spread(question),
        question_mask=mask,
        context=spread(context),
        context_mask=spread(context_rows >= 0, False),
        candidates=spread(candidates.view_as(padded_candidates)),
        candidate_mask=spread(padded_mask, False),
        answer=spread(dataset.answer[flat], -1),
        sample=blocks,
        media=_media(dataset, dataset.media[sample[:, 0]]),
        text_tokens={
            name: _text_tokens(dataset, rows, spread)
            for name, rows in (("question", dataset.question[flat]), ("context", context_rows))
            if "tokens" in dataset.tables["text"].streams and bool((rows >= 0).any())
        },
        foils=spread(foils[0].view_as(foil_rows)) if foils else None,
        foil_mask=spread(foil_rows >= 0, False) if foils else None,
    )


def _text_tokens(
    dataset: FeatureDataset, rows: torch.Tensor, spread: Callable[..., torch.Tensor]
) -> TextTokens:
    """The tokens of the texts `rows` [flat questions], -1 where there is none."""
    stream = dataset.tables["text"].streams["tokens"]
    distinct, inverse = torch.unique(rows[rows >= 0], return_inverse=True)
    values, positions = stream.gather(distinct)
    padded, mask = pad(values, stream.counts[distinct])
    index = torch.zeros_like(rows)
    index[rows >= 0] = inverse
    return TextTokens(
        MediaTokens(padded, mask, pad(positions, stream.counts[distinct])[0]),
        spread(index),
        spread(rows >= 0, False),
    )


def _media(dataset: FeatureDataset, media: torch.Tensor) -> dict[str, MediaTokens]:
    """The media tokens of the media sets [B]."""
    found = {}
    images, image_counts = dataset.media_images.take(media)
    if len(images):
        streams = dataset.tables["image"].streams
        found["image"] = MediaTokens(*pad(streams["pooled"].gather(images)[0], image_counts))
        if "patches" in streams:
            values, positions = streams["patches"].gather(images)
            counts = torch.zeros_like(image_counts)
            counts.index_add_(0, owners(image_counts), streams["patches"].counts[images])
            padded, mask = pad(values, counts)
            found["patches"] = MediaTokens(padded, mask, pad(positions, counts)[0])
    frames, frame_counts = dataset.media_frames.take(media)
    if len(frames):
        values, mask = pad(
            dataset.tables["image"].streams["pooled"].gather(frames)[0], frame_counts
        )
        # A clip's frames lie evenly in its own time, whatever their number.
        place = torch.arange(mask.shape[1]) + 0.5
        time = (place * dataset.max_frames / frame_counts.clamp(min=1)[:, None]).long()[..., None]
        found["video"] = MediaTokens(values, mask, time)
    audio = dataset.media_audio[media]
    if bool((audio >= 0).any()):
        stream = dataset.tables["audio"].streams["frames"]
        rows = audio[audio >= 0]
        counts = torch.zeros_like(audio)
        counts[audio >= 0] = stream.counts[rows]
        values, positions = stream.gather(rows)
        padded, mask = pad(values, counts)
        found["audio"] = MediaTokens(padded, mask, pad(positions, counts)[0])
    return found
