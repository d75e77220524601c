"""Running a model over a whole dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from arbiter.features.batch import assemble
from arbiter.features.dataset import FeatureDataset
from arbiter.features.prefetch import prefetch
from arbiter.features.sampler import blocks_of
from arbiter.hardware.distributed import ALONE, Ranks
from arbiter.model.decision_model import ArchitectureConfig, DecisionModel

_QUESTIONS_PER_BLOCK = 16


@dataclass(frozen=True)
class Predictions:
    """Scores for the N samples of a dataset, in its order; K is the largest candidate count.

    Attributes:
        logits: float32 [N, K], lowest finite value where padded.
        draft_logits: float32 [N, K].
        mask: bool [N, K].
        answer: int64 [N], -1 where unknown.
    """

    logits: np.ndarray
    draft_logits: np.ndarray
    mask: np.ndarray
    answer: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits, float64 [N, K]; exactly 0 where padded."""
        return softmax(self.logits, self.mask)


def questions_per_block(config: ArchitectureConfig) -> int:
    """Questions that are asked together about one media set.

    With full attention each takes its own copy of the media, so that nothing is saved by it.
    """
    return 1 if config.attention == "full" else _QUESTIONS_PER_BLOCK


def softmax(logits: np.ndarray, mask: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Softmax over real candidates in float64, [N, K]; exactly 0 where padded."""
    shifted = np.where(mask, logits.astype(np.float64) / temperature, -np.inf)
    shifted -= shifted.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@torch.no_grad()
def predict(
    model: DecisionModel,
    dataset: FeatureDataset,
    batch_size: int,
    device: torch.device,
    ahead: int = 2,
    with_media: bool = True,
    ranks: Ranks = ALONE,
) -> Predictions:
    """Score every sample, in evaluation mode; the model's mode is restored.

    Args:
        batch_size: blocks (media sets with their questions) at a time.
        ahead: batches prepared in advance.
        with_media: False leaves all images, video and audio out.
        ranks: the processes that share the work, each with the same model; all get all scores.
    """
    was_training = model.training
    model.eval()
    widest = int(dataset.candidates.offsets.diff().max())
    logits = torch.zeros(len(dataset), widest)
    draft_logits = logits.clone()
    mask = torch.zeros(len(dataset), widest, dtype=torch.uint8)
    blocks = blocks_of(dataset, questions_per_block(model.config))
    batches = (assemble(dataset, part) for part in ranks.deal(blocks.split(batch_size)))
    for batch in prefetch(batches, ahead):
        moved = batch.to(device)
        output = model(moved if with_media else moved.without_media())
        rows = batch.sample[batch.question_mask]
        width = batch.candidate_mask.shape[-1]
        logits[rows, :width] = output.logits.float().cpu()[batch.question_mask]
        draft_logits[rows, :width] = output.draft_logits.float().cpu()[batch.question_mask]
        mask[rows, :width] = batch.candidate_mask[batch.question_mask].to(mask.dtype)
    model.train(was_training)
    # A sample was scored by one process, and is zero in all others.
    for part in (logits, draft_logits, mask):
        ranks.sum_(part)
    real, lowest = mask.bool(), torch.finfo(torch.float32).min
    logits, draft_logits = (
        torch.where(real, part, lowest).numpy() for part in (logits, draft_logits)
    )
    return Predictions(logits, draft_logits, real.numpy(), dataset.answer.numpy())
