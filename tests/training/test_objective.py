"""The objective against float64 loops and closed forms."""

import math
from types import SimpleNamespace

import pytest
import torch

from arbiter.model.decision_model import DecisionOutput
from arbiter.model.heads import mask_logits
from arbiter.model.moe import RoutingStats
from arbiter.training.objective import (
    DraftConfig,
    MarginConfig,
    ObjectiveConfig,
    compute_loss,
    smoothed_targets,
)

MASK = torch.tensor([[[1, 1, 1, 0], [1, 1, 0, 0]], [[1, 1, 1, 1], [0, 0, 0, 0]]]).bool()
ANSWER = torch.tensor([[2, 0], [1, -1]])


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 2, 4, generator=generator, requires_grad=True)
    draft = torch.randn(2, 2, 4, generator=generator, requires_grad=True)
    probabilities = torch.rand(2, 3, generator=generator).softmax(-1)
    stats = RoutingStats(probabilities, torch.tensor([0.5, 0.3, 0.2]))
    output = DecisionOutput(mask_logits(logits, MASK), mask_logits(draft, MASK), [stats])
    batch = SimpleNamespace(
        candidate_mask=MASK,
        answer=ANSWER,
        question_mask=torch.tensor([[True, True], [True, False]]),
    )
    return output, batch, logits, draft, probabilities


def log_softmax(row: list[float]) -> list[float]:
    total = math.log(sum(math.exp(z) for z in row))
    return [z - total for z in row]


def real_rows(logits):
    """(valid logits, answer) of the three real questions."""
    for b, q in ((0, 0), (0, 1), (1, 0)):
        count = int(MASK[b, q].sum())
        yield logits[b, q, :count].double().tolist(), int(ANSWER[b, q])


OFF = {"margin": MarginConfig(weight=0), "draft": DraftConfig(weight=0, distillation=0)}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_smooths_over_real_candidates_only(problem, smoothing):
    output, batch, logits, *_ = problem
    config = ObjectiveConfig(label_smoothing=smoothing, balance_weight=0, **OFF)
    expected = 0.0
    for row, answer in real_rows(logits):
        log_p = log_softmax(row)
        expected -= (1 - smoothing) * log_p[answer] + smoothing * sum(log_p) / len(row)
    loss = compute_loss(config, output, batch, 3)
    assert loss.total.item() == pytest.approx(expected / 3, abs=1e-5)
    assert set(loss.terms) == {"cross_entropy"}


def test_targets_give_padding_nothing():
    targets = smoothed_targets(ANSWER, MASK, 0.3)
    assert (targets[~MASK] == 0).all()
    torch.testing.assert_close(targets[0].sum(-1), torch.ones(2))


def test_margin_is_against_the_hardest_rival(problem):
    output, batch, logits, *_ = problem
    config = ObjectiveConfig(
        balance_weight=0, margin=MarginConfig(weight=2.0, gamma=0.5), draft=OFF["draft"]
    )
    expected = 0.0
    for row, answer in real_rows(logits):
        rival = max(z for k, z in enumerate(row) if k != answer)
        expected += max(0.0, 0.5 - (row[answer] - rival))
    loss = compute_loss(config, output, batch, 3)
    assert float(loss.terms["margin_loss"]) == pytest.approx(expected / 3, abs=1e-5)
    plain = compute_loss(ObjectiveConfig(balance_weight=0, **OFF), output, batch, 3)
    assert (loss.total - plain.total).item() == pytest.approx(2 * expected / 3, abs=1e-5)


def test_balance_weighs_blocks_by_questions(problem):
    output, batch, _, _, probabilities = problem
    config = ObjectiveConfig(balance_weight=1.0, **OFF)
    mean = (2 * probabilities[0] + probabilities[1]) / 3
    expected = 3 * (0.5 * mean[0] + 0.3 * mean[1] + 0.2 * mean[2])
    loss = compute_loss(config, output, batch, 3)
    assert float(loss.terms["balance_loss"]) == pytest.approx(float(expected), abs=1e-6)


def test_distillation_is_the_divergence_and_leaves_the_teacher_alone(problem):
    output, batch, logits, draft, _ = problem
    config = ObjectiveConfig(
        balance_weight=0, margin=OFF["margin"], draft=DraftConfig(weight=0, distillation=1.0)
    )
    expected = 0.0
    for (teacher, _), (student, _) in zip(real_rows(logits), real_rows(draft), strict=True):
        log_t, log_s = log_softmax(teacher), log_softmax(student)
        expected += sum(math.exp(t) * (t - s) for t, s in zip(log_t, log_s, strict=True))
    loss = compute_loss(config, output, batch, 3)
    assert float(loss.terms["distillation_loss"]) == pytest.approx(expected / 3, abs=1e-5)
    (loss.total - loss.terms["cross_entropy"]).backward(retain_graph=True)
    assert draft.grad.abs().sum() > 0
    cross_entropy_only = compute_loss(ObjectiveConfig(balance_weight=0, **OFF), output, batch, 3)
    (expected_grad,) = torch.autograd.grad(cross_entropy_only.total, logits)
    torch.testing.assert_close(logits.grad, expected_grad)


def test_shares_of_a_step_add_up(problem):
    output, batch, *_ = problem
    config = ObjectiveConfig(margin=MarginConfig(weight=0.3))
    whole = compute_loss(config, output, batch, 3)
    total = 0.0
    for b in range(2):
        part = slice(b, b + 1)
        stats = RoutingStats(output.routing[0].probabilities[part], output.routing[0].load)
        piece = DecisionOutput(output.logits[part], output.draft_logits[part], [stats])
        share = SimpleNamespace(**{k: v[part] for k, v in vars(batch).items()})
        total += compute_loss(config, piece, share, 3).total.item()
    assert whole.total.item() == pytest.approx(total, abs=1e-6)
