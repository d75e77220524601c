"""What a CUDA or ROCm GPU shows: the plan beside the truth, bfloat16 beside float32, and speed.

Part of `experiments.bench`. Batches are made-up numbers in the shape of the experiment's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from arbiter.config import build
from arbiter.datasets.shapes import SampleShape
from arbiter.encoders.base import Compute
from arbiter.hardware.device import AUTO, autocast, resolve_device
from arbiter.hardware.telemetry import rss_mb, synchronize, vram_mb
from arbiter.model.dropout import DropoutAddresses
from arbiter.planning.blocks import random_batch
from arbiter.planning.memory import predict_peaks
from arbiter.planning.plan import plan_run
from arbiter.planning.workload import Job, flops_per_block, record
from arbiter.sample import Modality
from arbiter.training.objective import compute_loss
from experiments.schema import BenchConfig

PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "4090": 165, "3090": 71, "4070": 117}
"""Dense bfloat16 products with float32 sums, as the makers state them, by part of the name."""


_SHAPE = SampleShape(
    modalities=frozenset({Modality.IMAGE}),
    samples=10_000,
    evaluated=1_000,
    candidates=4,
    questions=1,
    mean_questions=1.0,
    images=11_000,
    texts=50_000,
    answers=40_000,
    image_sizes=(((224, 224),),),
    frames=0,
    audio_seconds=0.0,
    exact=False,
)
"""One question about each picture, with four candidates: the predecessor's kind of sample."""


def bench_cuda(config: BenchConfig) -> list[str]:
    """The lines of the report.

    Raises:
        ConfigError: there is no such device here.
    """
    device = resolve_device("cuda")
    job = Job.of(config, build(config.encoder, compute=Compute()), _SHAPE, "cuda")
    if job.hardware.micro_batch_size == AUTO:
        job = plan_run(job, device).job
    return report(job, device, config.steps)


@dataclass(frozen=True)
class Measured:
    """Some steps on a device.

    Attributes:
        losses: of every step.
        seconds: of a step, the mean without the first two.
        peak_mb: device memory in use at most; None where it is not known.
    """

    losses: list[float]
    seconds: float
    peak_mb: float | None


def made_up_batch(job: Job, seed: int):
    """A batch of random features whose answers can be learned by heart."""
    torch.manual_seed(seed)
    batch = random_batch(job.training_block, job.micro_batch_size, job.encoder)
    count = len(batch.texts)
    candidates = torch.stack(
        [torch.randperm(count)[: job.training_block.candidates] for _ in batch.question.flatten()]
    ).view_as(batch.candidates)
    return replace(
        batch,
        question=torch.randint(count, batch.question.shape),
        candidates=candidates,
        answer=torch.randint(job.training_block.candidates, batch.answer.shape),
        sample=torch.arange(batch.sample.numel()).view_as(batch.sample),
        text_ids=torch.arange(count),
    )


def run_steps(job: Job, device: torch.device, steps: int) -> Measured:
    """Train on two batches in turn, from the same weights and in the same order every time."""
    torch.manual_seed(0)
    model = job.model(torch.device("cpu")).to(device).train()
    optimizer = build(job.optimizer, model=model)
    batches = [made_up_batch(job, seed) for seed in (1, 2)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    losses, started = [], time.perf_counter()
    for step in range(steps):
        if step == 2:
            synchronize(device)
            started = time.perf_counter()
        here = batches[step % 2]
        dropout, batch = DropoutAddresses.of(here, step).to(device), here.to(device)
        with autocast(device, job.hardware.precision):
            output = model(batch, dropout)
        loss = compute_loss(job.objective, output, batch, int(here.question_mask.sum()))
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.optimizer.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.finish_step()
        losses.append(float(loss.terms["cross_entropy"]))
    synchronize(device)
    seconds = (time.perf_counter() - started) / max(1, steps - 2)
    return Measured(losses, seconds, vram_mb(device))


def report(job: Job, device: torch.device, steps: int) -> list[str]:
    """Lines that compare the plan, the precisions and the arithmetic with the device."""
    lines, curves = [], {}
    for precision in ("float32", "bfloat16"):
        this = job.with_hardware(precision=precision)
        planned = predict_peaks(this, record(this), rss_mb() * 1e6)[0]
        found = run_steps(this, device, steps)
        curves[precision] = found.losses
        memory = "memory not known to torch"
        if found.peak_mb is not None:
            memory = f"{found.peak_mb:,.0f} MB of {planned.mb:,.0f} MB planned"
            memory += f" ({planned.mb / found.peak_mb - 1:+.1%})"
        work = flops_per_block(job, job.training_block) * job.micro_batch_size
        rate = work / found.seconds / 1e12
        lines.append(
            f"{precision}: {found.seconds * 1e3:,.1f} ms a step, {rate:,.3g} TFLOP/s"
            f"{utilisation(rate, device)}; {memory}"
        )
    lines.append(f"{'step':>6}{'float32':>12}{'bfloat16':>12}")
    lines += [
        f"{step:>6}{wide:>12.4f}{narrow:>12.4f}"
        for step, (wide, narrow) in enumerate(zip(*curves.values(), strict=True))
        if step % max(1, steps // 10) == 0 or step == steps - 1
    ]
    return lines


def utilisation(rate: float, device: torch.device) -> str:
    """The share of a GPU's stated rate, where that is known."""
    if device.type != "cuda":
        return ""
    name = torch.cuda.get_device_name(device)
    stated = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
    if stated is None:
        return f" (the stated rate of {name} is not known here)"
    return f" ({rate / stated:.1%} of the {stated} stated for bfloat16)"
