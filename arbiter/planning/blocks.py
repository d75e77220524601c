"""Batches in shape only: as large as those of a run, with nothing in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch

from arbiter.datasets.shapes import SampleShape, Size
from arbiter.encoders.base import Encoder
from arbiter.features.batch import DecisionBatch, MediaTokens, TextTokens, media_specs
from arbiter.model.architecture import CONTEXT, MODALITY_OF
from arbiter.model.dropout import DropoutAddresses


@dataclass(frozen=True)
class BlockShape:
    """What a block of questions about one media set is padded to.

    Attributes:
        questions, candidates, foils: per block, per question, per question.
        tokens: media token kind -> tokens.
        context: whether questions come with one.
        text_tokens: tokens of a question or a context, 0 where the encoder gives none.
        distinct_texts: all that there are; a batch cannot hold more.
    """

    questions: int
    candidates: int
    foils: int
    tokens: dict[str, int]
    context: bool
    text_tokens: int
    distinct_texts: int

    @property
    def media_tokens(self) -> int:
        """All media tokens of a block."""
        return sum(self.tokens.values())

    def texts(self, blocks: int) -> int:
        """Distinct texts of a batch at most."""
        per_question = 1 + self.candidates + self.foils + self.context
        return min(blocks * self.questions * per_question, self.distinct_texts)


def block_shape(
    shape: SampleShape, encoder: Encoder, questions: float, foils: int, largest: bool
) -> BlockShape:
    """The largest block of a mix, or a typical one.

    Args:
        shape: the mix.
        encoder: says how many tokens an image gives.
        questions: questions of a block.
        foils: per question.
        largest: the largest of every part; otherwise means, rounded.
    """
    over: Callable = max if largest else fmean
    tokens = {}
    for kind in media_specs(encoder.spec):
        if MODALITY_OF[kind] not in shape.modalities:
            continue
        if kind == "image":
            count = over(len(sizes) for sizes in shape.image_sizes)
        elif kind == "patches":
            count = _patches(shape.image_sizes, encoder, over)
        elif kind == "video":
            count = min(shape.frames, encoder.spec.max_frames)
        else:
            count = min(10 * shape.audio_seconds, encoder.spec["audio"]["frames"].grid[0])
        tokens[kind] = max(1, round(count))
    stream = encoder.spec["text"].get("tokens")
    return BlockShape(
        questions=max(1, round(questions)),
        candidates=shape.candidates,
        foils=foils,
        tokens=tokens,
        context=CONTEXT in shape.modalities,
        text_tokens=0 if stream is None else stream.grid[0],
        distinct_texts=shape.texts,
    )


def _patches(sets: tuple[tuple[Size | None, ...], ...], encoder: Encoder, over: Callable) -> float:
    known: dict[Size | None, int] = {}
    for sizes in sets:
        for size in sizes:
            known.setdefault(size, encoder.count_patches(size))
    return over(sum(known[size] for size in sizes) for sizes in sets)


def empty_batch(
    block: BlockShape, blocks: int, encoder: Encoder, device: torch.device
) -> DecisionBatch:
    """A batch of blocks of this shape, everything real and zero."""
    spec, B, Q = encoder.spec, blocks, block.questions

    def zeros(*size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int64, device=device)

    def real(*size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bool, device=device)

    def tokens(count: int, dim: int, axes: int) -> MediaTokens:
        values = torch.zeros(B, count, dim, device=device)
        return MediaTokens(values, real(B, count), zeros(B, count, axes) if axes else None)

    kinds = {k: s for k, s in media_specs(spec).items() if k in block.tokens}
    text_tokens = {}
    if block.text_tokens:
        stream = spec["text"]["tokens"]
        names = ("question", *([CONTEXT] if block.context else []))
        for name in names:
            values = torch.zeros(B * Q, block.text_tokens, stream.dim, device=device)
            mask = real(B * Q, block.text_tokens)
            positions = zeros(B * Q, block.text_tokens, 1)
            text_tokens[name] = TextTokens(
                MediaTokens(values, mask, positions), zeros(B, Q), real(B, Q)
            )
    return DecisionBatch(
        texts=torch.zeros(block.texts(B), spec["text"]["pooled"].dim, device=device),
        text_ids=zeros(block.texts(B)),
        question=zeros(B, Q),
        question_mask=real(B, Q),
        context=zeros(B, Q),
        context_mask=real(B, Q),
        candidates=zeros(B, Q, block.candidates),
        candidate_mask=real(B, Q, block.candidates),
        answer=zeros(B, Q),
        sample=zeros(B, Q),
        media={k: tokens(block.tokens[k], s.dim, len(s.grid)) for k, s in kinds.items()},
        text_tokens=text_tokens,
        foils=zeros(B, Q, block.foils) if block.foils else None,
        foil_mask=real(B, Q, block.foils) if block.foils else None,
    )


def random_batch(block: BlockShape, blocks: int, encoder: Encoder) -> DecisionBatch:
    """The same on the CPU, with features drawn from torch's generator."""
    batch = empty_batch(block, blocks, encoder, torch.device("cpu"))
    for values in (batch.texts, *(tokens.values for tokens in batch.media.values())):
        values.normal_()
    return batch


def empty_addresses(batch: DecisionBatch) -> DropoutAddresses:
    """Addresses for dropout, in shape only."""
    blocks, questions = batch.sample.shape
    zeros = partial(torch.zeros, device=batch.sample.device)
    return DropoutAddresses(
        0, zeros(blocks, questions, 2), zeros(blocks, 2), zeros(len(batch.texts), 2)
    )
