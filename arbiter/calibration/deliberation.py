"""Deliberation: does an answer hold when the model is disturbed, and against near wrong answers?

T stochastic passes with dropout and router noise (Monte Carlo dropout, Gal and Ghahramani, 2016)
score the candidates; the answer is the most probable one by the mean of their probabilities. In a
tournament it then meets the nearest foils of the bank in every pass.

    stability = mean over passes of [pass chooses the answer] * share of foils that the answer beats

lies in [0, 1] and is 1 when nothing ever came between. Without a bank there is no tournament, and
the share is 1. From 0.80 a decision is certified; what that is worth is measured on held-out data.

Shape letters: B blocks, Q questions, K candidates, T passes, F foils, U distinct texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from arbiter.config import option
from arbiter.features.batch import DecisionBatch
from arbiter.features.content import sample_digests
from arbiter.features.dataset import FeatureDataset
from arbiter.model.bank import TravellingBank
from arbiter.model.decision_model import DecisionModel, Fused
from arbiter.model.heads import mask_logits
from arbiter.model.noise import Noise, NoiseSource
from arbiter.model.predict import Running, batches, collect

CERTIFIED = 0.80
"""The stability from which a decision is certified, as in the predecessor."""


@dataclass
class DeliberationConfig:
    """Stochastic passes, and the foils that travel with a model."""

    passes: int = option(8, help="Stochastic passes; 0 leaves deliberation out.", low=0, high=256)
    dropout: float = option(0.1, help="Share switched off in a pass.", low=0, below=1)
    router_noise: float = option(
        0.1, help="Standard deviation of what is added to router logits.", low=0, high=100
    )
    bank: int = option(
        4096, help="Foils that travel with a model trained against foils; 0 for none.", low=0
    )


@dataclass(frozen=True)
class Deliberated:
    """Of N samples.

    Attributes:
        logits: float32 [N, K], logarithms of the passes' mean probabilities; lowest where padded.
        mask: bool [N, K].
        stability: float64 [N] in [0, 1].
        collision: bool [N], whether a foil's mean score is at least the answer's.
    """

    logits: np.ndarray
    mask: np.ndarray
    stability: np.ndarray
    collision: np.ndarray


def noise_source(model: DecisionModel, config: DeliberationConfig, seed: int) -> NoiseSource:
    """The noise of a model."""
    size = model.config
    return NoiseSource(
        seed, config.passes, config.dropout, config.router_noise,
        size.num_layers, size.hidden_dim, size.moe.num_routed_experts,
    )  # fmt: skip


@torch.no_grad()
def deliberate(
    model: DecisionModel,
    dataset: FeatureDataset,
    source: NoiseSource,
    bank: TravellingBank | None,
    running: Running,
) -> Deliberated:
    """Deliberate over every sample; the model is in evaluation mode.

    Noise is addressed by (seed, content of the sample), so neighbours have no influence.
    """
    digests = sample_digests(dataset)
    stability, collision = torch.zeros(len(dataset)).double(), torch.zeros(len(dataset)).bool()
    # A pass costs a question's own tokens; the media of a block is computed once for all of them.
    smaller = Running(running.device, max(running.batch_size // source.passes, 1), running.ahead)

    def score(batch: DecisionBatch) -> tuple[torch.Tensor]:
        repeated = batch.repeat_questions(source.passes).to(running.device)
        fused = model.fuse(repeated, _noise(batch, digests, source, running.device))
        # Few numbers from here on: on the CPU, where every device's counting is the same.
        scores = model.score(fused, repeated.texts, repeated.candidates).float().cpu()
        scores_BQTK = scores.unflatten(1, (-1, source.passes))
        scores_BQTK = mask_logits(scores_BQTK, batch.candidate_mask[:, :, None])
        mean_BQK = scores_BQTK.log_softmax(dim=-1).logsumexp(dim=2) - math.log(source.passes)
        answer_BQ = mean_BQK.argmax(dim=-1)
        index = answer_BQ[..., None, None].expand(*scores_BQTK.shape[:3], 1)
        answer_BQT = scores_BQTK.gather(-1, index)[..., 0]
        held_BQT = (scores_BQTK.argmax(dim=-1) == answer_BQ[..., None]).double()
        rows = batch.sample[batch.question_mask]
        if bank is not None:
            wins_BQT, hit_BQ = _tournament(
                model, fused, batch, dataset, bank, answer_BQ, answer_BQT
            )
            held_BQT = held_BQT * wins_BQT
            collision[rows] = hit_BQ[batch.question_mask]
        stability[rows] = held_BQT.mean(dim=-1)[batch.question_mask]
        return (mask_logits(mean_BQK, batch.candidate_mask),)

    (logits,), mask = collect(dataset, batches(model, dataset, smaller), score)
    return Deliberated(logits, mask, stability.numpy(), collision.numpy())


def _noise(
    batch: DecisionBatch, digests: list[bytes], source: NoiseSource, device: torch.device
) -> Noise:
    """[B, Q * T, ...]; zero for padding, which nobody reads."""
    places = batch.question_mask
    drawn = source.draw([digests[row] for row in batch.sample[places].tolist()])
    spread = []
    for values in drawn:
        out = values.new_zeros(*places.shape, *values.shape[1:])
        out[places] = values
        spread.append(out.flatten(1, 2).to(device))
    return Noise(*spread)


def _tournament(
    model: DecisionModel,
    fused: Fused,
    batch: DecisionBatch,
    dataset: FeatureDataset,
    bank: TravellingBank,
    answer_BQ: torch.Tensor,
    answer_BQT: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of foils that the answer beats in each pass [B, Q, T], and collisions [B, Q]."""
    foils_BQF = torch.full((*answer_BQ.shape, bank.config.count), -1)
    places = batch.question_mask
    rows = batch.sample[places].tolist()
    text_BQ = batch.candidates.gather(-1, answer_BQ[..., None])[..., 0]
    candidates = [dataset.samples[row].candidates for row in rows]
    foils_BQF[places] = bank.near(batch.texts[text_BQ[places]], candidates)
    passes, device = answer_BQT.shape[-1], fused.decision_BQH.device
    real = (foils_BQF >= 0)[:, :, None]
    distinct, index = torch.unique(foils_BQF.clamp(min=0), return_inverse=True)
    repeated = index.repeat_interleave(passes, dim=1).to(device)
    foil_scores = model.score(fused, bank.features(distinct).to(device), repeated).float().cpu()
    foil_BQTF = foil_scores.unflatten(1, (-1, passes))
    count = real.sum(dim=-1)
    beaten = (real & (answer_BQT[..., None] > foil_BQTF)).sum(dim=-1).double()
    wins_BQT = torch.where(count > 0, beaten / count.clamp(min=1), 1.0)
    ahead = foil_BQTF.mean(dim=2) >= answer_BQT.mean(dim=-1, keepdim=True)
    return wins_BQT, (ahead & real[:, :, 0]).any(dim=-1)
