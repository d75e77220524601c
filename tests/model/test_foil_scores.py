"""Foils are scored as candidates are, and change nothing else."""

from dataclasses import replace

import pytest
import torch

from arbiter.features.batch import assemble
from arbiter.features.sampler import blocks_of
from tests.conftest import make_model


@pytest.fixture
def batch(foil_dataset):
    return assemble(foil_dataset, blocks_of(foil_dataset, 3))


def test_a_foil_scores_what_it_would_score_as_a_candidate(foil_dataset, encoder, batch):
    model = make_model(foil_dataset, encoder)
    as_candidates = replace(
        batch,
        candidates=torch.cat([batch.candidates, batch.foils], dim=-1),
        candidate_mask=torch.cat([batch.candidate_mask, batch.foil_mask], dim=-1),
        foils=None,
        foil_mask=None,
    )
    with torch.no_grad():
        output, expected = model(batch), model(as_candidates)
    width = batch.candidates.shape[-1]
    torch.testing.assert_close(output.logits, expected.logits[..., :width])
    torch.testing.assert_close(output.foil_logits, expected.logits[..., width:])
    assert (output.foil_logits[~batch.foil_mask] == torch.finfo(torch.float32).min).all()
    assert expected.foil_logits is None
    assert batch.foil_mask.any() and not batch.foil_mask.all()


def test_foils_do_not_change_the_candidates_scores(foil_dataset, encoder, batch):
    model = make_model(foil_dataset, encoder)
    with torch.no_grad():
        output, plain = model(batch), model(replace(batch, foils=None, foil_mask=None))
    torch.testing.assert_close(output.logits, plain.logits, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(output.draft_logits, plain.draft_logits, atol=1e-6, rtol=1e-6)
    assert output.draft_logits.shape == batch.candidates.shape
