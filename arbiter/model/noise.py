"""Noise for deliberation: what is switched off and nudged in one stochastic pass.

Masks are shared by all own tokens of a question (variational dropout, Gal and Ghahramani, 2016), so
that they depend neither on padding nor on neighbours. Media tokens are left alone: they are
computed once for all passes. Numbers come from a generator addressed by the sample's content.

Shape letters: B blocks, Q questions, N layers, H hidden, E routed experts, P passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from arbiter.seeds import generator


@dataclass(frozen=True)
class LayerNoise:
    """The noise of one layer: two dropout factors, and what is added to router logits."""

    attention_BQH: torch.Tensor
    experts_BQH: torch.Tensor
    router_BQE: torch.Tensor


@dataclass(frozen=True)
class Noise:
    """The noise of one pass of each question.

    Attributes:
        keep: float32 [B, Q, 2 N + 1, H], 0 or 1 / (1 - dropout): of each layer's two branches, and
            of the decision token in the end.
        router: float32 [B, Q, N, E].
    """

    keep: torch.Tensor
    router: torch.Tensor

    @property
    def decision_BQH(self) -> torch.Tensor:
        """The factor of the decision token."""
        return self.keep[:, :, -1]

    def layer(self, number: int) -> LayerNoise:
        """The part of one layer."""
        return LayerNoise(
            self.keep[:, :, 2 * number], self.keep[:, :, 2 * number + 1], self.router[:, :, number]
        )

    def one_question_a_block(self) -> Noise:
        """[B, Q, ...] as [B * Q, 1, ...]."""
        return Noise(self.keep.flatten(0, 1)[:, None], self.router.flatten(0, 1)[:, None])


@dataclass(frozen=True)
class NoiseSource:
    """Draws the noise of samples.

    Attributes:
        seed: of all streams.
        passes: stochastic passes of a sample.
        dropout: share that is switched off.
        router_scale: standard deviation of what is added to router logits.
        num_layers, hidden_dim, num_experts: of the model.
    """

    seed: int
    passes: int
    dropout: float
    router_scale: float
    num_layers: int
    hidden_dim: int
    num_experts: int

    def draw(self, digests: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
        """The noise of R samples, named by their contents.

        Returns:
            keep [R, P, 2 N + 1, H] and router [R, P, N, E], float32.
        """
        keep = np.empty(
            (len(digests), self.passes, 2 * self.num_layers + 1, self.hidden_dim), np.float32
        )
        router = np.empty(
            (len(digests), self.passes, self.num_layers, self.num_experts), np.float32
        )
        for place, digest in enumerate(digests):
            rng = generator(self.seed, "deliberation", digest.hex())
            keep[place] = rng.random(keep.shape[1:], np.float32) >= self.dropout
            router[place] = rng.standard_normal(router.shape[1:], np.float32)
        return (
            torch.from_numpy(keep / np.float32(1 - self.dropout)),
            torch.from_numpy(router * np.float32(self.router_scale)),
        )
