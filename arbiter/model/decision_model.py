"""The decision model: tensors in, scores over candidates out.

It holds no encoder: it is built from the encoder's `FeatureSpec` and sees features only.
Shape letters as in `fusion.py` and `heads.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from arbiter.config import option
from arbiter.encoders.base import FeatureSpec
from arbiter.errors import ConfigError
from arbiter.features.batch import DecisionBatch, MediaTokens, TextTokens, media_specs
from arbiter.model.dropout import Noise
from arbiter.model.fusion import FusionLayer
from arbiter.model.heads import DecisionHead, DraftHead, mask_logits
from arbiter.model.latents import MediaLatents
from arbiter.model.moe import MixtureOfExperts, MoEConfig, RoutingStats
from arbiter.sample import Modality, Sample

CONTEXT = "context"
_QUESTION = "question"
_PATCHES = "patches"
MODALITY_OF = {
    "image": Modality.IMAGE,
    _PATCHES: Modality.IMAGE,
    "video": Modality.VIDEO,
    "audio": Modality.AUDIO,
}


@dataclass
class ArchitectureConfig:
    """Size and kind of the fusion model."""

    hidden_dim: int = option(128, help="Width of every token.", low=8)
    num_heads: int = option(4, help="Attention heads; must divide hidden_dim.", low=1)
    num_layers: int = option(3, help="Fusion layers.", low=1)
    attention: str = option(
        "prefix",
        help="prefix: questions about one image share its tokens; full: all tokens see all tokens; "
        "perceiver: as prefix, but questions see num_latents latents in the media's place.",
        choices=("prefix", "full", "perceiver"),
    )
    num_latents: int = option(32, help="Latents that read the media; for perceiver only.", low=1)
    dropout: float = option(0.0, help="Dropout of residual branches and heads.", low=0, below=1)
    scoring_dim: int = option(128, help="Width of the decision head.", low=8)
    draft_dim: int = option(64, help="Width of the draft head.", low=8)
    moe: MoEConfig = option(MoEConfig(), help="Mixture of experts.")

    def check(self) -> None:
        """Heads share the width evenly."""
        if self.hidden_dim % self.num_heads:
            divisors = [n for n in range(1, 33) if self.hidden_dim % n == 0]
            raise ConfigError(
                "num_heads",
                self.num_heads,
                f"must divide hidden_dim {self.hidden_dim}, as {', '.join(map(str, divisors))} do",
            )


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


def inputs_for(samples: Iterable[Sample], spec: FeatureSpec) -> tuple[str, ...]:
    """The inputs that a model of these samples needs, in the model's order."""
    return inputs_of(frozenset().union(*(sample.modalities for sample in samples)), spec)


