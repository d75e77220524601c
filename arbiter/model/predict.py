"""Running a model over a whole dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from arbiter.features.batch import DecisionBatch, assemble
from arbiter.features.dataset import FeatureDataset
from arbiter.features.prefetch import prefetch
from arbiter.features.sampler import blocks_of
from arbiter.hardware.distributed import ALONE, Ranks
from arbiter.model.architecture import ArchitectureConfig
from arbiter.model.decision_model import DecisionModel

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


@dataclass(frozen=True)
class Running:
    """How a model is run over a dataset; nothing here changes a result beyond rounding.

    Attributes:
        device: of the model.
        batch_size: blocks (media sets with their questions) at a time.
        ahead: batches prepared in advance.
    """

    device: torch.device = torch.device("cpu")
    batch_size: int = 32
    ahead: int = 0


def batches(
    model: DecisionModel,
    dataset: FeatureDataset,
    running: Running,
    with_media: bool = True,
    detail: bool = True,
    ranks: Ranks = ALONE,
) -> Iterator[DecisionBatch]:
    """All samples in batches, or this process's share of them; see `assemble` for `detail`."""
    blocks = ranks.deal(
        blocks_of(dataset, questions_per_block(model.config)).split(running.batch_size)
    )
    parts = (assemble(dataset, part, detail) for part in blocks)
    for batch in prefetch(parts, running.ahead):
        yield batch if with_media else batch.without_media()


def collect(
    dataset: FeatureDataset,
    parts: Iterable[DecisionBatch],
    score: Callable[[DecisionBatch], Sequence[torch.Tensor]],
    count: int = 1,
    ranks: Ranks = ALONE,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Scores of every sample, put in the dataset's order.

    Args:
        score: gives `count` scorings [B, Q, K] of a batch.
        ranks: the processes that share the batches; all get all scores.

    Returns:
        Each scoring, float32 [N, K], lowest finite value where padded; and the mask bool [N, K].
    """
    widest = int(dataset.candidates.offsets.diff().max())
    mask = torch.zeros(len(dataset), widest, dtype=torch.uint8)
    scorings = [torch.zeros(mask.shape) for _ in range(count)]
    for batch in parts:
        rows = batch.sample[batch.question_mask]
        width = batch.candidate_mask.shape[-1]
        mask[rows, :width] = batch.candidate_mask[batch.question_mask].to(mask.dtype)
        for whole, part in zip(scorings, score(batch), strict=True):
            whole[rows, :width] = part.float().cpu()[batch.question_mask]
    # A sample was scored by one process, and is zero in all others.
    for part in (*scorings, mask):
        ranks.sum_(part)
    real, lowest = mask.bool(), torch.finfo(torch.float32).min
    return [torch.where(real, part, lowest).numpy() for part in scorings], real.numpy()


def predict_draft(
    model: DecisionModel, dataset: FeatureDataset, running: Running, with_media: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The draft head's logits float32 [N, K] and their mask; nothing is fused for them.

    The model is in evaluation mode.
    """
    parts = batches(model, dataset, running, with_media, detail=False)
    return _logits(dataset, parts, model.draft_logits, running.device)


def predict_full(
    model: DecisionModel, dataset: FeatureDataset, running: Running, with_media: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The decision head's logits float32 [N, K] and their mask; the model as above."""
    parts = batches(model, dataset, running, with_media)
    return _logits(dataset, parts, model.decision_logits, running.device)


@torch.no_grad()
def _logits(
    dataset: FeatureDataset,
    parts: Iterable[DecisionBatch],
    score: Callable[[DecisionBatch], torch.Tensor],
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    (logits,), mask = collect(dataset, parts, lambda batch: (score(batch.to(device)),))
    return logits, mask


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
    if was_training:
        model.eval()

    def score(batch: DecisionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(batch.to(device))
        return output.logits, output.draft_logits

    running = Running(device, batch_size, ahead)
    parts = batches(model, dataset, running, with_media, ranks=ranks)
    (logits, draft_logits), mask = collect(dataset, parts, score, count=2, ranks=ranks)
    if was_training:
        model.train()
    return Predictions(logits, draft_logits, mask, dataset.answer.numpy())
