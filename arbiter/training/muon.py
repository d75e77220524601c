"""Muon: momentum whose update is orthogonalised (Jordan et al., 2024), with AdamW for the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from arbiter.config import option
from arbiter.training.optimizers import AdamWConfig, parameter_groups
from arbiter.training.plain_adamw import adamw_step

# Of the quintic iteration: steepest at zero, so that few steps bring all singular values near 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_UPDATE_RMS = 0.2


@dataclass
class MuonConfig(AdamWConfig):
    """Muon for matrices, AdamW for everything else; one learning rate serves both."""

    _target_: str = field(
        default="arbiter.training.muon.muon", metadata={"help": "The optimizer's factory."}
    )
    momentum: float = option(0.95, help="Decay of the matrices' Nesterov momentum.", low=0, below=1)
    orthogonal_steps: int = option(5, help="Newton-Schulz iterations of an update.", low=1)


def orthogonalise(matrices: torch.Tensor, steps: int) -> torch.Tensor:
    """Matrices [..., rows, columns] with all singular values brought to between 0.7 and 1.2.

    A Newton-Schulz iteration on each matrix of the leading dimensions by itself; a matrix of zeros
    stays one.
    """
    a, b, c = _COEFFICIENTS
    # The smaller side makes the smaller products.
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.transpose(-1, -2) if tall else matrices
    # The Frobenius norm bounds the largest singular value.
    norm = (x * x).sum(dim=(-2, -1), keepdim=True).sqrt()
    x = x / (norm + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(-1, -2) if tall else x


class Muon(torch.optim.Optimizer):
    """Muon on the groups with `orthogonal_steps`, AdamW on the others.

    An update is scaled by 0.2 sqrt(max(rows, columns)), which gives it the size of AdamW's updates
    (Liu et al., 2025, "Muon is scalable for LLM training"), so that both share a learning rate and
    a weight decay. Of a tensor [E, H, F] every expert's matrix is orthogonalised by itself.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take one step along the gradients; parameters without one are left alone."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if group["orthogonal_steps"]:
                    self._muon_step(parameter, state, group)
                else:
                    adamw_step(
                        parameter, state, group["lr"], group["betas"], group["eps"],
                        group["weight_decay"],
                    )  # fmt: skip

    @staticmethod
    def _muon_step(parameter: torch.Tensor, state: dict, group: dict) -> None:
        grad, momentum = parameter.grad, group["momentum"]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        mean = state["momentum"].mul_(momentum).add_(grad, alpha=1 - momentum)
        ahead = mean * momentum + grad * (1 - momentum)
        update = orthogonalise(ahead, group["orthogonal_steps"])
        scale = _UPDATE_RMS * max(parameter.shape[-2:]) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * scale)


def muon(config: MuonConfig, model: nn.Module) -> Muon:
    """The optimizer of a model. A matrix of one row or column is a vector, and AdamW's."""
    matrices, others = parameter_groups(model, config.weight_decay)
    wide = [p for p in matrices["params"] if min(p.shape[-2:]) > 1]
    thin = [p for p in matrices["params"] if min(p.shape[-2:]) == 1]
    groups = [
        {**matrices, "params": wide, "orthogonal_steps": config.orthogonal_steps},
        {**matrices, "params": thin, "orthogonal_steps": 0},
        {**others, "orthogonal_steps": 0},
    ]
    numbers = {
        "lr": config.lr,
        "betas": tuple(config.betas),
        "eps": config.eps,
        "momentum": config.momentum,
    }
    return Muon([group for group in groups if group["params"]], numbers)
