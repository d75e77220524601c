"""The plan of a run: what it takes, against what there is; and what would fit if it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from arbiter.errors import PlanError
from arbiter.hardware.device import AUTO
from arbiter.hardware.memory import free_device_mb, free_host_mb
from arbiter.hardware.telemetry import rss_mb
from arbiter.planning.memory import LIBRARIES, Peak, predict_peaks, storage_bytes
from arbiter.planning.workload import Job, record

Budgets = dict[str, float | None]
"""'RAM' and 'VRAM' -> MB; None where nobody knows."""

_SUGGESTIONS = 3


@dataclass(frozen=True)
class Plan:
    """What a run takes at most.

    Attributes:
        job: with the micro-batch that was planned for.
        peaks: of each memory.
        budgets: of each memory.
        base: bytes of this process before the run's own data.
    """

    job: Job
    peaks: list[Peak]
    budgets: Budgets
    base: float

    @property
    def storage_mb(self) -> float:
        """Features on disk."""
        return storage_bytes(self.job) / 1e6

    @property
    def exceeded(self) -> list[Peak]:
        """The memories that do not suffice."""
        return [
            peak
            for peak in self.peaks
            if self.budgets.get(peak.place) is not None and peak.mb > self.budgets[peak.place]
        ]


def plan_run(job: Job, device: torch.device | None, processes: int = 1) -> Plan:
    """Plan a job for this process, which is to run it, and this machine.

    Args:
        job: what to plan.
        device: the job's, None where it is not here: then only the profile knows its memory.
        processes: that share this machine's free memory.
    """
    # Once, so that everything that planning needs is in memory before that is measured.
    record(job.with_hardware(micro_batch_size=1))
    base = rss_mb()
    ram = base + free_host_mb() / processes
    vram = None if device is None else free_device_mb(device)
    hardware = job.hardware
    budgets = {"RAM": hardware.ram_budget_mb or ram, "VRAM": hardware.vram_budget_mb or vram}
    return make_plan(job, base * 1e6, budgets)


def make_plan(job: Job, base: float, budgets: Budgets) -> Plan:
    """Plan a job; with `micro_batch_size: auto`, for the largest micro-batch that fits.

    Sizes are the batch size, halved again and again; when none fits, the plan is for 1.

    Args:
        base: bytes of this process before the run's own data.
    """
    if job.hardware.micro_batch_size != AUTO:
        peaks = predict_peaks(job, record(job), base)
        return Plan(job, peaks, budgets, base)
    for size in halvings(job.schedule.batch_size):
        plan = make_plan(job.with_hardware(micro_batch_size=size), base, budgets)
        if not plan.exceeded:
            break
    return plan


def halvings(size: int) -> Iterator[int]:
    """size, half of it, ..., 1; rounded up, so that a step takes 1, 2, 4, ... parts."""
    while size > 1:
        yield size
        size = -(-size // 2)
    yield 1


def require_fit(plan: Plan) -> None:
    """Refuse a run that will not fit.

    Raises:
        PlanError: naming what is exceeded, its largest parts, and settings that would fit.
    """
    if not plan.exceeded:
        return
    complaints = []
    for peak in plan.exceeded:
        largest = ", ".join(f"{name} {mb:,.0f}" for name, mb in list(peak.parts.items())[:4])
        complaints.append(
            f"{peak.place} of {peak.mb:,.0f} MB planned while {peak.phase}, "
            f"{plan.budgets[peak.place]:,.0f} MB budgeted ({largest})"
        )
    fitting = [text for text, _ in suggestions(plan)]
    remedy = (
        f"these fit: {'; '.join(fitting)}"
        if fitting
        else "no setting tried would fit; use a machine with more"
    )
    raise PlanError(
        f"plan: {'; '.join(complaints)}; {remedy}; hardware.enforce_budget=false starts all the "
        "same"
    )


# ---------------------------------------------------------------- what would fit


def suggestions(plan: Plan) -> list[tuple[str, Plan]]:
    """Up to three settings that fit by plan, as overrides; those that keep the experiment first."""
    found = []
    # Before the run has anything of its own; nothing in its configuration would change that.
    if any(p.parts.get(LIBRARIES, 0) > plan.budgets[p.place] for p in plan.exceeded):
        return found
    for family in _families(plan.job):
        for overrides, job in family:
            candidate = make_plan(job, plan.base, plan.budgets)
            if not candidate.exceeded:
                found.append((" ".join(f"{k}={v}" for k, v in overrides.items()), candidate))
                break
        if len(found) == _SUGGESTIONS:
            break
    return found


def _families(job: Job) -> Iterator[Iterator[tuple[dict[str, object], Job]]]:
    """Ways to take less, each from mild to drastic."""
    hardware = job.hardware
    micro = list(halvings(job.micro_batch_size))[1:]
    scored = list(halvings(hardware.eval_batch_size))[1:]
    small = {"micro_batch_size": 1, "eval_batch_size": 1}
    yield _profiles(job, *({"micro_batch_size": size} for size in micro))
    yield _profiles(job, *({"eval_batch_size": size} for size in scored))
    pairs = zip([*micro, *[1] * len(scored)], scored, strict=False)
    yield _profiles(job, *({"micro_batch_size": m, "eval_batch_size": e} for m, e in pairs))
    if job.encoder.num_parameters and hardware.encoder_batch_size > 1:
        sizes = list(halvings(hardware.encoder_batch_size))[1:]
        yield _profiles(job, *({"encoder_batch_size": size} for size in sizes))
    if hardware.moe_dispatch == "dense":
        yield _profiles(job, {"moe_dispatch": "grouped"}, {"moe_dispatch": "grouped", **small})
    if job.device == "cuda" and hardware.precision == "float32":
        yield _profiles(job, {"precision": "bfloat16"}, {"precision": "bfloat16", **small})
    tight = job.with_hardware(**small)
    prefix = {f"hardware.{key}": value for key, value in small.items()}
    yield ((prefix | o, j) for o, j in _architectures(tight))


def _profiles(job: Job, *changes: dict) -> Iterator[tuple[dict[str, object], Job]]:
    for change in changes:
        yield {f"hardware.{k}": v for k, v in change.items()}, job.with_hardware(**change)


def _architectures(job: Job) -> Iterator[tuple[dict[str, object], Job]]:
    """Smaller models; these are other experiments."""
    architecture = job.architecture
    for layers in list(halvings(architecture.num_layers))[1:]:
        smaller = replace(architecture, num_layers=layers)
        yield {"architecture.num_layers": layers}, replace(job, architecture=smaller)
    for width in list(halvings(architecture.moe.ffn_dim))[1:4]:
        moe = replace(architecture.moe, ffn_dim=width, shared_ffn_dim=width)
        overrides = {"architecture.moe.ffn_dim": width, "architecture.moe.shared_ffn_dim": width}
        yield overrides, replace(job, architecture=replace(architecture, moe=moe))
