"""Datasets of the right shapes and no meaning: to trace or measure a step without any data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from arbiter.encoders.base import FeatureSpec, StreamSpec
from arbiter.features.dataset import FeatureDataset, index_samples
from arbiter.features.foil_table import FoilTable
from arbiter.features.table import FeatureTable
from arbiter.sample import Sample


class _RandomStore:
    """Gives every content random features, of `max_tokens` tokens where the stream has places."""

    def __init__(self, spec: FeatureSpec, max_tokens: int, rng: np.random.Generator):
        self._spec, self._max_tokens, self._rng = spec, max_tokens, rng

    def ensure(self, kind: str, refs: Sequence[object]) -> tuple[FeatureTable, torch.Tensor]:
        """A table with one row per reference."""
        shard = {"keys": torch.arange(len(refs))[:, None]}
        for name, stream in self._spec[kind].items():
            shard |= self._stream(name, stream, len(refs))
        return FeatureTable(self._spec[kind], [shard], {}), torch.arange(len(refs))

    def _stream(self, name: str, stream: StreamSpec, rows: int) -> dict[str, torch.Tensor]:
        tokens = min(self._max_tokens, int(np.prod(stream.grid))) if stream.grid else 1
        values = self._rng.standard_normal((rows * tokens, stream.dim), dtype=np.float32)
        values /= np.linalg.norm(values, axis=-1, keepdims=True)
        tensors = {
            f"{name}.values": torch.from_numpy(values).half(),
            f"{name}.offsets": torch.arange(rows + 1) * tokens,
        }
        if stream.grid:
            places = np.stack(np.unravel_index(np.arange(tokens), stream.grid), axis=-1)
            tensors[f"{name}.positions"] = torch.from_numpy(np.tile(places, (rows, 1)))
        return tensors


def synthetic_dataset(
    spec: FeatureSpec,
    blocks: int,
    questions: int = 2,
    candidates: int = 4,
    foils: int = 0,
    max_tokens: int = 8,
    seed: int = 0,
) -> FeatureDataset:
    """`blocks` media sets with `questions` each, that carry every modality the features have.

    Every second question has a context and one candidate less, so that all kinds of padding occur.

    Args:
        foils: wrong answers of each sample; 0 for none.
        max_tokens: patches of an image, or frames of a sound, at most.
    """
    samples = []
    for block in range(blocks):
        picture = Path(f"{block}.png")
        frames = tuple(Path(f"{block}-{i}.png") for i in range(2))
        sound = np.zeros(1, np.float32)
        for number in range(questions):
            odd = number % 2
            samples.append(
                Sample(
                    question=f"question {block} {number}",
                    candidates=tuple(f"candidate {i}" for i in range(max(candidates - odd, 2))),
                    answer=(block + number) % 2,
                    context=f"context {block}" if odd else None,
                    images=(picture,) if "image" in spec else (),
                    video=frames if "image" in spec else (),
                    audio=sound if "audio" in spec else None,
                    source="synthetic",
                    id=str(len(samples)),
                )
            )
    rng = np.random.default_rng(seed)
    store = _RandomStore(spec, max_tokens, rng)
    dataset = index_samples({"": samples}, store, spec)[""]
    if foils:
        rows = rng.integers(len(dataset.tables["text"].rows), size=(1, foils), dtype=np.int32)
        place = torch.zeros(len(samples), dtype=torch.int64)
        dataset = replace(dataset, foils=FoilTable(torch.from_numpy(rows), place, "synthetic"))
    return dataset
