"""What an aligned encoder's images add to a candidate's score."""

from __future__ import annotations

import torch

from arbiter.encoders.base import FeatureSpec, StreamSpec
from arbiter.features.batch import DecisionBatch, MediaTokens
from arbiter.model.decision_model import ArchitectureConfig, DecisionModel

DIM = 12


def make_model(aligned: bool = True, inputs: tuple[str, ...] = ("image",)) -> DecisionModel:
    spec = FeatureSpec(
        {"text": {"pooled": StreamSpec(DIM)}, "image": {"pooled": StreamSpec(DIM)}}, aligned
    )
    torch.manual_seed(3)
    config = ArchitectureConfig(hidden_dim=16, num_heads=2, num_layers=1, scoring_dim=8)
    return DecisionModel(config, spec, inputs).eval()


def make_batch(images: torch.Tensor | None) -> DecisionBatch:
    """One question with three candidates, about `images` [T, D] or none."""
    generator = torch.Generator().manual_seed(5)
    one = torch.ones(1, 1, dtype=torch.bool)
    media = {}
    if images is not None:
        media["image"] = MediaTokens(images[None], torch.ones(1, len(images), dtype=torch.bool))
    return DecisionBatch(
        texts=torch.randn(4, DIM, generator=generator),
        text_ids=torch.arange(4),
        question=torch.tensor([[0]]),
        question_mask=one,
        context=torch.zeros(1, 1, dtype=torch.int64),
        context_mask=~one,
        candidates=torch.tensor([[[1, 2, 3]]]),
        candidate_mask=torch.ones(1, 1, 3, dtype=torch.bool),
        answer=torch.tensor([[0]]),
        sample=torch.tensor([[0]]),
        media=media,
    )


@torch.no_grad()
def test_scores_gain_scale_times_cosine_of_the_mean_image():
    images = torch.randn(2, DIM, generator=torch.Generator().manual_seed(6))
    model, batch = make_model(), make_batch(images)
    without, temperature = model(batch), 1.7
    for head in (model.head, model.draft):
        head.image_residual.scale.fill_(0.0)
    model.head.log_temperature.fill_(float(torch.tensor(temperature).log()))
    base = model(batch)
    model.head.image_residual.scale.fill_(4.0)
    model.draft.image_residual.scale.fill_(-2.0)
    moved = model(batch)
    mean = images.mean(dim=0)
    cosine = [float(batch.texts[i] @ mean / batch.texts[i].norm() / mean.norm()) for i in (1, 2, 3)]
    expected = torch.tensor(cosine)
    torch.testing.assert_close(
        (moved.logits - base.logits)[0, 0] * temperature, 4 * expected, atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        (moved.draft_logits - base.draft_logits)[0, 0], -2 * expected, atol=1e-5, rtol=1e-4
    )
    assert not torch.allclose(without.logits, base.logits)


@torch.no_grad()
def test_an_absent_image_adds_nothing():
    model = make_model()
    quiet = model(make_batch(None))
    for head in (model.head, model.draft):
        head.image_residual.scale.fill_(1000.0)
    loud = model(make_batch(None))
    assert torch.equal(quiet.logits, loud.logits)
    assert torch.equal(quiet.draft_logits, loud.draft_logits)


def test_both_scales_learn():
    model = make_model()
    output = model(make_batch(torch.randn(1, DIM)))
    (output.logits[0, 0, 0] + output.draft_logits[0, 0, 0]).backward()
    for head in (model.head, model.draft):
        assert head.image_residual.scale.grad.abs() > 0


def test_there_is_no_residual_without_a_shared_space_or_without_images():
    for model in (make_model(aligned=False), make_model(inputs=())):
        assert not [name for name, _ in model.named_parameters() if "image_residual" in name]
