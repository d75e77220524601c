"""The objective against float64 loops and closed forms."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from arbiter.errors import ConfigError
from arbiter.foils import FoilsConfig
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


FOIL_MASK = torch.tensor([[[1, 1], [0, 0]], [[1, 0], [0, 0]]]).bool()
FOIL_CONFIG = ObjectiveConfig(
    balance_weight=0,
    margin=MarginConfig(weight=2.0, gamma=0.5),
    draft=OFF["draft"],
    foils=FoilsConfig(weight=0.7),
)


@pytest.mark.parametrize("foil", [-3.0, 0.0, 0.6, 2.0])
def test_the_margin_counts_the_hardest_foil_when_it_is_harder(problem, foil):
    output, batch, logits, *_ = problem
    # The first question has two foils, the second none, the third one.
    raw = torch.tensor([[[foil, foil - 1], [9.0, 9.0]], [[foil + 0.3, 9.0], [9.0, 9.0]]])
    raw.requires_grad_()
    output = replace(output, foil_logits=mask_logits(raw, FOIL_MASK))
    own, both = 0.0, 0.0
    hardest_foils = [foil, -math.inf, foil + 0.3]
    foil_grad = [0.0, 0.0, 0.0]
    for i, ((row, answer), hardest) in enumerate(
        zip(real_rows(logits), hardest_foils, strict=True)
    ):
        rival = max(z for k, z in enumerate(row) if k != answer)
        own += max(0.0, 0.5 - (row[answer] - rival))
        both += max(0.0, 0.5 - (row[answer] - max(rival, hardest)))
        if hardest > rival and row[answer] - hardest < 0.5:
            foil_grad[i] = 2.0 * 0.7 / 3
    loss = compute_loss(FOIL_CONFIG, output, batch, 3)
    assert float(loss.terms["margin_loss"]) == pytest.approx(own / 3, abs=1e-5)
    assert float(loss.terms["foil_loss"]) == pytest.approx((both - own) / 3, abs=1e-5)
    plain = compute_loss(ObjectiveConfig(balance_weight=0, **OFF), output, batch, 3)
    expected = 2.0 * (own + 0.7 * (both - own)) / 3
    assert (loss.total - plain.total).item() == pytest.approx(expected, abs=1e-5)
    loss.total.backward()
    gradient = torch.zeros(2, 2, 2)
    gradient[0, 0, 0], gradient[1, 0, 0] = foil_grad[0], foil_grad[2]
    torch.testing.assert_close(raw.grad, gradient)
    assert torch.isfinite(logits.grad).all()


def test_foils_are_not_computed_when_they_do_not_count(problem):
    output, batch, *_ = problem
    output = replace(output, foil_logits=torch.full((2, 2, 2), 9.0))
    for config in (
        replace(FOIL_CONFIG, foils=FoilsConfig(weight=0.0)),
        replace(FOIL_CONFIG, margin=MarginConfig(weight=0.0)),
    ):
        assert "foil_loss" not in compute_loss(config, output, batch, 3).terms
    without = compute_loss(FOIL_CONFIG, replace(output, foil_logits=None), batch, 3)
    assert set(without.terms) == {"cross_entropy", "margin_loss"}


def test_foils_without_a_margin_are_an_error():
    with pytest.raises(ConfigError, match=r"foils\.weight=1\.0: needs .* margin\.weight above 0"):
        ObjectiveConfig(foils=FoilsConfig(weight=1.0)).check()


def test_without_statistics_there_is_no_balance_loss(problem):
    output, batch, *_ = problem
    config = ObjectiveConfig(balance_weight=1.0, **OFF)
    loss = compute_loss(config, replace(output, routing=[]), batch, 3)
    assert set(loss.terms) == {"cross_entropy"}


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
