"""Speed as ratios against plain reference implementations, in one process.

    python -m experiments.bench [group=moe|attention|batch|codec|foils|store|encoding|cuda]

Each pair is checked to agree first, then timed in turn; a row shows medians and their ratio.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from PIL import Image
from torch.nn import functional as F

from arbiter import media
from arbiter.config import instantiate
from arbiter.console import console
from arbiter.encoders.base import StreamSpec
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.features.batch import assemble
from arbiter.features.codec import Int8Codec
from arbiter.features.dataset import FeatureDataset, index_samples
from arbiter.features.foil_table import FoilTable
from arbiter.features.sampler import blocks_of
from arbiter.features.store import FeatureStore
from arbiter.features.table import FeatureTable
from arbiter.foils import FoilBank, FoilsConfig
from arbiter.model.architecture import ArchitectureConfig
from arbiter.model.decision_model import DecisionModel
from arbiter.model.moe import MixtureOfExperts, MoEConfig
from arbiter.sample import Sample
from experiments.app import run_app
from experiments.bench_cuda import bench_cuda
from experiments.bench_store import bench_encoding, bench_store, say
from experiments.schema import BenchConfig


@dataclass(frozen=True)
class Pair:
    """Two ways to the same result."""

    name: str
    ours: Callable[[], object]
    reference: Callable[[], object]
    agree: Callable[[object, object], bool]


def median_seconds(pair: Pair, repeats: int) -> tuple[float, float]:
    """Medians of both, run in turn so that both meet the same machine; the first run warms up."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for way, kept in zip((pair.ours, pair.reference), times, strict=True):
            started = time.perf_counter()
            way()
            kept.append(time.perf_counter() - started)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def close(ours: torch.Tensor, reference: torch.Tensor) -> bool:
    """Equal up to float32 rounding."""
    return torch.allclose(ours, reference, atol=1e-4, rtol=1e-4)


def moe_pairs() -> Iterator[Pair]:
    """Sorted dispatch, forward and backward, against all experts on all tokens and a loop."""
    torch.manual_seed(0)
    config = MoEConfig(num_routed_experts=8, num_shared_experts=0, top_k=2, ffn_dim=512)
    grouped = MixtureOfExperts(256, config, "grouped")
    dense = MixtureOfExperts(256, config, "dense")
    dense.load_state_dict(grouped.state_dict())
    x, mask = torch.randn(8, 256, 256), torch.ones(8, 256, dtype=torch.bool)

    def step(moe: MixtureOfExperts) -> torch.Tensor:
        inputs = x.clone().requires_grad_()
        moe(inputs, mask)[0].square().sum().backward()
        return inputs.grad

    def loop() -> torch.Tensor:
        """Expert by expert over boolean masks, as mixtures are often written."""
        inputs = x.clone().requires_grad_()
        tokens = inputs.flatten(0, 1)
        gates, experts = grouped.router(tokens).softmax(-1).topk(2, dim=-1)
        gates = gates / gates.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for e in range(8):
            token, slot = (experts == e).nonzero(as_tuple=True)
            hidden = F.gelu(tokens[token] @ grouped.w_in_EHF[e]) @ grouped.w_out_EFH[e]
            out = out.index_add(0, token, hidden * gates[token, slot, None])
        out.square().sum().backward()
        return inputs.grad

    yield Pair("moe: sorted / dense", lambda: step(grouped), lambda: step(dense), close)
    yield Pair("moe: sorted / loop over experts", lambda: step(grouped), loop, close)


def picture_dataset(folder: Path, questions: int) -> tuple[FeatureDataset, RawEncoder]:
    """Random pictures, each with several questions, through the raw encoder."""
    rng = np.random.default_rng(0)
    encoder = RawEncoder(RawEncoderConfig(max_patches=64))
    samples = []
    for _ in range(16):
        image = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
        samples += [
            Sample(f"question {i}?", tuple(f"answer {k}" for k in range(13)), 0, images=(image,))
            for i in range(questions)
        ]
    store = FeatureStore(folder, encoder)
    return index_samples({"": samples}, store, encoder.spec)[""], encoder


def attention_pairs(folder: Path) -> Iterator[Pair]:
    """Ten questions about one picture: its tokens shared, against computed for each question."""
    data, encoder = picture_dataset(folder / "attention", questions=10)
    blocks = blocks_of(data, 16)
    shared, single = assemble(data, blocks), assemble(data, blocks.reshape(-1, 1))
    torch.manual_seed(0)
    model = DecisionModel(ArchitectureConfig(), encoder.spec, ("image", "patches"))

    def step(batch) -> torch.Tensor:
        model.zero_grad()
        logits = model(batch).logits
        logits.square().sum().backward()
        return logits.detach().reshape(-1, logits.shape[-1])

    yield Pair(
        "prefix: shared media / one question a block",
        lambda: step(shared),
        lambda: step(single),
        close,
    )