def inputs_of(present: frozenset[Modality], spec: FeatureSpec) -> tuple[str, ...]:
    """The inputs that a model of these modalities needs, in the model's order."""
    kinds = [kind for kind in media_specs(spec) if MODALITY_OF[kind] in present]
    return (*([CONTEXT] if Modality.CONTEXT in present else []), *kinds)


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
        text_dim = spec["text"]["pooled"].dim
        kinds = {kind: s for kind, s in media_specs(spec).items() if kind in inputs}
        self._grids = {kind: s.grid for kind, s in kinds.items() if s.grid}
        hidden = config.hidden_dim

        self.embed_question = nn.Linear(text_dim, hidden)
        self.condition = nn.Linear(text_dim, hidden)
        self.embed_context = nn.Linear(text_dim, hidden) if CONTEXT in inputs else None
        self.embed_media = nn.ModuleDict({k: nn.Linear(s.dim, hidden) for k, s in kinds.items()})
        self.position_embedding = nn.ParameterDict(
            {k: _embedding(int(np.prod(grid)), hidden) for k, grid in self._grids.items()}
        )
        types = ("decision", "question", *(i for i in (CONTEXT, *kinds) if i in inputs))
        self.type_embedding = nn.ParameterDict({name: _embedding(hidden) for name in types})
        self.latents = None
        if config.attention == "perceiver" and kinds:
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
        self.embed_text_tokens, self.text_token_type = None, nn.ParameterDict()
        if "tokens" in spec["text"]:
            stream = spec["text"]["tokens"]
            self.embed_text_tokens = nn.Linear(stream.dim, hidden)
            self.text_token_position = _embedding(stream.grid[0], hidden)
            texts = [_QUESTION, *([CONTEXT] if CONTEXT in inputs else [])]
            self.text_token_type = nn.ParameterDict({name: _embedding(hidden) for name in texts})
        aligned = spec.aligned and "image" in kinds
        self.head = DecisionHead(hidden, text_dim, config.scoring_dim, config.dropout, aligned)
        pooled = {kind: s.dim for kind, s in kinds.items() if kind != _PATCHES}
        self.draft = DraftHead(text_dim, pooled, config.draft_dim, CONTEXT in inputs, aligned)

    def forward(self, batch: DecisionBatch, noise: Noise | None = None) -> DecisionOutput:
        """Score every candidate of every question. Media the model has no input for is ignored.

        Args:
            batch: on the model's device.
            noise: addresses for dropout, in training; without them nothing is dropped.
        """
        question_BQD = F.embedding(batch.question, batch.texts)
        context_BQD = None
        if self.embed_context is not None:
            context_BQD = F.embedding(batch.context, batch.texts) * batch.context_mask[..., None]
        media = {kind: tokens for kind, tokens in batch.media.items() if kind in self.embed_media}

        own_BQLH, own_mask_BQL = self._own_tokens(batch, question_BQD, context_BQD)
        media_BSH, media_mask_BS = self._media_tokens(media, own_BQLH)
        rows = None if noise is None else self._rows(noise, batch, media)
        decision_BQH, routing = self._fuse(
            media_BSH, own_BQLH, media_mask_BS, own_mask_BQL, noise, rows
        )
        pooled = {k: _mean(tokens) for k, tokens in media.items() if k != _PATCHES}
        # Foils are scored as if they were further candidates.
        scored = batch.candidates
        if batch.foils is not None:
            scored = torch.cat([batch.candidates, batch.foils], dim=-1)
        scores = self.head(decision_BQH, batch.texts, scored, pooled.get("image"), noise)
        candidates = batch.candidates.shape[-1]
        logits, foil_logits = scores, None
        if batch.foils is not None:
            logits, foil_logits = scores[..., :candidates], scores[..., candidates:]
            foil_logits = mask_logits(foil_logits, batch.foil_mask)
        draft = self.draft(question_BQD, context_BQD, pooled, batch.texts, batch.candidates)
        return DecisionOutput(
            mask_logits(logits, batch.candidate_mask),
            mask_logits(draft, batch.candidate_mask),
            routing,
            foil_logits,
        )

    def finish_step(self) -> None:
        """Tell every router that an optimizer step is over."""
        for layer in self.layers:
            layer.moe.finish_step()

    def _own_tokens(self, batch, question_BQD, context_BQD) -> tuple[torch.Tensor, torch.Tensor]:
        """A question's own tokens [B, Q, L, H]: decision, question, context, and their words."""
        tokens = [
            self.condition(question_BQD) + self.type_embedding["decision"],
            self.embed_question(question_BQD) + self.type_embedding["question"],
        ]
        masks = [batch.question_mask, batch.question_mask]
        if context_BQD is not None:
            tokens.append(self.embed_context(context_BQD) + self.type_embedding[CONTEXT])
            masks.append(batch.context_mask)
        own_BQLH, own_mask_BQL = torch.stack(tokens, dim=2), torch.stack(masks, dim=2)
        for name in (n for n in self.text_token_type if n in batch.text_tokens):
            words_BQTH, mask_BQT = self._words(name, batch.text_tokens[name])
            own_BQLH = torch.cat([own_BQLH, words_BQTH], dim=2)
            own_mask_BQL = torch.cat([own_mask_BQL, mask_BQT], dim=2)
        return own_BQLH, own_mask_BQL

    def _words(self, name: str, text: TextTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of each question's own text of one kind: [B, Q, T, H] and mask [B, Q, T]."""
        tokens, last = text.tokens, len(self.text_token_position) - 1
        position_VTH = F.embedding(
            tokens.positions[..., 0].clamp(max=last), self.text_token_position
        )
        # Each distinct text is embedded once, then looked up by its questions.
        words_VTH = (
            self.embed_text_tokens(tokens.values) + position_VTH + self.text_token_type[name]
        )
        # Not words_VTH[text.index], whose backward is an indexed write, which crashed DirectML.
        words_BQTH = F.embedding(text.index, words_VTH.flatten(1)).unflatten(2, words_VTH.shape[1:])
        return words_BQTH, tokens.mask[text.index] & text.present[..., None]

    def _media_tokens(
        self, media: dict[str, MediaTokens], like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All media tokens of each block [B, S, H]; S = 0 when no block has any."""
        parts = [like.new_zeros(len(like), 0, like.shape[-1])]
        masks = [torch.zeros(len(like), 0, dtype=torch.bool, device=like.device)]
        for kind, tokens in media.items():
            x_BTH = self.embed_media[kind](tokens.values) + self.type_embedding[kind]
            if kind in self.position_embedding:
                x_BTH = x_BTH + F.embedding(
                    self._flat_position(kind, tokens), self.position_embedding[kind]
                )
            parts.append(x_BTH)
            masks.append(tokens.mask)
        return torch.cat(parts, dim=1), torch.cat(masks, dim=1)

    def _rows(
        self, noise: Noise, batch: DecisionBatch, media: dict[str, MediaTokens]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Addresses of the media tokens [B, S, 2] and of the own tokens [B, Q, L, 2].

        They count within each kind of token, as padding moves the places of the kinds after it.
        """
        names = [name for name in self.text_token_type if name in batch.text_tokens]
        own = [noise.tokens(noise.question, "own", 2 if self.embed_context is None else 3)]
        own += [
            noise.tokens(noise.question, name, batch.text_tokens[name].tokens.mask.shape[1])
            for name in names
        ]
        block = noise.block
        seen = [noise.tokens(block, kind, t.mask.shape[1]) for kind, t in media.items()]
        return torch.cat([block[:, None][:, :0], *seen], dim=1), torch.cat(own, dim=2)

    def _flat_position(self, kind: str, tokens: MediaTokens) -> torch.Tensor:
        """Row-major index into the position table; beyond its end, the last place of an axis."""
        index = torch.zeros_like(tokens.positions[..., 0])
        for axis, size in enumerate(self._grids[kind]):
            index = index * size + tokens.positions[..., axis].clamp(max=size - 1)
        return index

    def _fuse(
        self, media_BSH, own_BQLH, media_mask_BS, own_mask_BQL, noise, rows
    ) -> tuple[torch.Tensor, list[RoutingStats]]:
        """Run the layers; the decision tokens [B, Q, H] and the routers' statistics."""
        B, Q = own_BQLH.shape[:2]
        if self.latents is not None and media_BSH.shape[1]:
            addresses = (None, None)
            if noise is not None:
                count = len(self.latents.latents_PH)
                addresses = (
                    noise.tokens(noise.block, "latents", count),
                    self._channels(noise, "latents"),
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
            if rows is not None:
                rows = (rows[0].repeat_interleave(Q, dim=0), rows[1].flatten(0, 1)[:, None])
        routing = []
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            channels = None if noise is None else self._channels(noise, f"layer {number}")
            media_BSH, own_BQLH, stats = layer(
                media_BSH, own_BQLH, media_mask_BS, own_mask_BQL, last, rows, channels
            )
            if stats is not None:
                routing.append(RoutingStats(_block_mean(stats.probabilities, B), stats.load))
        return self.norm(own_BQLH[:, :, 0]).view(B, Q, -1), routing

    def _channels(self, noise: Noise, site: str) -> torch.Tensor:
        """Of the two dropouts of a layer: [2, 2, H]."""
        width = self.config.hidden_dim
        return torch.stack([noise.channels(f"{site}/{i}", width) for i in range(2)])


def _embedding(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * 0.02)


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
