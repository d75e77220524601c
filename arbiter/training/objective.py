"""The training objective: what is minimised, term by term.

Every term is a sum over questions divided by the number of questions of the whole optimizer step,
so splitting a step into micro-batches changes nothing. A term of weight 0 is not computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.features.batch import DecisionBatch
from arbiter.foils import FoilsConfig
from arbiter.hardware.kernels import one_hot
from arbiter.model.decision_model import DecisionOutput
from arbiter.model.heads import mask_logits

TERMS = (
    "cross_entropy", "margin_loss", "foil_loss", "balance_loss", "draft_loss", "distillation_loss",
)  # fmt: skip
"""Every term's name, in the order in which `compute_loss` gives them."""


@dataclass
class MarginConfig:
    """Distance between the answer and its hardest rival."""

    weight: float = option(0.0, help="Weight of the margin loss.", low=0)
    gamma: float = option(0.5, help="Score by which the answer should lead.", above=0)


@dataclass
class DraftConfig:
    """How the draft head learns."""

    weight: float = option(0.3, help="Weight of the draft head's cross-entropy.", low=0)
    distillation: float = option(
        0.3,
        help="Weight of its divergence from the decision head, whose gradient is stopped.",
        low=0,
    )


@dataclass
class ObjectiveConfig:
    """Losses and their weights; the cross-entropy has weight 1."""

    label_smoothing: float = option(
        0.0,
        help="Share of the target spread evenly over a question's real candidates.",
        low=0,
        below=1,
    )
    balance_weight: float = option(0.01, help="Weight of the expert load balance loss.", low=0)
    margin: MarginConfig = option(MarginConfig(), help="Margin loss.")
    draft: DraftConfig = option(DraftConfig(), help="Draft head losses.")
    foils: FoilsConfig = option(
        FoilsConfig(), help="Wrong answers from the whole mix, in the margin loss."
    )
    modality_dropout: float = option(
        0.0,
        help="Chance that a block's images, video, audio or context are left out of a step; some "
        "media always stays.",
        low=0,
        below=1,
    )

    def check(self) -> None:
        """Foils act through the margin loss."""
        if self.foils.weight and not self.margin.weight:
            raise ConfigError(
                "foils.weight",
                self.foils.weight,
                "needs the margin loss that foils are part of; give margin.weight above 0",
            )


@dataclass(frozen=True)
class Loss:
    """The objective on a (micro-)batch.

    Attributes:
        total: scalar with gradient.
        terms: unweighted scalars by name, detached, for the log.
        with_gradient: the same with gradient.
    """

    total: torch.Tensor
    terms: dict[str, torch.Tensor]
    with_gradient: dict[str, torch.Tensor]


