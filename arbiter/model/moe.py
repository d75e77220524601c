"""A mixture of experts with shared and routed experts, without capacity limits.

Every token passes all shared experts and its top-k routed ones; no token is ever dropped.
Shape letters: B blocks, T tokens of a block, N real tokens of the batch, E routed experts,
k choices per token, H hidden, F expert width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.hardware.kernels import grouped_matmul, one_hot


@dataclass
class MoEConfig:
    """Size and routing of the mixture of experts."""

    num_routed_experts: int = option(
        4, help="Experts that the router chooses among.", low=1, high=65536
    )
    num_shared_experts: int = option(1, help="Experts that every token passes.", low=0, high=1024)
    top_k: int = option(2, help="Routed experts per token.", low=1)
    ffn_dim: int = option(128, help="Hidden width of a routed expert.", low=1, high=262144)
    shared_ffn_dim: int = option(256, help="Hidden width of a shared expert.", low=1, high=262144)
    balance: str = option(
        "loss",
        help="loss: objective.balance_weight spreads the load; bias: a bias on the choice does.",
        choices=("loss", "bias"),
    )
    bias_rate: float = option(
        0.001, help="What a step adds to or takes from an expert's bias.", above=0
    )

    def check(self) -> None:
        """A token cannot choose more experts than there are."""
        if self.top_k > self.num_routed_experts:
            raise ConfigError(
                "top_k",
                self.top_k,
                f"must be at most num_routed_experts, which is {self.num_routed_experts}",
            )


@dataclass(frozen=True)
class RoutingStats:
    """What a layer's router did.

    Attributes:
        probabilities: float32 [B, E], the router's mean probabilities over a block's real tokens,
            with gradient.
        load: float32 [E], the share of all top-k choices that each expert had in the previous
            optimizer step; no gradient.
    """

    probabilities: torch.Tensor
    load: torch.Tensor


class MixtureOfExperts(nn.Module):
    """The feed-forward part of a fusion layer.

    With `balance: bias` experts are chosen by probability plus a bias that no gradient reaches,
    and weighted by probability alone (auxiliary-loss-free balancing, Wang et al., 2024). The bias
    follows the counts of whole optimizer steps and is saved with the weights.
    """

    def __init__(self, hidden_dim: int, config: MoEConfig, dispatch: str):
        super().__init__()
        self.config = config
        self.dispatch = dispatch
        experts, width = config.num_routed_experts, config.ffn_dim
        self.router = nn.Linear(hidden_dim, experts, bias=False)
        self.w_in_EHF = nn.Parameter(torch.empty(experts, hidden_dim, width))
        self.w_out_EFH = nn.Parameter(torch.empty(experts, width, hidden_dim))
        for weight, fan_in in ((self.w_in_EHF, hidden_dim), (self.w_out_EFH, width)):
            nn.init.uniform_(weight, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        # Several shared experts see the same tokens with weight one: they are one wider expert.
        shared_width = config.num_shared_experts * config.shared_ffn_dim
        self.shared = None
        if shared_width:
            self.shared = nn.Sequential(
                nn.Linear(hidden_dim, shared_width, bias=False),
                nn.GELU(),
                nn.Linear(shared_width, hidden_dim, bias=False),
            )
        self.register_buffer("load", torch.full((experts,), 1 / experts))
        self.register_buffer("choices", torch.zeros(experts), persistent=False)
        biased = config.balance == "bias"
        self.register_buffer("bias_E", torch.zeros(experts) if biased else None)

    def forward(
        self,
        x_BTH: torch.Tensor,
        mask_BT: torch.Tensor,
        noise_BTE: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, RoutingStats | None]:
        """Transform the real tokens; padding comes out as zero.

        Args:
            x_BTH: tokens.
            mask_BT: true where a token is real.
            noise_BTE: added to the router's logits, or None.

        Returns:
            [B, T, H] and the router's statistics; None with `balance: bias`, which needs none.
        """
        # Dense dispatch keeps shapes fixed, so it computes padding too and drops it at the end.
        dense = self.dispatch == "dense"
        x_NH = x_BTH.flatten(0, 1)
        real_N = None
        if not dense:
            real_N = mask_BT.flatten().nonzero().squeeze(1)
            x_NH = x_NH.index_select(0, real_N)
        logits_NE = F.linear(x_NH.float(), self.router.weight.float())
        if noise_BTE is not None:
            noise_NE = noise_BTE.flatten(0, 1)
            logits_NE = logits_NE + (noise_NE if dense else noise_NE.index_select(0, real_N))
        # Under autocast the CPU would leave probabilities in bfloat16.
        probs_NE = F.softmax(logits_NE, dim=-1).float()
        gates_Nk, experts_Nk = self._choose(probs_NE)
        gates_Nk = (gates_Nk / gates_Nk.sum(dim=-1, keepdim=True)).to(x_NH.dtype)
        routed = self._routed_dense if dense else self._routed_grouped
        y_NH = routed(x_NH, gates_Nk, experts_Nk)
        if self.shared is not None:
            y_NH = y_NH + self.shared(x_NH)
        if dense:
            y_BTH = torch.where(mask_BT[..., None], y_NH.view_as(x_BTH), 0)
        else:
            y_BTH = _scatter(y_NH, real_N, mask_BT)
        if self.training:
            self._count(experts_Nk, mask_BT.flatten() if dense else None)
        if self.bias_E is not None:
            return y_BTH, None
        if dense:
            probs_BTE = probs_NE.view(*mask_BT.shape, -1)
        else:
            probs_BTE = _scatter(probs_NE, real_N, mask_BT)
        return y_BTH, RoutingStats(_masked_mean(probs_BTE, mask_BT), self.load)

    def _choose(self, probs_NE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities and numbers of each token's experts, [N, k] both."""
        if self.bias_E is None:
            return probs_NE.topk(self.config.top_k, dim=-1)
        biased_NE = probs_NE.detach() + self.bias_E
        experts_Nk = biased_NE.topk(self.config.top_k, dim=-1).indices
        return probs_NE.gather(-1, experts_Nk), experts_Nk

    def _routed_grouped(
        self, x_NH: torch.Tensor, gates_Nk: torch.Tensor, experts_Nk: torch.Tensor
    ) -> torch.Tensor:
        """Sort the choices by expert and give each expert its consecutive rows."""
        tokens, k = experts_Nk.shape
        order = experts_Nk.flatten().argsort(stable=True)
        counts_E = one_hot(experts_Nk, self.config.num_routed_experts).sum(dim=(0, 1))
        # A permutation of one row per choice: its backward has no colliding writes, so results do
        # not depend on the order in which threads add. The backward of index_select is several
        # times faster than that of indexing.
        rows = x_NH[:, None].expand(-1, k, -1).flatten(0, 1).index_select(0, order)
        hidden = F.gelu(grouped_matmul(rows, self.w_in_EHF.to(rows.dtype), counts_E))
        out = grouped_matmul(hidden, self.w_out_EFH.to(rows.dtype), counts_E)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return (out.index_select(0, inverse).unflatten(0, (tokens, k)) * gates_Nk[..., None]).sum(
            dim=1
        )

    def _routed_dense(
        self, x_NH: torch.Tensor, gates_Nk: torch.Tensor, experts_Nk: torch.Tensor
    ) -> torch.Tensor:
        """All experts on all tokens, weighted by gates that are zero where not chosen."""
        chosen = one_hot(experts_Nk, self.config.num_routed_experts).to(x_NH.dtype)
        gates_NE = (chosen * gates_Nk[..., None]).sum(dim=1)
        experts = self.config.num_routed_experts
        hidden = F.gelu(torch.bmm(x_NH.expand(experts, -1, -1), self.w_in_EHF.to(x_NH.dtype)))
        out_ENH = torch.bmm(hidden, self.w_out_EFH.to(x_NH.dtype))
        return (out_ENH * gates_NE.T[..., None]).sum(dim=0)

    @torch.no_grad()
    def _count(self, experts_Nk: torch.Tensor, mask_N: torch.Tensor | None) -> None:
        chosen_NkE = one_hot(experts_Nk, self.config.num_routed_experts)
        if mask_N is not None:
            chosen_NkE = chosen_NkE & mask_N[:, None, None]
        self.choices += chosen_NkE.to(self.choices.dtype).sum(dim=(0, 1))

    @torch.no_grad()
    def finish_step(self) -> None:
        """Take the choices counted since the last call as the new load. Call per optimizer step.

        With `balance: bias`, experts chosen less than the mean become easier to choose by
        `bias_rate`, and others harder.
        """
        if bool(self.choices.sum() > 0):
            self.load.copy_(self.choices / self.choices.sum())
            if self.bias_E is not None:
                self.bias_E += self.config.bias_rate * (self.choices.mean() - self.choices).sign()
        self.choices.zero_()


def _scatter(values_NC: torch.Tensor, real_N: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """[N, C] back to their places in [B, T, C], zero elsewhere."""
    flat = values_NC.new_zeros(mask_BT.numel(), values_NC.shape[-1])
    return flat.index_copy(0, real_N, values_NC).view(*mask_BT.shape, -1)


def _masked_mean(values_BTC: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """The mean over real tokens, [B, C]; zero for a block without any."""
    weight = mask_BT.to(values_BTC.dtype)[..., None]
    return (values_BTC * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
