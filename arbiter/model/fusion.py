"""Fusion: pre-norm transformer layers in which questions read media.

Shape letters: B blocks (media sets), S media tokens, Q questions of a block, L tokens of a question
(the decision token first), H hidden, h heads, d = H / h.

`prefix`: media tokens see media; a question's tokens see the media and themselves. The media of a
block is computed once, however many questions are asked about it.
`full`: all tokens of a decision see each other, so media is computed once per question.
`perceiver`: as `prefix`, with a block's latents in the place of its media.
In all: the last layer computes the decision tokens only.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from arbiter.model.dropout import Dropout
from arbiter.model.moe import MixtureOfExperts, MoEConfig, RoutingStats


class FusionLayer(nn.Module):
    """Attention and a mixture of experts, each pre-normalised and residual."""

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        dropout: float,
        attention: str,
        moe: MoEConfig,
        dispatch: str,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.prefix = attention != "full"
        self.attention_norm = nn.LayerNorm(hidden_dim)
        self.query = nn.Linear(hidden_dim, hidden_dim)
        self.key_value = nn.Linear(hidden_dim, 2 * hidden_dim)
        self.out = nn.Linear(hidden_dim, hidden_dim)
        self.moe_norm = nn.LayerNorm(hidden_dim)
        self.moe = MixtureOfExperts(hidden_dim, moe, dispatch)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        media_BSH: torch.Tensor,
        own_BQLH: torch.Tensor,
        media_mask_BS: torch.Tensor,
        own_mask_BQL: torch.Tensor,
        last: bool,
        rows: tuple[torch.Tensor, torch.Tensor] | None = None,
        channels: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, RoutingStats | None]:
        """One layer. With `last`, only decision tokens are computed and returned.

        Args:
            rows: for dropout, addresses of media [B, S, 2] and own tokens [B, Q, L, 2], or None.
            channels: addresses of the channels [2, 2, H], or None.

        Returns:
            media [B, S, H] (S = 0 with `last`), own [B, Q, L, H] (L = 1 with `last`), statistics.
        """
        read_media, read_own = media_BSH, own_BQLH
        if last:
            media_BSH, own_BQLH = media_BSH[:, :0], own_BQLH[:, :, :1]
        (B, S, H), (Q, L) = media_BSH.shape, own_BQLH.shape[1:3]
        x_BTH = torch.cat([media_BSH, own_BQLH.reshape(B, Q * L, H)], dim=1)
        read = torch.cat([read_media, read_own.flatten(1, 2)], dim=1)
        mask_BT = torch.cat([media_mask_BS[:, :S], own_mask_BQL[:, :, :L].reshape(B, Q * L)], dim=1)

        first = second = rows_BT2 = None
        if rows is not None:
            rows_BT2 = torch.cat([rows[0][:, :S], rows[1][:, :, :L].reshape(B, Q * L, 2)], dim=1)
            first, second = channels

        normed = self.attention_norm(read)
        # Without `last`, the readers are the read; do not normalise twice.
        query = self.query(self.attention_norm(x_BTH) if last else normed)
        key, value = self.key_value(normed).chunk(2, dim=-1)
        attend = self._attend_prefix if self.prefix else self._attend_full
        attended = attend(*map(self._split, (query, key, value)), S, media_mask_BS, own_mask_BQL)
        attended_BTH = self.out(attended.transpose(1, 2).flatten(2))
        x_BTH = x_BTH + self.dropout(attended_BTH, rows_BT2, first)

        y_BTH, stats = self.moe(self.moe_norm(x_BTH), mask_BT)
        x_BTH = x_BTH + self.dropout(y_BTH, rows_BT2, second)
        return x_BTH[:, :S], x_BTH[:, S:].view(B, Q, L, H), stats

    def _split(self, x_BTH: torch.Tensor) -> torch.Tensor:
        """[B, T, H] -> [B, h, T, d]."""
        return x_BTH.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _attend_full(self, query, key, value, S, media_mask_BS, own_mask_BQL):
        """Every token reads every real token; Q is 1."""
        mask = torch.cat([media_mask_BS, own_mask_BQL.flatten(1)], dim=1)[:, None, None]
        # A padded block has nothing to read; its decision token reads itself, and is ignored.
        mask = mask | ~mask.any(dim=-1, keepdim=True)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=_additive(mask, query.dtype)
        )

    def _attend_prefix(self, query, key, value, S, media_mask_BS, own_mask_BQL):
        """Media reads media; each question reads the media and itself."""
        read_S, (Q, read_L) = media_mask_BS.shape[1], own_mask_BQL.shape[1:]
        key_media, key_own = key[:, :, :read_S], key[:, :, read_S:].unflatten(2, (Q, read_L))
        value_media, value_own = (
            value[:, :, :read_S],
            value[:, :, read_S:].unflatten(2, (Q, read_L)),
        )
        query_media, query_own = query[:, :, :S], query[:, :, S:]
        media_mask = media_mask_BS[:, None, None]

        parts = []
        if S:
            # Padding may read anything; nobody reads padding.
            readable = media_mask | ~media_mask.any(dim=-1, keepdim=True)
            parts.append(
                F.scaled_dot_product_attention(
                    query_media,
                    key_media,
                    value_media,
                    attn_mask=_additive(readable, query.dtype),
                )
            )
        lowest = torch.finfo(query.dtype).min
        scale = query.shape[-1] ** -0.5
        per_question = query_own.unflatten(2, (Q, -1))  # [B, h, Q, L, d]
        scores_own = per_question @ key_own.transpose(-1, -2)  # [B, h, Q, L, read_L]
        scores_own = torch.where(own_mask_BQL[:, None, :, None], scores_own * scale, lowest)
        scores_media = query_own @ key_media.transpose(-1, -2)  # [B, h, Q * L, S]
        scores_media = torch.where(media_mask, scores_media * scale, lowest)
        scores = torch.cat([scores_media.unflatten(2, (Q, -1)), scores_own], dim=-1)
        weights_media, weights_own = scores.softmax(dim=-1).split([read_S, read_L], dim=-1)
        read = weights_media.flatten(2, 3) @ value_media + (weights_own @ value_own).flatten(2, 3)
        return torch.cat([*parts, read], dim=2)


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to be added to scores: 0 where it may be read, minus infinity elsewhere.

    Attention would make it from the mask as well, with `masked_fill_`, which overflows on DirectML.
    """
    return torch.where(mask, 0.0, -torch.inf).to(dtype)
