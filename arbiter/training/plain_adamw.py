"""AdamW in the elementwise operations that every backend has."""

from __future__ import annotations

from typing import Any

import torch


def adamw_step(
    parameter: torch.Tensor,
    state: dict[str, Any],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """One step of AdamW (Loshchilov and Hutter, 2019, algorithm 2) on one parameter, in place.

    Args:
        parameter: with its gradient.
        state: `step`, `exp_avg` and `exp_avg_sq`; empty before the first step.
    """
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    # Counted on the host: reading it back from a device would wait for the device.
    state["step"] += 1
    step, (beta1, beta2) = int(state["step"]), betas
    grad, mean, square = parameter.grad, state["exp_avg"], state["exp_avg_sq"]
    parameter.mul_(1 - lr * weight_decay)
    mean.mul_(beta1).add_(grad, alpha=1 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    denominator = square.sqrt().mul_((1 - beta2**step) ** -0.5).add_(eps)
    parameter.addcdiv_(mean, denominator, value=-lr / (1 - beta1**step))


class PlainAdamW(torch.optim.Optimizer):
    """AdamW of mul, add, addcmul, addcdiv and sqrt only.

    torch.optim.AdamW interpolates with `lerp`, which DirectML hands to the CPU: a copy there and
    back, and a wait for the device, for every parameter and step.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take one step along the gradients; parameters without one are left alone."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    adamw_step(
                        parameter, self.state[parameter], group["lr"], group["betas"],
                        group["eps"], group["weight_decay"],
                    )  # fmt: skip
