"""Optimizers. Weight decay acts on matrices only: not on biases, norms or embeddings."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from torch import nn

from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.training.plain_adamw import PlainAdamW

log = logging.getLogger(__name__)

_EMBEDDINGS = ("position_embedding.", "type_embedding.")


@dataclass
class AdamWConfig:
    """torch.optim.AdamW (Loshchilov and Hutter, 2019)."""

    _target_: str = field(
        default="arbiter.training.optimizers.adamw", metadata={"help": "The optimizer's factory."}
    )
    lr: float = option(2e-3, help="Peak learning rate.", above=0)
    betas: list[float] = option([0.9, 0.98], help="Decay of the two moments.", low=0, below=1)
    eps: float = option(1e-8, help="Added to the denominator.", above=0)
    weight_decay: float = option(0.05, help="Decoupled decay of matrices.", low=0)
    max_grad_norm: float = option(1.0, help="The gradient is scaled down to this norm.", above=0)

    def check(self) -> None:
        """There are two moments."""
        if len(self.betas) != 2:
            raise ConfigError("betas", self.betas, "must be two numbers, e.g. [0.9,0.98]")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices with weight decay, everything else without."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and not name.startswith(_EMBEDDINGS)
        (matrices if is_matrix else others).append(parameter)
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def adamw(config: AdamWConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Torch's AdamW, fused where the device has a fused kernel.

    On DirectML, where torch's would send every parameter to the CPU and back in every step, the
    same numbers in plain operations: see `PlainAdamW`.
    """
    device = next(model.parameters()).device
    if device.type == "privateuseone":
        log.info("optimizer: AdamW in plain operations, as torch's leaves a DirectML device")
        return directml_adamw(config, model)
    return torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=config.lr,
        betas=tuple(config.betas),
        eps=config.eps,
        fused=device.type in ("cpu", "cuda") or None,
    )


@dataclass
class DirectMLAdamWConfig(AdamWConfig):
    """The same numbers as `adamw` to rounding, at the speed of plain operations."""

    _target_: str = field(
        default="arbiter.training.optimizers.directml_adamw",
        metadata={"help": "The optimizer's factory."},
    )


def directml_adamw(config: AdamWConfig, model: nn.Module) -> PlainAdamW:
    """AdamW in operations that every backend has."""
    numbers = {"lr": config.lr, "betas": tuple(config.betas), "eps": config.eps}
    return PlainAdamW(parameter_groups(model, config.weight_decay), numbers)
