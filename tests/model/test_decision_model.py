"""What must never change an answer: order, padding, neighbours, absent media."""

from dataclasses import replace

import pytest
import torch

from arbiter.features.batch import assemble
from arbiter.features.dataset import index_samples
from arbiter.features.memory import MemoryStore
from arbiter.features.sampler import blocks_of
from arbiter.model.architecture import ArchitectureConfig
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import predict
from arbiter.sample import Modality
from tests.conftest import make_model, make_samples

CPU = torch.device("cpu")
KINDS = [
    (attention, dispatch)
    for attention in ("prefix", "full", "perceiver")
    for dispatch in ("grouped", "dense")
]


@pytest.fixture(params=KINDS, ids="-".join)
def model(request, dataset, encoder):
    attention, dispatch = request.param
    return make_model(dataset, encoder, dispatch, attention=attention)


def alone(model, dataset, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of one sample in a batch of its own."""
    with torch.no_grad():
        output = model(assemble(dataset, torch.tensor([[index]])))
    return output.logits[0, 0], output.draft_logits[0, 0]


def test_neighbours_and_padding_do_not_matter(model, dataset):
    together = predict(model, dataset, batch_size=100, device=CPU, ahead=0)
    for index in range(len(dataset)):
        logits, draft = alone(model, dataset, index)
        count = len(logits)
        torch.testing.assert_close(
            torch.from_numpy(together.logits[index, :count]), logits, atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            torch.from_numpy(together.draft_logits[index, :count]), draft, atol=1e-5, rtol=0
        )
        assert not together.mask[index, count:].any()
        assert (together.probabilities[index, count:] == 0).all()


def test_extra_padding_does_not_matter(model, dataset):
    batch = assemble(dataset, blocks_of(dataset, 16))
    image = batch.media["patches"]
    blocks, _, width = image.values.shape
    # Garbage behind a mask: if anything reads it, the scores change.
    garbage = torch.full((blocks, 5, width), 1e3)
    padded = replace(
        image,
        values=torch.cat([image.values, garbage], dim=1),
        mask=torch.cat([image.mask, torch.zeros(blocks, 5, dtype=torch.bool)], dim=1),
        positions=torch.cat([image.positions, torch.zeros(blocks, 5, 3, dtype=torch.int64)], 1),
    )
    with torch.no_grad():
        plain = model(batch).logits
        changed = model(replace(batch, media={**batch.media, "patches": padded})).logits
    real = batch.question_mask
    torch.testing.assert_close(changed[real], plain[real], atol=1e-5, rtol=0)


def test_permuting_candidates_permutes_the_scores(model, dataset, encoder):
    samples = make_samples()
    rolled = [
        replace(s, candidates=s.candidates[1:] + s.candidates[:1], answer=None) for s in samples
    ]
    data = index_samples({"": rolled}, MemoryStore(encoder, {}), encoder.spec)[""]
    original = index_samples({"": samples}, MemoryStore(encoder, {}), encoder.spec)[""]
    for index, sample in enumerate(samples):
        count = len(sample.candidates)
        for ours, theirs in zip(
            alone(model, data, index), alone(model, original, index), strict=True
        ):
            torch.testing.assert_close(ours[:count], theirs[:count].roll(-1), atol=1e-5, rtol=0)


def test_masked_media_have_no_influence_and_no_tokens(model, dataset):
    with_image = next(i for i, s in enumerate(make_samples()) if s.images)
    batch = assemble(dataset, torch.tensor([[with_image]]))
    with torch.no_grad():
        absent = model(batch.without_media()).logits
        hidden = {
            kind: replace(t, mask=torch.zeros_like(t.mask), values=t.values * 100)
            for kind, t in batch.media.items()
        }
        masked = model(replace(batch, media=hidden)).logits
        seen = model(batch).logits
    torch.testing.assert_close(masked, absent, atol=1e-5, rtol=0)
    assert (seen - absent).abs().max() > 1e-3


def test_absent_media_cost_nothing(dataset, encoder):
    model = make_model(dataset, encoder)
    lengths = []
    model.layers[0].register_forward_hook(
        lambda module, inputs, output: lengths.append(inputs[0].shape[1])
    )
    text_only = len(dataset) - 1
    alone(model, dataset, text_only)
    alone(model, dataset, 0)
    assert lengths == [0, 1 + 24]


def test_latents_cost_the_same_for_any_media(dataset, encoder):
    model = make_model(dataset, encoder, attention="perceiver", num_latents=5)
    lengths = []
    model.layers[0].register_forward_hook(
        lambda module, inputs, output: lengths.append(inputs[0].shape[1])
    )
    text_only = len(dataset) - 1
    alone(model, dataset, text_only)
    for index in range(len(dataset) - 1):
        alone(model, dataset, index)
    assert lengths[0] == 0
    assert set(lengths[1:]) <= {0, 5} and 5 in lengths


def test_every_modality_matters(model, dataset):
    everything = next(
        i for i, s in enumerate(make_samples()) if s.modalities == frozenset(Modality)
    )
    batch = assemble(dataset, torch.tensor([[everything]]))
    with torch.no_grad():
        full = model(batch).logits
        for kind in ("image", "patches", "video", "audio"):
            without = {k: t for k, t in batch.media.items() if k != kind}
            assert (model(replace(batch, media=without)).logits - full).abs().max() > 1e-5
        without_context = replace(batch, context_mask=torch.zeros_like(batch.context_mask))
        assert (model(without_context).logits - full).abs().max() > 1e-5


def test_positions_matter(model, dataset):
    batch = assemble(dataset, torch.tensor([[0]]))
    patches = batch.media["patches"]
    mirrored = patches.positions.clone()
    mirrored[..., 2] = 7 - mirrored[..., 2]
    moved = replace(batch, media={**batch.media, "patches": replace(patches, positions=mirrored)})
    with torch.no_grad():
        assert (model(moved).logits - model(batch).logits).abs().max() > 1e-6


def test_gradients_reach_every_parameter(model, dataset):
    model.train()
    output = model(assemble(dataset, blocks_of(dataset, 16)))
    loss = output.logits.clamp(min=-100).square().sum()
    loss = loss + output.draft_logits.clamp(min=-100).square().sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_prefix_media_do_not_depend_on_questions(dataset, encoder):
    """Why questions can share an image's tokens."""
    model = make_model(dataset, encoder, attention="prefix")
    media = []
    model.layers[0].register_forward_hook(lambda module, inputs, output: media.append(output[0]))
    with torch.no_grad():
        model(assemble(dataset, torch.tensor([[0]])))
        model(assemble(dataset, torch.tensor([[1, 2]])))
    torch.testing.assert_close(media[0], media[1], atol=1e-6, rtol=0)


def test_parameters_exist_only_for_what_is_read(encoder):
    text_only = DecisionModel(ArchitectureConfig(), encoder.spec, ())
    names = [name for name, _ in text_only.named_parameters()]
    assert not [n for n in names if "image" in n or "audio" in n or "context" in n]
