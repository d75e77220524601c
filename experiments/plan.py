"""What a run would take, before it is run: python -m experiments.plan [overrides of train]."""

from __future__ import annotations

import torch
from omegaconf import DictConfig

from arbiter.config import build, instantiate
from arbiter.console import console, say
from arbiter.datasets.shapes import describe as describe_samples
from arbiter.encoders.base import Compute
from arbiter.errors import PlanError
from arbiter.hardware.device import device_kind, device_problem, resolve_device
from arbiter.hardware.telemetry import describe
from arbiter.planning.plan import Plan, plan_run, suggestions
from arbiter.planning.probe import Timing, probe
from arbiter.planning.table import memory_table, parameter_table, time_line, work_lines
from arbiter.planning.workload import Job, flops_per_sample
from experiments.app import run_app
from experiments.schema import PlanConfig


def main(composed: DictConfig) -> None:
    """Print the plan.

    Raises:
        PlanError: the run would not fit.
    """
    config: PlanConfig = instantiate(composed)
    torch.set_num_threads(config.hardware.num_threads or torch.get_num_threads())
    kind = device_kind(config.hardware.device)
    problem = device_problem(kind)
    device = None if problem else resolve_device(config.hardware.device)
    for line in machine_lines(device, kind, problem):
        say(line)
    encoder = build(config.encoder, compute=Compute())
    job = Job.of(config, encoder, describe_samples(config.dataset, config.seed), kind)
    plan = plan_run(job, device)
    console.print(parameter_table(plan.job))
    console.print(memory_table(plan))
    timing, why_not = timing_of(plan, device, problem, config.probe_seconds)
    flops = flops_per_sample(plan.job)
    for line in work_lines(plan, flops):
        say(line)
    say(time_line(plan, flops, timing) if timing else f"time: not measured; {why_not}")
    if not plan.exceeded:
        return
    fitting = list(suggestions(plan))
    say("these settings would fit:" if fitting else "no setting tried would fit")
    for text, other in fitting:
        levels = ", ".join(f"{peak.place} {peak.mb:,.0f} MB" for peak in other.peaks)
        say(f"  {text}    {levels}")
    raise PlanError(
        "plan: the run does not fit: "
        + ", ".join(
            f"{p.place} {p.mb:,.0f} MB of {plan.budgets[p.place]:,.0f} MB" for p in plan.exceeded
        )
    )


def machine_lines(device: torch.device | None, kind: str, problem: str | None) -> list[str]:
    """The machine and the device, or why the device is not to be had."""
    machine = describe(device or torch.device("cpu"))
    width = max(map(len, machine))
    lines = [f"{key:<{width}}  {value}" for key, value in machine.items() if value is not None]
    if problem:
        lines.append(f"{kind} is planned for, but not here: {problem}")
    return lines


def timing_of(
    plan: Plan, device: torch.device | None, problem: str | None, limit: float
) -> tuple[Timing | None, str]:
    """The probe's result, or why there is none."""
    if device is None:
        return None, problem
    if limit == 0:
        return None, "probe_seconds=0"
    if plan.exceeded:
        return None, "the run does not fit"
    return probe(plan.job, device, limit), ""


if __name__ == "__main__":
    run_app(main, "plan")