def smoothed_targets(
    answer_BQ: torch.Tensor, mask_BQK: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Target distributions [B, Q, K]; padded candidates get no mass."""
    valid = mask_BQK.float()
    right = one_hot(answer_BQ.clamp(min=0), mask_BQK.shape[-1]).float() * valid
    if smoothing == 0:
        return right
    return right * (1 - smoothing) + smoothing * valid / valid.sum(-1, keepdim=True).clamp(min=1)


def cross_entropy(
    logits_BQK: torch.Tensor, targets_BQK: torch.Tensor, mask_BQK: torch.Tensor
) -> torch.Tensor:
    """-sum(target * log softmax) per question [B, Q].

    Written out: `F.cross_entropy(reduction='none')` has a silently zero gradient on DirectML.
    """
    log_probs = torch.where(mask_BQK, logits_BQK.log_softmax(dim=-1), 0)
    return -(targets_BQK * log_probs).sum(dim=-1)


def hardest_rival(
    logits_BQK: torch.Tensor, answer_BQ: torch.Tensor, mask_BQK: torch.Tensor
) -> torch.Tensor:
    """The highest score among the wrong candidates [B, Q]."""
    right = one_hot(answer_BQ.clamp(min=0), mask_BQK.shape[-1])
    rivals = mask_logits(logits_BQK.detach(), mask_BQK & ~right)
    # argmax and gather: gradients of max reductions are not safe on every backend.
    return logits_BQK.gather(-1, rivals.argmax(dim=-1, keepdim=True)).squeeze(-1)


def harder(rival_BQ: torch.Tensor, foil_logits_BQF: torch.Tensor) -> torch.Tensor:
    """The higher of the hardest rival's score and the hardest foil's [B, Q].

    A question without foils, whose foil scores are all the lowest finite value, keeps its rival.
    """
    hardest = foil_logits_BQF.detach().argmax(dim=-1, keepdim=True)
    foil_BQ = foil_logits_BQF.gather(-1, hardest).squeeze(-1)
    return torch.where(foil_BQ.detach() > rival_BQ.detach(), foil_BQ, rival_BQ)


def balance_loss(output: DecisionOutput, questions_B: torch.Tensor, total: int) -> torch.Tensor:
    """E * sum_e load_e * probability_e, averaged over layers; 1 when perfectly balanced.

    Switch Transformer's loss (Fedus et al., 2021, eq. 4) with two changes: load counts all top-k
    choices, and it is the previous optimizer step's, so that the loss is linear in the blocks of a
    step and does not depend on how they are cut into micro-batches. A block weighs as much as it
    has questions.
    """
    weights = questions_B / total
    layers = [
        len(stats.load) * (weights @ stats.probabilities) @ stats.load for stats in output.routing
    ]
    return torch.stack(layers).mean()


def compute_loss(
    config: ObjectiveConfig, output: DecisionOutput, batch: DecisionBatch, total_questions: int
) -> Loss:
    """The objective's share that this micro-batch contributes to its optimizer step.

    Args:
        total_questions: questions in the whole optimizer step.
    """
    mask, known = batch.candidate_mask, batch.answer >= 0
    targets = smoothed_targets(batch.answer, mask, config.label_smoothing)

    def mean(per_question_BQ: torch.Tensor) -> torch.Tensor:
        return torch.where(known, per_question_BQ, 0).sum() / total_questions

    terms = {"cross_entropy": mean(cross_entropy(output.logits, targets, mask))}
    weights = {"cross_entropy": 1.0}
    if config.margin.weight:
        gamma = config.margin.gamma
        answer_score = output.logits.gather(-1, batch.answer.clamp(min=0)[..., None]).squeeze(-1)
        rival = hardest_rival(output.logits, batch.answer, mask)
        shortfall = F.relu(gamma - (answer_score - rival))
        terms["margin_loss"] = mean(shortfall)
        weights["margin_loss"] = config.margin.weight
        if config.foils.weight and output.foil_logits is not None:
            hardest = harder(rival, output.foil_logits)
            terms["foil_loss"] = mean(F.relu(gamma - (answer_score - hardest)) - shortfall)
            weights["foil_loss"] = config.margin.weight * config.foils.weight
    # Routers that balance by bias give no statistics.
    if config.balance_weight and output.routing:
        questions = batch.question_mask.sum(dim=1).float()
        terms["balance_loss"] = balance_loss(output, questions, total_questions)
        weights["balance_loss"] = config.balance_weight
    if config.draft.weight:
        terms["draft_loss"] = mean(cross_entropy(output.draft_logits, targets, mask))
        weights["draft_loss"] = config.draft.weight
    if config.draft.distillation:
        teacher = output.logits.detach()
        divergence = cross_entropy(output.draft_logits, teacher.softmax(-1), mask)
        divergence = divergence - cross_entropy(teacher, teacher.softmax(-1), mask)
        terms["distillation_loss"] = mean(divergence)
        weights["distillation_loss"] = config.draft.distillation
    total = sum(weights[name] * term for name, term in terms.items())
    return Loss(total, {name: term.detach() for name, term in terms.items()}, terms)
