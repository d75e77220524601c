"""The decision model: tensors in, scores over candidates out.

It holds no encoder: it is built from the encoder's `FeatureSpec` and sees features only.
Shape letters as in `fusion.py` and `heads.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from arbiter.encoders.base import FeatureSpec
from arbiter.features.batch import DecisionBatch, MediaTokens, media_specs
from arbiter.model.architecture import CONTEXT, PATCHES, ArchitectureConfig
from arbiter.model.dropout import DropoutAddresses
from arbiter.model.fusion import FusionLayer
from arbiter.model.heads import DecisionHead, DraftHead, mask_logits
from arbiter.model.latents import MediaLatents
from arbiter.model.moe import MixtureOfExperts, RoutingStats
from arbiter.model.noise import Noise
from arbiter.model.tokens import TokenEmbedder
from arbiter.sample import Modality


@dataclass(frozen=True)
class DecisionOutput:
    """What one forward pass gives.

    Attributes:
        logits: float32 [B, Q, K]; padded candidates have the lowest finite value.
        draft_logits: float32 [B, Q, K], from the draft head.
        routing: statistics of each layer's router; none with `moe.balance: bias`.
        foil_logits: float32 [B, Q, F], the lowest finite value where there is no foil; None for a
            batch without foils.
    """

    logits: torch.Tensor
    draft_logits: torch.Tensor
    routing: list[RoutingStats]
    foil_logits: torch.Tensor | None = None


@dataclass(frozen=True)
class Fused:
    """What a question came to, before any candidate is looked at.

    Attributes:
        decision_BQH: the decision tokens.
        image_BD: the pooled image of each block; None without any.
        routing: statistics of each layer's router.
    """

    decision_BQH: torch.Tensor
    image_BD: torch.Tensor | None
    routing: list[RoutingStats]


class DecisionModel(nn.Module):
    """Fusion of a question with its context and media, and a score for each candidate.

    Args:
        config: size and kind.
        spec: the encoder's features.
        inputs: what the model is trained on, of 'context', 'image', 'patches', 'video', 'audio';
            there are no parameters for anything else.
        dispatch: 'grouped' or 'dense'; the same results, at different speeds on different devices.
    """

    def __init__(
        self,
        config: ArchitectureConfig,
        spec: FeatureSpec,
        inputs: Sequence[str],
        dispatch: str = "grouped",
    ):
        super().__init__()
        self.config = config
        self.inputs = tuple(inputs)
        hidden = config.hidden_dim
        self.tokens = TokenEmbedder(spec, inputs, hidden)
        self.latents = None
        if config.attention == "perceiver" and self.tokens.media:
            self.latents = MediaLatents(
                config.num_latents, hidden, config.num_heads, config.dropout
            )
        self.layers = nn.ModuleList(
            FusionLayer(
                hidden, config.num_heads, config.dropout, config.attention, config.moe, dispatch
            )
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(hidden)
        aligned = spec.aligned and "image" in inputs
        text_dim = spec["text"]["pooled"].dim
        self.head = DecisionHead(hidden, text_dim, config.scoring_dim, config.dropout, aligned)
        pooled = {
            kind: s.dim
            for kind, s in media_specs(spec).items()
            if kind in inputs and kind != PATCHES
        }
        self.draft = DraftHead(text_dim, pooled, config.draft_dim, CONTEXT in inputs, aligned)

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the model was trained on beside question and candidates, by name."""
        return tuple(m.value for m in Modality if m.value in self.inputs)

    def use_dispatch(self, dispatch: str) -> None:
        """Compute experts by 'grouped' or 'dense' dispatch from here on."""
        for layer in self.layers:
            layer.moe.dispatch = dispatch

    def forward(
        self, batch: DecisionBatch, dropout: DropoutAddresses | None = None
    ) -> DecisionOutput:
        """Score every candidate of every question. Media the model has no input for is ignored.

        Args:
            batch: on the model's device.
            dropout: addresses, in training; without them nothing is dropped.
        """
        fused = self.fuse(batch, dropout=dropout)
        # Foils are scored as if they were further candidates.
        scored = batch.candidates
        if batch.foils is not None:
            scored = torch.cat([batch.candidates, batch.foils], dim=-1)
        scores = self.score(fused, batch.texts, scored, dropout)
        candidates = batch.candidates.shape[-1]
        logits, foil_logits = scores, None
        if batch.foils is not None:
            logits, foil_logits = scores[..., :candidates], scores[..., candidates:]
            foil_logits = mask_logits(foil_logits, batch.foil_mask)
        return DecisionOutput(
            mask_logits(logits, batch.candidate_mask),
            self.draft_logits(batch),
            fused.routing,
            foil_logits,
        )

    def decision_logits(self, batch: DecisionBatch) -> torch.Tensor:
        """The decision head's scores alone, float32 [B, Q, K]."""
        scores = self.score(self.fuse(batch), batch.texts, batch.candidates)
        return mask_logits(scores, batch.candidate_mask)

    def draft_logits(self, batch: DecisionBatch) -> torch.Tensor:
        """The draft head's scores, float32 [B, Q, K]; nothing is fused for them."""
        question_BQD, context_BQD = self.tokens.texts(batch)
        pooled = {
            k: _mean(tokens) for k, tokens in self.tokens.known(batch).items() if k != PATCHES
        }
        scores = self.draft(question_BQD, context_BQD, pooled, batch.texts, batch.candidates)
        return mask_logits(scores, batch.candidate_mask)

    def fuse(
        self,
        batch: DecisionBatch,
        noise: Noise | None = None,
        dropout: DropoutAddresses | None = None,
    ) -> Fused:
        """What each question comes to, read with its context and media.

        Args:
            noise: disturbs the questions' own tokens; the media of a block is computed once.
            dropout: addresses, in training.
        """
        own_BQLH, own_mask_BQL = self.tokens.own(batch)
        media_BSH, media_mask_BS = self.tokens.of_media(batch, own_BQLH)
        rows = None if dropout is None else self.tokens.addresses(dropout, batch)
        decision_BQH, routing = self._fuse(
            media_BSH, own_BQLH, media_mask_BS, own_mask_BQL, noise, dropout, rows
        )
        if noise is not None:
            decision_BQH = decision_BQH * noise.decision_BQH
        media = self.tokens.known(batch)
        image_BD = _mean(media["image"]) if "image" in media else None
        return Fused(decision_BQH, image_BD, routing)

    def score(
        self,
        fused: Fused,
        texts_UD: torch.Tensor,
        candidates_BQK: torch.Tensor,
        dropout: DropoutAddresses | None = None,
    ) -> torch.Tensor:
        """The decision head's scores, float32 [B, Q, K], of any texts."""
        return self.head(fused.decision_BQH, texts_UD, candidates_BQK, fused.image_BD, dropout)

    def finish_step(self) -> None:
        """Tell every router that an optimizer step is over."""
        for layer in self.layers:
            layer.moe.finish_step()

    def _fuse(
        self, media_BSH, own_BQLH, media_mask_BS, own_mask_BQL, noise, dropout, rows
    ) -> tuple[torch.Tensor, list[RoutingStats]]:
        """Run the layers; the decision tokens [B, Q, H] and the routers' statistics."""
        B, Q = own_BQLH.shape[:2]
        if self.latents is not None and media_BSH.shape[1]:
            addresses = (None, None)
            if dropout is not None:
                count = len(self.latents.latent_embedding)
                addresses = (
                    dropout.tokens(dropout.block, "latents", count),
                    self._channels(dropout, "latents"),
                )
                rows = (addresses[0], rows[1])
            media_BSH, media_mask_BS = self.latents(media_BSH, media_mask_BS, *addresses)
        if self.config.attention == "full":
            # Each question takes its own copy of the media: B * Q blocks of one question.
            media_BSH = media_BSH.repeat_interleave(Q, dim=0)
            media_mask_BS = media_mask_BS.repeat_interleave(Q, dim=0)
            # Media of a padded question is padding.
            media_mask_BS = media_mask_BS & own_mask_BQL[:, :, :1].reshape(B * Q, 1)
            own_BQLH = own_BQLH.flatten(0, 1)[:, None]
            own_mask_BQL = own_mask_BQL.flatten(0, 1)[:, None]
            noise = None if noise is None else noise.one_question_a_block()
            if rows is not None:
                rows = (rows[0].repeat_interleave(Q, dim=0), rows[1].flatten(0, 1)[:, None])
        routing = []
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            channels = None if dropout is None else self._channels(dropout, f"layer {number}")
            media_BSH, own_BQLH, stats = layer(
                media_BSH, own_BQLH, media_mask_BS, own_mask_BQL, last,
                None if noise is None else noise.layer(number), rows, channels,
            )  # fmt: skip
            if stats is not None:
                routing.append(RoutingStats(_block_mean(stats.probabilities, B), stats.load))
        return self.norm(own_BQLH[:, :, 0]).view(B, Q, -1), routing

    def _channels(self, dropout: DropoutAddresses, site: str) -> torch.Tensor:
        """Of the two dropouts of a layer: [2, 2, H]."""
        width = self.config.hidden_dim
        return torch.stack([dropout.channels(f"{site}/{i}", width) for i in range(2)])


def _mean(tokens: MediaTokens) -> torch.Tensor:
    """The mean of the real tokens [B, D], zero where there are none."""
    weight = tokens.mask.to(tokens.values.dtype)[..., None]
    return (tokens.values * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def _block_mean(probabilities: torch.Tensor, blocks: int) -> torch.Tensor:
    """Router probabilities [B * n, E] averaged to [B, E]; padding rows are zero, and left out."""
    parts_BnE = probabilities.unflatten(0, (blocks, -1))
    real = (parts_BnE.sum(dim=-1, keepdim=True) > 0).sum(dim=1)
    return parts_BnE.sum(dim=1) / real.clamp(min=1)


def count_parameters(model: DecisionModel) -> dict[str, int]:
    """Trainable parameters: all of them, and those that one token meets on its way."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    idle = 0
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            routed = module.w_in_EHF.numel() + module.w_out_EFH.numel()
            share = module.config.top_k / module.config.num_routed_experts
            idle += round(routed * (1 - share))
    return {"trainable": trainable, "active_per_token": trainable - idle}
