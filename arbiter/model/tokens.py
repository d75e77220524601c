"""Tokens of a decision: features in, embeddings of one width out.

Shape letters as in `fusion.py`; D width of a text feature, T words, V distinct texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from arbiter.encoders.base import FeatureSpec
from arbiter.features.batch import DecisionBatch, MediaTokens, TextTokens, media_specs
from arbiter.model.architecture import CONTEXT
from arbiter.model.dropout import DropoutAddresses

_QUESTION = "question"


class TokenEmbedder(nn.Module):
    """Embeds questions, contexts and media, each with its type and its place.

    Args:
        spec: the encoder's features.
        inputs: what is read, as in `DecisionModel`.
        hidden_dim: width of every token.
    """

    def __init__(self, spec: FeatureSpec, inputs: Sequence[str], hidden_dim: int):
        super().__init__()
        text_dim = spec["text"]["pooled"].dim
        kinds = {kind: s for kind, s in media_specs(spec).items() if kind in inputs}
        self._grids = {kind: s.grid for kind, s in kinds.items() if s.grid}
        self.question = nn.Linear(text_dim, hidden_dim)
        self.condition = nn.Linear(text_dim, hidden_dim)
        self.context = nn.Linear(text_dim, hidden_dim) if CONTEXT in inputs else None
        self.media = nn.ModuleDict({k: nn.Linear(s.dim, hidden_dim) for k, s in kinds.items()})
        self.position_embedding = nn.ParameterDict(
            {k: embedding(int(np.prod(grid)), hidden_dim) for k, grid in self._grids.items()}
        )
        types = ("decision", _QUESTION, *(i for i in (CONTEXT, *kinds) if i in inputs))
        self.type_embedding = nn.ParameterDict({name: embedding(hidden_dim) for name in types})
        self.words, self.word_type_embedding = None, nn.ParameterDict()
        if "tokens" in spec["text"]:
            stream = spec["text"]["tokens"]
            self.words = nn.Linear(stream.dim, hidden_dim)
            self.word_position_embedding = embedding(stream.grid[0], hidden_dim)
            texts = [_QUESTION, *([CONTEXT] if CONTEXT in inputs else [])]
            self.word_type_embedding = nn.ParameterDict(
                {name: embedding(hidden_dim) for name in texts}
            )

    def texts(self, batch: DecisionBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Features of questions and contexts [B, Q, D]; contexts are None without that input."""
        context_BQD = None
        if self.context is not None:
            context_BQD = F.embedding(batch.context, batch.texts) * batch.context_mask[..., None]
        return F.embedding(batch.question, batch.texts), context_BQD

    def known(self, batch: DecisionBatch) -> dict[str, MediaTokens]:
        """The media that there are embeddings for."""
        return {kind: tokens for kind, tokens in batch.media.items() if kind in self.media}

    def own(self, batch: DecisionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """A question's own tokens [B, Q, L, H]: decision, question, context, and their words."""
        question_BQD, context_BQD = self.texts(batch)
        tokens = [
            self.condition(question_BQD) + self.type_embedding["decision"],
            self.question(question_BQD) + self.type_embedding["question"],
        ]
        masks = [batch.question_mask, batch.question_mask]
        if context_BQD is not None:
            tokens.append(self.context(context_BQD) + self.type_embedding[CONTEXT])
            masks.append(batch.context_mask)
        own_BQLH, own_mask_BQL = torch.stack(tokens, dim=2), torch.stack(masks, dim=2)
        for name in (n for n in self.word_type_embedding if n in batch.text_tokens):
            words_BQTH, mask_BQT = self._words(name, batch.text_tokens[name])
            own_BQLH = torch.cat([own_BQLH, words_BQTH], dim=2)
            own_mask_BQL = torch.cat([own_mask_BQL, mask_BQT], dim=2)
        return own_BQLH, own_mask_BQL

    def _words(self, name: str, text: TextTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of each question's own text of one kind: [B, Q, T, H] and mask [B, Q, T]."""
        tokens, last = text.tokens, len(self.word_position_embedding) - 1
        position_VTH = F.embedding(
            tokens.positions[..., 0].clamp(max=last), self.word_position_embedding
        )
        # Each distinct text is embedded once, then looked up by its questions.
        words_VTH = self.words(tokens.values) + position_VTH + self.word_type_embedding[name]
        # Not words_VTH[text.index], whose backward is an indexed write, which crashed DirectML.
        words_BQTH = F.embedding(text.index, words_VTH.flatten(1)).unflatten(2, words_VTH.shape[1:])
        return words_BQTH, tokens.mask[text.index] & text.present[..., None]

    def of_media(
        self, batch: DecisionBatch, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All media tokens of each block [B, S, H]; S = 0 when no block has any.

        Args:
            like: has the type and device to be.
        """
        parts = [like.new_zeros(len(like), 0, like.shape[-1])]
        masks = [torch.zeros(len(like), 0, dtype=torch.bool, device=like.device)]
        for kind, tokens in self.known(batch).items():
            x_BTH = self.media[kind](tokens.values) + self.type_embedding[kind]
            if kind in self.position_embedding:
                x_BTH = x_BTH + F.embedding(
                    self._flat_position(kind, tokens), self.position_embedding[kind]
                )
            parts.append(x_BTH)
            masks.append(tokens.mask)
        return torch.cat(parts, dim=1), torch.cat(masks, dim=1)

    def addresses(
        self, dropout: DropoutAddresses, batch: DecisionBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Addresses of the media tokens [B, S, 2] and of the own tokens [B, Q, L, 2].

        They count within each kind of token, as padding moves the places of the kinds after it.
        """
        names = [name for name in self.word_type_embedding if name in batch.text_tokens]
        own = [dropout.tokens(dropout.question, "own", 2 if self.context is None else 3)]
        own += [
            dropout.tokens(dropout.question, name, batch.text_tokens[name].tokens.mask.shape[1])
            for name in names
        ]
        block = dropout.block
        seen = [
            dropout.tokens(block, kind, t.mask.shape[1]) for kind, t in self.known(batch).items()
        ]
        return torch.cat([block[:, None][:, :0], *seen], dim=1), torch.cat(own, dim=2)

    def _flat_position(self, kind: str, tokens: MediaTokens) -> torch.Tensor:
        """Row-major index into the position table; beyond its end, the last place of an axis."""
        index = torch.zeros_like(tokens.positions[..., 0])
        for axis, size in enumerate(self._grids[kind]):
            index = index * size + tokens.positions[..., axis].clamp(max=size - 1)
        return index


def embedding(*shape: int) -> nn.Parameter:
    """A learned table; those whose names hold `embedding` know no weight decay."""
    return nn.Parameter(torch.randn(*shape) * 0.02)
