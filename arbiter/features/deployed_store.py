"""Stored features, rounded as those that a model was trained behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from filelock import FileLock

from arbiter.features.codec import Int8Codec
from arbiter.features.memory import MemoryStore
from arbiter.features.shard_writer import write_codecs
from arbiter.features.store import FeatureStore
from arbiter.features.table import FeatureTable

Codecs = dict[str, dict[str, Int8Codec]]


class DeployedStore:
    """A feature store for a trained model.

    A table whose codec is the model's serves as it is, and a new table gets the model's codec. A
    table that another machine's data have given another codec is left alone: its kind of features
    is made in memory.

    Args:
        store: of the model's encoder.
        codecs: the model's.
    """

    def __init__(self, store: FeatureStore, codecs: Codecs):
        self._store, self._codecs = store, codecs
        self._memory = MemoryStore(store.encoder, codecs)

    def ensure(self, kind: str, refs: Sequence[object]) -> tuple[FeatureTable, torch.Tensor]:
        """See `FeatureStore.ensure`."""
        own = self._codecs.get(kind, {})
        if own and not self._store.codecs(kind):
            directory = self._store.directory(kind)
            directory.mkdir(parents=True, exist_ok=True)
            with FileLock(directory / ".lock"):
                if not self._store.codecs(kind):
                    write_codecs(directory, own)
        store = self._store if _same(own, self._store.codecs(kind)) else self._memory
        return store.ensure(kind, refs)


def _same(some: dict[str, Int8Codec], other: dict[str, Int8Codec]) -> bool:
    return some.keys() == other.keys() and all(
        np.array_equal(codec.channel_scale, other[name].channel_scale)
        for name, codec in some.items()
    )
