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
from arbiter.features.dataset import FeatureDataset
from arbiter.features.sampler import epoch_blocks
from arbiter.model.decision_model import DecisionModel
from arbiter.training.objective import ObjectiveConfig, compute_loss

log = logging.getLogger(__name__)

# Float32 on two devices differs by the order of sums: some 1e-5 of a gradient's size.
_TOLERANCE = 1e-2
_NEGLIGIBLE = 1e-6

Gradients = dict[str, torch.Tensor]


def choose_blocks(
    train: FeatureDataset, questions_per_block: int, count: int, seed: int
) -> torch.Tensor:
    """`count` blocks of the first epoch, int64 [count, Q]: those with the most foils.

    Foils are the one thing that a term needs and not every sample has. It has a gradient where a
    foil is harder than the candidates, so the more there are the better.
    """
    blocks = epoch_blocks(train, questions_per_block, seed, 1)
    if train.foils is not None:
        foils_of = (train.foils.rows >= 0).sum(dim=-1)[train.foils.place]
        foils = torch.where(blocks >= 0, foils_of[blocks.clamp(min=0)], 0).sum(dim=-1)
        blocks = blocks[foils.argsort(descending=True, stable=True)]
    return blocks[:count]


def check_gradients(
    model: DecisionModel, batch: DecisionBatch, objective: ObjectiveConfig, device: torch.device
) -> None:
    """Compare the gradients of every term of the objective on a device with those on the CPU.

    In float32 and without dropout, on copies of the model: nothing about the run changes. A term
    that has next to no gradient on this batch is logged as not checked.

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
    checked, unchecked = [], []
    # Term by term: all gradients of a large model at once would not fit a small host.
    for (term, expected), (_, others) in zip(reference, found, strict=True):
        zero_would_show = False
        for name, gradient in expected.items():
            other = others[name]
            size = float(gradient.norm())
            error = float((other - gradient).norm())
            zero_would_show |= size > _TOLERANCE * size + _NEGLIGIBLE
            # Written so that a gradient that is not a number fails.
            if not error <= _TOLERANCE * size + _NEGLIGIBLE:
                raise RunError(
                    f"preflight: {device} gives another gradient of {term} for {name} than the "
                    f"CPU (norm {float(other.norm()):.3g}, not {size:.3g}); use hardware=cpu, or "
                    "another version of the device's driver and torch; hardware.preflight=false "
                    "trains with it all the same"
                )
        (checked if zero_would_show else unchecked).append(term)
    # Not even computed where no sample of the batch has a foil.
    if objective.foils.weight and "foil_loss" not in checked + unchecked:
        unchecked.append("foil_loss")
    rest = f"; without one here, and not checked: {', '.join(unchecked)}" if unchecked else ""
    log.info("preflight: gradients of %s agree with the CPU%s", ", ".join(checked), rest)


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
