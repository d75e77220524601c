"""A plan as tables for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from arbiter.console import as_lines
from arbiter.model.decision_model import count_parameters
from arbiter.planning.memory import Peak
from arbiter.planning.plan import Plan
from arbiter.planning.probe import Timing
from arbiter.planning.workload import Job, flops_per_sample


def plan_lines(plan: Plan) -> Iterator[str]:
    """All of it but the time, for a run's log; training itself shows that soon."""
    yield from as_lines([parameter_table(plan.job), memory_table(plan)])
    yield from work_lines(plan, flops_per_sample(plan.job))


def memory_table(plan: Plan) -> Table:
    """The parts of every peak, against the budgets."""
    table = Table(title="memory at its highest, in MB (10^6 bytes)", title_justify="left")
    table.add_column("")
    names = list(dict.fromkeys(name for peak in plan.peaks for name in peak.parts))
    for peak in plan.peaks:
        table.add_column(peak.place, justify="right")
    for name in names:
        cells = [peak.parts.get(name, 0) for peak in plan.peaks]
        if max(cells) >= 0.5:
            table.add_row(name, *(f"{mb:,.0f}" if mb >= 0.5 else "" for mb in cells))
    table.add_section()
    table.add_row("peak", *(f"{peak.mb:,.0f}" for peak in plan.peaks))
    budgets = (plan.budgets.get(peak.place) for peak in plan.peaks)
    table.add_row("budget", *("unknown" if b is None else f"{b:,.0f}" for b in budgets))
    table.add_row("fits", *(_fits(plan, peak) for peak in plan.peaks))
    table.add_row("while", *(peak.phase for peak in plan.peaks))
    return table


def _fits(plan: Plan, peak: Peak) -> str:
    if plan.budgets.get(peak.place) is None:
        return "unknown"
    return "no" if peak in plan.exceeded else "yes"


def parameter_table(job: Job) -> Table:
    """Parameters of every part of the model, and of the encoder."""
    table = Table(title="parameters", title_justify="left")
    for name in ("part", "trainable", "active per token", "frozen"):
        table.add_column(name, justify="left" if name == "part" else "right")
    model = job.model()
    for name, part in model.named_children():
        counts = count_parameters(part)
        if counts["trainable"]:
            table.add_row(name, f"{counts['trainable']:,}", f"{counts['active_per_token']:,}", "")
    table.add_row("encoder", "", "", f"{job.encoder.num_parameters:,}")
    table.add_section()
    counts = count_parameters(model)
    table.add_row(
        "all", f"{counts['trainable']:,}", f"{counts['active_per_token']:,}",
        f"{job.encoder.num_parameters:,}",
    )  # fmt: skip
    return table


def work_lines(plan: Plan, flops: float) -> Iterator[str]:
    """Tokens, arithmetic and disk."""
    job = plan.job
    typical, largest = job.typical_block, job.training_block
    counted = "counted" if job.shape.exact else "assumed, as nothing is downloaded for a plan"
    yield (
        f"samples: {job.shape.samples:,} for training, {job.shape.mean_questions:.1f} questions a "
        f"media set, {job.shape.images:,} images ({counted})"
    )
    yield (
        f"tokens: {typical.media_tokens} media tokens a block on average, {largest.media_tokens} "
        f"at most; questions a block: {job.training_block.questions}"
    )
    parts = -(-job.schedule.batch_size // job.micro_batch_size)
    yield (
        f"step: {job.schedule.batch_size} blocks, in {parts} micro-batches of up to "
        f"{job.micro_batch_size}"
    )
    yield f"arithmetic: {flops / 1e9:,.3g} GFLOP a sample, forward and backward"
    yield f"features on disk: {plan.storage_mb:,.0f} MB"


def time_line(plan: Plan, flops: float, timing: Timing) -> str:
    """What a probe says of an epoch, a step and the arithmetic."""
    job = plan.job
    rate = flops * job.typical_block.questions * job.micro_batch_size / timing.micro_seconds
    return (
        f"time: {duration(timing.epoch_seconds)} an epoch, without validation; "
        f"{timing.step_seconds:.3g} s a step, {rate / 1e9:,.0f} GFLOP/s "
        f"({timing.steps} micro-batches of made-up numbers timed on this machine)"
    )


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would choose."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
