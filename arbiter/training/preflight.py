"""A check of the device before the first step: its gradients against the CPU's, term by term.

Some backends compute wrong gradients without a word (a loss with a gradient of zero, a race in a
generated shader). A run would train on them for hours; one tiny batch shows it at once.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator

import torch

from arbiter.errors import RunError
from arbiter.features.batch import DecisionBatch
from arbiter.model.decision_model import DecisionModel
from arbiter.training.objective import ObjectiveConfig, compute_loss

log = logging.getLogger(__name__)

# Float32 on two devices differs by the order of sums: some 1e-5 of a gradient's size.
_TOLERANCE = 1e-2
_NEGLIGIBLE = 1e-6

Gradients = dict[str, torch.Tensor]


def check_gradients(
    model: DecisionModel, batch: DecisionBatch, objective: ObjectiveConfig, device: torch.device
) -> None:
    """Compare the gradients of every term of the objective on a device with those on the CPU.

    In float32 and without dropout, on copies of the model: nothing about the run changes.

    Args:
        model: the run's, on any device.
        batch: a small one, on the CPU.
        objective: whose terms are checked.
        device: the run's.

    Raises:
        RunError: naming the term, the parameter and both gradients' sizes.
    """
    reference = _gradients(model, batch, objective, torch.device("cpu"))
    found = _gradients(model, batch, objective, device)
    terms = []
    # Term by term: all gradients of a large model at once would not fit a small host.
    for (term, expected), (_, others) in zip(reference, found, strict=True):
        terms.append(term)
        for name, gradient in expected.items():
            other = others[name]
            size = float(gradient.norm())
            error = float((other - gradient).norm())
            # Written so that a gradient that is not a number fails.
            if not error <= _TOLERANCE * size + _NEGLIGIBLE:
                raise RunError(
                    f"preflight: {device} gives another gradient of {term} for {name} than the "
                    f"CPU (norm {float(other.norm()):.3g}, not {size:.3g}); use hardware=cpu, or "
                    "another version of the device's driver and torch; hardware.preflight=false "
                    "trains with it all the same"
                )
    log.info("preflight: gradients of %s agree with the CPU", ", ".join(terms))


def _gradients(
    model: DecisionModel, batch: DecisionBatch, objective: ObjectiveConfig, device: torch.device
) -> Iterator[tuple[str, Gradients]]:
    """Of one term after the other, with regard to every parameter it reaches, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        twin = copy.deepcopy(model).to(device).float().eval()
        for layer in twin.layers:
            # Before the first step all loads are equal, and the balance loss is flat.
            load = torch.arange(1.0, len(layer.moe.load) + 1)
            layer.moe.load.copy_(load / load.sum())
        output = twin(batch.to(device))
        loss = compute_loss(
            objective, output, batch.to(device), max(1, int(batch.question_mask.sum()))
        )
    parameters = dict(twin.named_parameters())
    for term, value in loss.with_gradient.items():
        parts = torch.autograd.grad(
            value, list(parameters.values()), retain_graph=True, allow_unused=True
        )
        yield (
            term,
            {
                name: torch.zeros(p.shape) if part is None else part.detach().cpu()
                for (name, p), part in zip(parameters.items(), parts, strict=True)
            },
        )
