"""Features that are made on the spot and kept nowhere: how an engine answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from arbiter.encoders.base import Encoder
from arbiter.features import build
from arbiter.features.codec import Int8Codec
from arbiter.features.table import FeatureTable


class MemoryStore:
    """Features of a few contents.

    Args:
        encoder: makes all of it.
        codecs: content kind -> stream -> the codec that the model was trained behind; the same
            rounding is applied, so a decision on stored and on fresh features is the same.
    """

    def __init__(self, encoder: Encoder, codecs: dict[str, dict[str, Int8Codec]]):
        self.encoder = encoder
        self._codecs = codecs

    def ensure(self, kind: str, refs: Sequence[object]) -> tuple[FeatureTable, torch.Tensor]:
        """Encode each distinct content once; see `FeatureStore.ensure`."""
        codecs = self._codecs.get(kind, {})
        contents: dict[bytes, object] = {}
        keys = []
        for ref in refs:
            item = build.prepare(self.encoder, kind, ref, known=contents)
            keys.append(item.key)
            if item.content is not None:
                contents[item.key] = item.content
        shards = []
        if contents:
            streams = build.encode(self.encoder, kind, list(contents.values()))
            packed = build.pack(list(contents), streams, codecs)
            shards = [{name: torch.from_numpy(array) for name, array in packed.items()}]
        table = FeatureTable(self.encoder.spec[kind], shards, codecs)
        return table, table.index(keys)
