"""Heads: scoring candidates against what was understood.

Shape letters: B blocks, Q questions, K candidates, U distinct texts, H hidden, C scoring width.
Candidates are embedded once per distinct text and looked up.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from arbiter.model.dropout import Dropout, Noise


class Projection(nn.Sequential):
    """Linear, LayerNorm, GELU, Dropout, Linear."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float):
        super().__init__(
            nn.Linear(in_dim, out_dim),
            nn.LayerNorm(out_dim),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(out_dim, out_dim),
        )

    def forward(
        self,
        x: torch.Tensor,
        rows: torch.Tensor | None = None,
        channels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[..., in] -> [..., out]; `rows` and `channels` as for `Dropout`."""
        linear, norm, gelu, dropout, out = self
        return out(dropout(gelu(norm(linear(x))), rows, channels))


def mask_logits(logits_BQK: torch.Tensor, mask_BQK: torch.Tensor) -> torch.Tensor:
    """Padded candidates get the lowest finite value: probability exactly 0, never NaN."""
    return torch.where(mask_BQK, logits_BQK, torch.finfo(logits_BQK.dtype).min)


class ImageResidual(nn.Module):
    """Learned scale x cosine(image, candidate): what an aligned encoder knows before any training.

    An absent image is a zero vector, whose cosine with anything is zero.
    """

    def __init__(self):
        super().__init__()
        # A tenth of the scale that CLIP itself learns: a hint, not a verdict.
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(
        self, image_BD: torch.Tensor, texts_UD: torch.Tensor, candidates_BQK: torch.Tensor
    ) -> torch.Tensor:
        """Scores [B, Q, K], float32."""
        image_BD, texts_UD = F.normalize(image_BD.float(), dim=-1), F.normalize(texts_UD.float())
        candidates_BQKD = F.embedding(candidates_BQK, texts_UD)
        return self.scale.float() * (image_BD[:, None, None] * candidates_BQKD).sum(dim=-1)


class DecisionHead(nn.Module):
    """score = dot(c, a) / sqrt(C) + MLP([c, a]) + image residual, over a learned temperature.

    `aligned` says that images and candidates share a space; only then is there a residual.
    """

    def __init__(
        self, hidden_dim: int, text_dim: int, scoring_dim: int, dropout: float, aligned: bool
    ):
        super().__init__()
        self.decision = Projection(hidden_dim, scoring_dim, dropout)
        self.candidate = Projection(text_dim, scoring_dim, dropout)
        # The MLP's first layer on [c, a], split so that its candidate half runs once per text.
        self.mlp_decision = nn.Linear(scoring_dim, scoring_dim)
        self.mlp_candidate = nn.Linear(scoring_dim, scoring_dim, bias=False)
        self.mlp_out = nn.Linear(scoring_dim, 1, bias=False)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.image_residual = ImageResidual() if aligned else None

    def forward(
        self,
        decision_BQH: torch.Tensor,
        texts_UD: torch.Tensor,
        candidates_BQK: torch.Tensor,
        image_BD: torch.Tensor | None = None,
        noise: Noise | None = None,
    ) -> torch.Tensor:
        """Scores [B, Q, K], float32.

        Args:
            image_BD: the pooled image, or None without any.
            noise: addresses for dropout, or None.
        """
        asked = known = ()
        if noise is not None:
            width = self.mlp_decision.in_features
            asked = (noise.question, noise.channels("head/decision", width))
            known = (noise.text, noise.channels("head/candidate", width))
        decision = self.decision(decision_BQH, *asked)
        texts_UC = self.candidate(texts_UD, *known)
        candidates_BQKC = F.embedding(candidates_BQK, texts_UC)
        dot = (decision[:, :, None] * candidates_BQKC).sum(dim=-1) * decision.shape[-1] ** -0.5
        hidden = self.mlp_decision(decision)[:, :, None] + F.embedding(
            candidates_BQK, self.mlp_candidate(texts_UC)
        )
        scores = (dot + self.mlp_out(F.gelu(hidden)).squeeze(-1)).float()
        if self.image_residual is not None and image_BD is not None:
            scores = scores + self.image_residual(image_BD, texts_UD, candidates_BQK)
        return scores * torch.exp(-self.log_temperature.float())


class DraftHead(nn.Module):
    """A first answer from pooled inputs alone, before any fusion.

    score = dot(MLP(question + context + pooled media), candidate) / sqrt(C) + image residual.
    """

    def __init__(
        self,
        text_dim: int,
        media_dims: dict[str, int],
        draft_dim: int,
        context: bool,
        aligned: bool,
    ):
        super().__init__()
        self.question = nn.Linear(text_dim, draft_dim)
        self.context = nn.Linear(text_dim, draft_dim, bias=False) if context else None
        self.media = nn.ModuleDict(
            {kind: nn.Linear(dim, draft_dim, bias=False) for kind, dim in media_dims.items()}
        )
        self.mix = nn.Sequential(
            nn.LayerNorm(draft_dim), nn.GELU(), nn.Linear(draft_dim, draft_dim), nn.GELU(),
            nn.Linear(draft_dim, draft_dim),
        )  # fmt: skip
        self.candidate = nn.Linear(text_dim, draft_dim, bias=False)
        self.image_residual = ImageResidual() if aligned else None

    def forward(
        self,
        question_BQD: torch.Tensor,
        context_BQD: torch.Tensor | None,
        media: dict[str, torch.Tensor],
        texts_UD: torch.Tensor,
        candidates_BQK: torch.Tensor,
    ) -> torch.Tensor:
        """Scores [B, Q, K], float32.

        Args:
            question_BQD: text features.
            context_BQD: text features, zero where absent; or None.
            media: kind -> pooled features [B, D], zero where absent.
            texts_UD, candidates_BQK: distinct texts, and the candidates among them.
        """
        x_BQC = self.question(question_BQD)
        if self.context is not None and context_BQD is not None:
            x_BQC = x_BQC + self.context(context_BQD)
        for kind, pooled_BD in media.items():
            x_BQC = x_BQC + self.media[kind](pooled_BD)[:, None]
        candidates_BQKC = F.embedding(candidates_BQK, self.candidate(texts_UD))
        scores = (self.mix(x_BQC)[:, :, None] * candidates_BQKC).sum(dim=-1)
        scores = scores.float() * x_BQC.shape[-1] ** -0.5
        if self.image_residual is not None and "image" in media:
            scores = scores + self.image_residual(media["image"], texts_UD, candidates_BQK)
        return scores
