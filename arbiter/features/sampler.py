"""The order of training: which questions meet in which block, and which blocks in which batch."""

from __future__ import annotations

import numpy as np
import torch

from arbiter.features.dataset import FeatureDataset
from arbiter.seeds import generator


def blocks_of(
    dataset: FeatureDataset, questions_per_block: int, rng: np.random.Generator | None = None
) -> torch.Tensor:
    """Deal all samples into blocks of questions about one media set.

    A media set with more questions than a block holds gets several blocks of even size. With `rng`
    the questions are dealt at random and the blocks shuffled; every sample comes exactly once.

    Returns:
        int64 [blocks, longest block] of sample indices, padded with -1 at the end of rows.
    """
    count = len(dataset)
    media = dataset.media.numpy()
    order = rng.permutation(count) if rng is not None else np.arange(count)
    order = order[np.argsort(media[order], kind="stable")]
    sizes = np.bincount(media)
    blocks_per_media = -(-sizes // questions_per_block)
    rank = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    first_block = np.cumsum(blocks_per_media) - blocks_per_media
    sorted_media = media[order]
    block = first_block[sorted_media] + rank % blocks_per_media[sorted_media]
    column = rank // blocks_per_media[sorted_media]
    table = np.full((int(blocks_per_media.sum()), int(column.max()) + 1), -1, np.int64)
    table[block, column] = order
    if rng is not None:
        table = table[rng.permutation(len(table))]
    return torch.from_numpy(table)


def epoch_blocks(
    dataset: FeatureDataset, questions_per_block: int, seed: int, epoch: int
) -> torch.Tensor:
    """The blocks of a training epoch, in order: a function of (seed, epoch) alone."""
    return blocks_of(dataset, questions_per_block, generator(seed, "order", epoch))
