"""Leaving modalities out while training, so that a model does not lean on one alone.

After ModDrop (Neverova et al., 2015): each modality of a block is dropped by a draw of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from arbiter.features.batch import DecisionBatch, MediaTokens, TextTokens

# Token kinds that are one modality come and go together.
_MEDIA = {"image": ("image", "patches"), "video": ("video",), "audio": ("audio",)}


class ModalityDropout:
    """Drops images, video, audio and context of blocks, each with the same probability.

    A block that has media keeps some: if all of it would go, the modality with the highest draw
    stays. Context may go by itself.
    """

    def __init__(self, probability: float):
        self._probability = probability

    @property
    def active(self) -> bool:
        """Whether anything is ever dropped."""
        return self._probability > 0

    def draw(self, blocks: int, rng: np.random.Generator) -> torch.Tensor:
        """Random numbers for a step's blocks, float64 [blocks, 4]: image, video, audio, context."""
        return torch.from_numpy(rng.random((blocks, len(_MEDIA) + 1)))

    def apply(self, batch: DecisionBatch, draws: torch.Tensor) -> DecisionBatch:
        """The batch as if the dropped modalities had never been there."""
        return replace(self._without_media(batch, draws), **self._context(batch, draws[:, -1]))

    def _without_media(self, batch: DecisionBatch, draws: torch.Tensor) -> DecisionBatch:
        blocks = len(draws)
        present = torch.stack(
            [
                torch.stack([_present(batch, kind, blocks) for kind in kinds]).any(dim=0)
                for kinds in _MEDIA.values()
            ],
            dim=1,
        )
        draws = draws[:, : len(_MEDIA)]
        kept = present & (draws >= self._probability)
        rescued = torch.where(present, draws, -1).argmax(dim=1)
        stays = torch.arange(len(_MEDIA)) == rescued[:, None]
        kept = torch.where(kept.any(dim=1, keepdim=True), kept, present & stays)
        media = {}
        for kind, tokens in batch.media.items():
            column = next(i for i, kinds in enumerate(_MEDIA.values()) if kind in kinds)
            mask = tokens.mask & kept[:, column, None]
            if bool(mask.any()):
                media[kind] = MediaTokens(tokens.values, mask, tokens.positions)
        return replace(batch, media=media)

    def _context(self, batch: DecisionBatch, draws: torch.Tensor) -> dict:
        """The fields that say which questions have context."""
        kept = (draws >= self._probability)[:, None]
        text_tokens = dict(batch.text_tokens)
        if "context" in text_tokens:
            old = text_tokens.pop("context")
            present = old.present & kept
            if bool(present.any()):
                text_tokens["context"] = TextTokens(old.tokens, old.index, present)
        return {"context_mask": batch.context_mask & kept, "text_tokens": text_tokens}


def _present(batch: DecisionBatch, kind: str, blocks: int) -> torch.Tensor:
    """Which blocks have tokens of a kind, bool [blocks]."""
    if kind not in batch.media:
        return torch.zeros(blocks, dtype=torch.bool)
    return batch.media[kind].mask.any(dim=1)
