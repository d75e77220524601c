"""Which operators of a configuration DirectML hands to the CPU; --help shows how."""

from __future__ import annotations

import torch
from omegaconf import DictConfig

from arbiter.config import build, instantiate
from arbiter.console import say
from arbiter.encoders.base import Compute
from arbiter.errors import RunError
from arbiter.hardware.directml import Operator, is_table_of_this_torch, kernel_table
from arbiter.pipeline.config import TrainConfig
from arbiter.training.directml_audit import Audit, audit
from arbiter.training.settings import Settings
from experiments.app import run_app


def main(composed: DictConfig) -> None:
    """Trace, print, and fail if anything leaves the card.

    Raises:
        RunError: an operator falls back, or nobody knows where it runs.
    """
    config: TrainConfig = instantiate(composed)
    encoder = build(config.encoder, compute=Compute())
    settings = Settings(
        config.seed, config.objective, config.optimizer, config.schedule, config.hardware,
        config.checkpoint, config.guards, config.logging.every_steps,
    )  # fmt: skip
    found = audit(config.architecture, encoder.spec, settings)
    for line in lines(found):
        say(line)
    problems = [
        f"{len(operators)} of the {part} {what} ({', '.join(o.name for o in operators)})"
        for runs, what in (("cpu_fallback", "fall back to the CPU"), ("unknown", "are not known"))
        for part, operators in found.falling_back(runs).items()
    ]
    if problems:
        told = "docs/directml.md says what to choose"
        if found.falling_back("unknown") and not is_table_of_this_torch():
            told += f", and `make test-directml` traces with its torch {kernel_table()['torch']}"
        raise RunError(f"operators: {'; '.join(problems)}; {told}")


def lines(found: Audit) -> list[str]:
    """The audit for a person to read."""
    table = kernel_table()
    text = [
        f"kernels of torch_directml {table['torch_directml']} with torch {table['torch']}, "
        f"traced with torch {torch.__version__}"
    ]
    if not is_table_of_this_torch():
        text.append("operators that a later torch has added count as not known")
    for part, operators in (("step", found.step), ("decision", found.decision)):
        native = [o for o in operators if o.runs == "directml" and not o.through]
        composite = [o for o in operators if o.runs == "directml" and o.through]
        fallback = [o for o in operators if o.runs == "cpu_fallback"]
        unknown = [o for o in operators if o.runs == "unknown"]
        calls = sum(operator.calls for operator in operators)
        text += [
            "",
            f"{part}: {len(operators)} operators, {calls} calls",
            f"  DirectML's own   {len(native)}: {_names(native)}",
            f"  by rule          {len(composite)}",
            *(f"    {_short(o.name):<20} {_inner(o)}" for o in composite),
            f"  on the CPU       {_listed(fallback)}",
            f"  not known        {_listed(unknown)}",
        ]
    return text


def _short(name: str) -> str:
    return name.removeprefix("aten::")


def _names(operators: list[Operator]) -> str:
    return " ".join(_short(operator.name) for operator in operators)


def _inner(operator: Operator) -> str:
    return " ".join(map(_short, operator.through))


def _listed(operators: list[Operator]) -> str:
    if not operators:
        return "none"
    return ", ".join(f"{_short(o.name)} {_inner(o)}".strip() + f" x {o.calls}" for o in operators)


if __name__ == "__main__":
    run_app(main, "audit")
