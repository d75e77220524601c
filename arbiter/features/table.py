"""Reading features: ragged streams over the shards of a table, gathered by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from arbiter.encoders.base import StreamSpec
from arbiter.features.codec import Int8Codec
from arbiter.features.ragged import spans

# Mapped pages count as resident memory until they are given back; the page cache keeps them. So
# little at a time, because the system maps up to 20 times as much as is touched.
_RELEASE_BYTES = 8 * 2**20

Tensors = dict[str, torch.Tensor]


class StreamReader:
    """Gathers of one ragged stream over all shards of a table.

    Attributes:
        spec: the stream's shape.
        counts: int64 [rows], tokens of each row.
    """

    def __init__(
        self,
        name: str,
        spec: StreamSpec,
        shards: Sequence[Tensors],
        codec: Int8Codec | None,
        touched: Callable[[int], None],
    ):
        self.spec = spec
        self._touched = touched
        self._values = [shard[f"{name}.values"] for shard in shards]
        self._scales = [shard.get(f"{name}.scales") for shard in shards]
        self._positions = [shard.get(f"{name}.positions") for shard in shards]
        self._channel_scale = None if codec is None else torch.from_numpy(codec.channel_scale)
        offsets = [shard[f"{name}.offsets"] for shard in shards]
        empty = torch.zeros(0, dtype=torch.int64)
        self.counts = torch.cat([o.diff() for o in offsets] or [empty])
        self._starts = torch.cat([o[:-1] for o in offsets] or [empty])
        self._shard = torch.cat(
            [torch.full((len(o) - 1,), i) for i, o in enumerate(offsets)] or [empty]
        )

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All tokens of `rows` int64 [R], one row after another.

        Returns:
            values float32 [N, D] and positions int64 [N, axes] (None without a grid), where
            N = counts[rows].sum().
        """
        counts = self.counts[rows]
        ends = counts.cumsum(0)
        total = int(ends[-1]) if len(rows) else 0
        values = torch.empty(total, self.spec.dim)
        positions = None
        if self.spec.grid:
            positions = torch.empty(total, len(self.spec.grid), dtype=torch.int64)
        # Rows are taken shard by shard; each lands where its own span of the output is.
        shards, order = self._shard[rows].sort(stable=True)
        indices, sizes = shards.unique_consecutive(return_counts=True)
        for index, part in zip(indices.tolist(), order.split(sizes.tolist()), strict=True):
            source = spans(self._starts[rows[part]], counts[part])
            target = spans((ends - counts)[part], counts[part])
            stored = self._values[index][source]
            found = stored.float()
            if self._channel_scale is not None:
                found *= self._scales[index][source, None] * self._channel_scale
            values[target] = found
            if positions is not None:
                positions[target] = self._positions[index][source].long()
            self._touched(stored.numel() * stored.element_size())
        return values, positions


class FeatureTable:
    """The features of one content kind, as they were when the table was opened.

    Attributes:
        rows: content key -> row.
        streams: readers by stream name.
        ids: int64 [rows], a number for each content that depends on the content alone.

    Args:
        specs: the streams.
        shards: tensors of each shard.
        codecs: by stream; none for float16.
        release: gives back the memory of what was read; called now and then.
    """

    def __init__(
        self,
        specs: dict[str, StreamSpec],
        shards: Sequence[Tensors],
        codecs: dict[str, Int8Codec],
        release: Callable[[], None] = lambda: None,
    ):
        keys = [key.tobytes() for shard in shards for key in shard["keys"].numpy()]
        # Two shards may hold the same content after a rebuild; the first one counts.
        self.rows = {key: row for row, key in reversed(list(enumerate(keys)))}
        # The first bytes of a sha256.
        heads = [shard["keys"].contiguous().view(torch.uint8)[:, :8] for shard in shards]
        whole = torch.cat(heads) if heads else torch.zeros(0, 8, dtype=torch.uint8)
        self.ids = whole.contiguous().view(torch.int64).squeeze(1)
        self._release, self._touched_bytes = release, 0
        self.streams = {
            name: StreamReader(name, spec, shards, codecs.get(name), self._touched)
            for name, spec in specs.items()
        }

    def index(self, keys: Sequence[bytes]) -> torch.Tensor:
        """The row of each content key, int64."""
        return torch.tensor([self.rows[key] for key in keys], dtype=torch.int64)

    def _touched(self, count: int) -> None:
        self._touched_bytes += count
        if self._touched_bytes > _RELEASE_BYTES:
            self._touched_bytes = 0
            self._release()
