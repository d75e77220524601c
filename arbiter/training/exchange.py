"""Making one step of the parts that several processes have computed.

Every term of the objective is a sum over the questions of the whole step (see `objective.py`), so
the step's gradient is the sum of the processes' gradients, and equal to that of a single process up
to the order of the sum. Plain sums, and not `DistributedDataParallel`, because a step may have
fewer micro-batches than there are processes: that wrapper averages, and waits for a backward pass
of every process over the same parameters. Here a process without work adds nothing, a parameter
that no process used keeps no gradient, and the routers' counts are those of the whole step.
"""

from __future__ import annotations

import torch

from arbiter.hardware.distributed import Ranks
from arbiter.model.decision_model import DecisionModel
from arbiter.training.objective import TERMS
from arbiter.training.totals import Totals


def sum_step(model: DecisionModel, figures: Totals, ranks: Ranks) -> None:
    """Make a step's gradient, routing counts and figures those of all processes.

    Args:
        model: with the gradient of this process's micro-batches.
        figures: of the same micro-batches.

    Raises:
        ProcessLost: another process died; nothing but the gradient may have changed.
    """
    if ranks.size == 1:
        return
    used = _sum_figures(model, figures, ranks)
    parameters = [p for p, is_used in zip(model.parameters(), used, strict=True) if is_used]
    if not parameters:
        return
    flat = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    )
    ranks.sum_(flat)
    parts = flat.split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


def _sum_figures(model: DecisionModel, figures: Totals, ranks: Ranks) -> list[bool]:
    """Sum all that is small, on the host; which parameters any process has a gradient of.

    It comes before the gradient: a process that has died is noticed here, and nobody waits for it
    inside a GPU kernel.
    """
    choices = [layer.moe.choices for layer in model.layers]
    parts = [
        [name in figures.terms for name in TERMS],
        [figures.terms.get(name, 0.0) for name in TERMS],
        [figures.questions, figures.correct],
        [p.grad is not None for p in model.parameters()],
        torch.cat(choices).cpu(),
    ]
    parts = [torch.as_tensor(part, dtype=torch.float64) for part in parts]
    whole = torch.cat(parts)
    ranks.sum_(whole)
    found, terms, counts, used, chosen = whole.split([len(part) for part in parts])
    figures.terms = {
        name: value
        for name, value, has in zip(TERMS, terms.tolist(), found.tolist(), strict=True)
        if has
    }
    figures.questions, figures.correct = map(int, counts.tolist())
    for layer, part in zip(choices, chosen.split([len(c) for c in choices]), strict=True):
        layer.copy_(part)
    return [value > 0 for value in used.tolist()]
