"""What the feature store costs: batches from a large store, and encoding beside the bare model.

Part of `experiments.bench`. The stored features are synthetic: int8 noise in the shape of ViT-B-16
patches.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from arbiter.config import build
from arbiter.console import say
from arbiter.encoders.base import Compute, FeatureSpec, StreamSpec
from arbiter.features.batch import assemble
from arbiter.features.build import items_per_shard
from arbiter.features.codec import Int8Codec
from arbiter.features.dataset import FeatureDataset
from arbiter.features.ragged import Ragged
from arbiter.features.shard_writer import write_codecs
from arbiter.features.shards import write_shard
from arbiter.features.store import FeatureStore
from arbiter.hardware.device import resolve_device
from arbiter.hardware.telemetry import rss_mb
from arbiter.model.architecture import ArchitectureConfig
from arbiter.model.decision_model import DecisionModel
from arbiter.model.moe import MoEConfig
from experiments.schema import BenchConfig

_ROWS, _COLUMNS, _DIM = 14, 14, 768
_BATCH = 16


@dataclass
class SyntheticConfig:
    """Options of an encoder that only describes features."""

    cache_dtype: str = "int8"


class Synthetic:
    """Describes features of ViT-B-16's shape, and makes none."""

    config = SyntheticConfig()
    spec = FeatureSpec(
        {
            "text": {"pooled": StreamSpec(_DIM)},
            "image": {
                "pooled": StreamSpec(_DIM),
                "patches": StreamSpec(_DIM, (1, _ROWS, _COLUMNS)),
            },
        }
    )

    def fingerprint(self, kind: str) -> dict:
        """A name for the store's folder."""
        return {"encoder": "synthetic", "kind": kind}


def synthetic_store(root: Path, images: int) -> FeatureStore:
    """A store with that many images and one text per 100 of them."""
    store, rng = FeatureStore(root, Synthetic()), np.random.default_rng(0)
    tokens = {"pooled": 1, "patches": _ROWS * _COLUMNS}
    noise = rng.integers(-127, 128, (items_per_shard(store.encoder.spec["image"]) * 196, _DIM))
    noise = noise.astype(np.int8)
    grid = np.stack(np.divmod(np.arange(196), _COLUMNS), axis=-1)
    positions = np.concatenate([np.zeros((196, 1)), grid], axis=1).astype(np.int16)
    for kind, count in (("image", images), ("text", images // 100 + 1)):
        directory = store.directory(kind)
        directory.mkdir(parents=True)
        streams = store.encoder.spec[kind]
        write_codecs(
            directory, {name: Int8Codec(np.ones(_DIM, np.float32) / 50) for name in streams}
        )
        size = items_per_shard(streams) if kind == "image" else count
        for number, start in enumerate(range(0, count, size)):
            items = min(size, count - start)
            shard = {"keys": rng.integers(0, 256, (items, 32), dtype=np.uint8)}
            for name in streams:
                each = tokens[name]
                shard[f"{name}.values"] = np.roll(noise[: items * each], number, axis=1)
                shard[f"{name}.scales"] = np.ones(items * each, np.float32)
                shard[f"{name}.offsets"] = np.arange(items + 1) * each
                if streams[name].grid:
                    shard[f"{name}.positions"] = np.tile(positions, (items, 1))
            write_shard(directory, number, shard)
    return store


def bench_store(root: Path, images: int, batches: int) -> None:
    """Assemble random batches, one question per image, and watch time and memory."""
    store = synthetic_store(root, images)
    before, started = rss_mb(), time.perf_counter()
    tables = {kind: store.open(kind) for kind in ("image", "text")}
    opened = time.perf_counter() - started
    texts, every = len(tables["text"].rows), torch.arange(images)
    nothing = Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(images + 1, dtype=torch.int64))
    data = FeatureDataset(
        tables=tables,
        question=every % texts,
        context=torch.full((images,), -1),
        candidates=Ragged((torch.arange(4 * images) * 7) % texts, torch.arange(images + 1) * 4),
        answer=torch.zeros(images, dtype=torch.int64),
        media=every,
        media_images=Ragged(every, torch.arange(images + 1)),
        media_frames=nothing,
        media_audio=torch.full((images,), -1),
        samples=(),
        max_frames=8,
    )
    order = torch.randint(images, (batches, _BATCH, 1), generator=torch.manual_seed(0))
    seconds, highest = [], before
    for blocks in order:
        started = time.perf_counter()
        batch = assemble(data, blocks)
        seconds.append(time.perf_counter() - started)
        highest = max(highest, rss_mb())
        assert batch.media["patches"].mask.all()
    read = batches * _BATCH * 196 * _DIM / 1e6
    say(f"store of {images:,} images of 196 x 768 int8: opened in {opened:.2f} s")
    say(
        f"batch of {_BATCH} images: median {statistics.median(seconds) * 1e3:.1f} ms, "
        f"{_BATCH * batches / sum(seconds):,.0f} images/s"
    )
    step = v6_max_step_seconds(data)
    say(f"that is {statistics.median(seconds) / step:.1%} of a v6_max step of {step:.1f} s on 16")
    say(f"memory: {highest - before:.0f} MB more at most, {read:,.0f} MB read")


def v6_max_step_seconds(data: FeatureDataset) -> float:
    """Forward and backward of the predecessor's size on one such batch, on the CPU; best of two."""
    config = ArchitectureConfig(
        hidden_dim=768, num_heads=8, num_layers=4, attention="full", scoring_dim=768, draft_dim=128,
        moe=MoEConfig(num_routed_experts=7, top_k=2, ffn_dim=1536, shared_ffn_dim=1536),
    )  # fmt: skip
    model = DecisionModel(config, Synthetic.spec, ("image", "patches"))
    batch, seconds = assemble(data, torch.arange(_BATCH)[:, None]), []
    for _ in range(2):
        started = time.perf_counter()
        model(batch).logits.logsumexp(dim=-1).sum().backward()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def bench_encoding(root: Path, config: BenchConfig) -> None:
    """Build the features of pictures on disk, beside the bare model on prepared batches."""
    device = resolve_device(config.hardware.encoder_device or config.hardware.device)
    encoder = build(config.encoder, compute=Compute(device, config.hardware.encoder_precision))
    rng, size = np.random.default_rng(0), config.hardware.encoder_batch_size
    paths = [root / f"{number}.jpg" for number in range(config.encoded_images)]
    for path in paths:
        small = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(small).resize((640, 480)).save(path, quality=90)
    prepared = [encoder.prepare("image", Image.open(path).convert("RGB")) for path in paths[:size]]
    encoder.encode_image(prepared)  # loads the weights, warms up
    store = FeatureStore(
        root / "store", encoder, size, decode_threads=config.hardware.decode_threads
    )
    bare, started = 0.0, time.perf_counter()
    for start in range(0, len(paths), size):
        encoder.encode_image(prepared[: len(paths) - start])
    bare = time.perf_counter() - started
    started = time.perf_counter()
    store.ensure("image", paths)
    built = time.perf_counter() - started
    say(
        f"encoding {len(paths)} JPEG files: {len(paths) / built:.2f} images/s stored, "
        f"{len(paths) / bare:.2f} images/s by the model alone: {bare / built:.1%}"
    )