def batch_pairs(folder: Path) -> Iterator[Pair]:
    """Batch assembly by vectorised gathers, against a loop over blocks that is then padded."""
    data, _ = picture_dataset(folder / "batch", questions=10)
    blocks = blocks_of(data, 16)

    def loop() -> torch.Tensor:
        stream = data.tables["image"].streams["patches"]
        rows = []
        for block in blocks.tolist():
            media = int(data.media[block[0]])
            images, _ = data.media_images.take(torch.tensor([media]))
            rows.append(torch.cat([stream.gather(image[None])[0] for image in images]))
            for sample in block:
                candidates, _ = data.candidates.take(torch.tensor([sample]))
                text = data.tables["text"].streams["pooled"]
                text.gather(torch.cat([data.question[sample][None], candidates]))
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    yield Pair(
        "batch: vectorised / per sample",
        lambda: assemble(data, blocks).media["patches"].values,
        loop,
        close,
    )


def codec_pairs() -> Iterator[Pair]:
    """What int8 storage costs to read, beside float16 of twice the size."""
    values = np.random.default_rng(0).standard_normal((196 * 64, 768)).astype(np.float32)
    codec = Int8Codec.fit(values)
    encoded = codec.encode(values)
    half = values.astype(np.float16)
    yield Pair(
        "codec: int8 decode / float16 decode",
        lambda: codec.decode(*encoded),
        lambda: half.astype(np.float32),
        lambda ours, reference: np.abs(ours - reference).max() < 0.05,
    )


def text_table(texts: list[str], dim: int) -> FeatureTable:
    """Made-up text features as the store keeps them, 50 texts to a cluster of cosine about 0.5."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((-(-len(texts) // 50), dim), np.float32)
    values = rng.standard_normal((len(texts), dim), np.float32)
    values += centres[np.arange(len(texts)) % len(centres)]
    codec = Int8Codec.fit(values[:4096])
    stored, scales = codec.encode(values)
    keys = np.frombuffer(b"".join(map(media.text_key, texts)), np.uint8).reshape(-1, 32).copy()
    shard = {
        "keys": torch.from_numpy(keys),
        "pooled.values": torch.from_numpy(stored),
        "pooled.scales": torch.from_numpy(scales),
        "pooled.offsets": torch.arange(len(texts) + 1),
    }
    return FeatureTable({"pooled": StreamSpec(dim)}, [shard], {"pooled": codec})


def foil_pairs() -> Iterator[Pair]:
    """Foils looked up, against searching all of a bank of 100,000 texts in every step of 8."""
    config, answers, step = FoilsConfig(), 256, torch.arange(8)
    texts = [f"text {i}" for i in range(config.capacity)]
    stream = text_table(texts, dim=768).streams["pooled"]
    bank = FoilBank(config, texts, stream, torch.arange(len(texts)))
    features, _ = stream.gather(bank.rows)
    matrix = F.normalize(features, dim=-1)
    queries, known = features[:answers], texts[:answers]

    def search(part: torch.Tensor) -> torch.Tensor:
        """The whole bank, which lies in memory as float32; the fastest order of the product."""
        similar = (matrix @ matrix[part].T).T
        fair = (similar >= config.min_similarity) & (similar <= config.max_similarity)
        fair[torch.arange(len(part)), part] = False
        return torch.where(fair, similar, -2).topk(config.count, dim=-1).indices

    table = FoilTable(bank.search(queries, known).int(), torch.arange(answers), "")

    def lookup() -> torch.Tensor:
        rows = table.take(step)
        stream.gather(rows.unique())
        return rows

    def search_each_step() -> torch.Tensor:
        rows = search(step)
        stream.gather(rows.unique())
        return rows

    def by_the_step() -> torch.Tensor:
        return torch.cat([search(part) for part in torch.arange(answers).split(len(step))])

    yield Pair("foils: lookup / search, 8 questions", lookup, search_each_step, torch.equal)
    yield Pair(
        "foils: neighbours of 256 answers, once / by step",
        lambda: bank.search(queries, known),
        by_the_step,
        torch.equal,
    )


def print_pairs(pairs: Iterator[Pair], repeats: int) -> None:
    """Check, time and print each pair."""
    for pair in pairs:
        if not pair.agree(pair.ours(), pair.reference()):
            raise AssertionError(f"{pair.name}: the two results differ")
        ours, reference = median_seconds(pair, repeats)
        console.print(
            f"{pair.name:<48}{ours * 1e3:>7.1f} ms{reference * 1e3:>9.1f} ms"
            f"{reference / ours:>7.1f}x"
        )


def main(composed: DictConfig) -> None:
    """Print what was asked for."""
    config: BenchConfig = instantiate(composed)
    if config.group == "cuda":
        for line in bench_cuda(config):
            say(line)
        return None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if config.group == "store":
            return bench_store(folder, config.stored_images, config.batches)
        if config.group == "encoding":
            return bench_encoding(folder, config)
        groups = {
            "moe": moe_pairs,
            "attention": lambda: attention_pairs(folder),
            "batch": lambda: batch_pairs(folder),
            "codec": codec_pairs,
            "foils": foil_pairs,
        }
        console.print(f"{'ours / reference':<48}{'ours':>10}{'reference':>12}{'times':>8}")
        for group, pairs in groups.items():
            if config.group in ("all", group):
                print_pairs(pairs(), config.repeats)


if __name__ == "__main__":
    run_app(main, "bench")
