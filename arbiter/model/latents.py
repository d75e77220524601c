"""A few latents that read a block's media once, so that fusion costs the same for any number of
patches (Jaegle et al., 2021, Perceiver; with the media read once, as in Alayrac et al., 2022).

Shape letters as in `fusion.py`; P latents.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from arbiter.model.dropout import Dropout


class MediaLatents(nn.Module):
    """Learned latents, one cross-attention to all media tokens, and one feed-forward layer."""

    def __init__(self, num_latents: int, hidden_dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.latents_PH = nn.Parameter(torch.randn(num_latents, hidden_dim) * 0.02)
        self.latent_norm = nn.LayerNorm(hidden_dim)
        self.media_norm = nn.LayerNorm(hidden_dim)
        self.query = nn.Linear(hidden_dim, hidden_dim)
        self.key_value = nn.Linear(hidden_dim, 2 * hidden_dim)
        self.out = nn.Linear(hidden_dim, hidden_dim)
        self.ffn = nn.Sequential(
            nn.LayerNorm(hidden_dim), nn.Linear(hidden_dim, 2 * hidden_dim), nn.GELU(),
            nn.Linear(2 * hidden_dim, hidden_dim),
        )  # fmt: skip
        self.dropout = Dropout(dropout)

    def forward(
        self,
        media_BSH: torch.Tensor,
        mask_BS: torch.Tensor,
        rows: torch.Tensor | None = None,
        channels: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents [B, P, H] and their mask [B, P]; a block without media has none.

        Args:
            rows, channels: addresses of the latents [B, P, 2] and of channels [2, 2, H] for
                dropout, or None.
        """
        first, second = (None, None) if channels is None else channels
        present_B1 = mask_BS.any(dim=1, keepdim=True)
        latents_BPH = self.latents_PH.expand(len(media_BSH), -1, -1)
        query = self._split(self.query(self.latent_norm(latents_BPH)))
        key, value = map(self._split, self.key_value(self.media_norm(media_BSH)).chunk(2, dim=-1))
        # Where there is nothing to read, padding is read, and nobody reads what comes of it.
        readable = (mask_BS | ~present_B1)[:, None, None]
        bias = torch.where(readable, 0.0, torch.finfo(query.dtype).min).to(query.dtype)
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        latents_BPH = latents_BPH + self.dropout(
            self.out(read.transpose(1, 2).flatten(2)), rows, first
        )
        latents_BPH = latents_BPH + self.dropout(self.ffn(latents_BPH), rows, second)
        return latents_BPH, present_B1.expand(-1, len(self.latents_PH))

    def _split(self, x_BTH: torch.Tensor) -> torch.Tensor:
        """[B, T, H] -> [B, h, T, d]."""
        return x_BTH.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
