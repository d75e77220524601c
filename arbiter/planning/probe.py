"""How long a step takes: a few of them on the real device, on made-up numbers of the real shape.

Time depends on shapes alone, so nothing needs to be downloaded or encoded. Nothing is learned.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch

from arbiter.config import build
from arbiter.hardware.device import autocast
from arbiter.hardware.telemetry import synchronize
from arbiter.planning.blocks import empty_addresses, random_batch
from arbiter.planning.workload import Job
from arbiter.training.objective import compute_loss

_STEPS = 10


@dataclass(frozen=True)
class Timing:
    """What a probe measured.

    Attributes:
        steps: how many were timed.
        micro_seconds: of a micro-batch, forward and backward; the median.
        step_seconds, epoch_seconds: of training; validation comes on top.
    """

    steps: int
    micro_seconds: float
    step_seconds: float
    epoch_seconds: float


def probe(job: Job, device: torch.device, limit_seconds: float) -> Timing:
    """Time ten micro-batches with their updates, or as many as the limit allows, at least one."""
    torch.manual_seed(0)
    model = job.model(torch.device("cpu")).to(device).train()
    optimizer = build(job.optimizer, model=model)
    batch = random_batch(job.typical_block, job.micro_batch_size, job.encoder).to(device)
    dropout = empty_addresses(batch)

    def forward_backward() -> None:
        with autocast(device, job.hardware.precision):
            output = model(batch, dropout)
        compute_loss(job.objective, output, batch, 1).total.backward()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.optimizer.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.finish_step()

    started = time.perf_counter()
    forward_backward()
    update()
    micro, updates = [], []
    while not micro or (len(micro) < _STEPS and time.perf_counter() - started < limit_seconds):
        micro.append(_seconds(forward_backward, device))
        updates.append(_seconds(update, device))
    parts = ceil(job.schedule.batch_size / job.micro_batch_size)
    step = parts * statistics.median(micro) + statistics.median(updates)
    blocks = job.shape.samples / job.typical_block.questions
    return Timing(
        steps=len(micro),
        micro_seconds=statistics.median(micro),
        step_seconds=step,
        epoch_seconds=step * ceil(blocks / job.schedule.batch_size),
    )


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started
