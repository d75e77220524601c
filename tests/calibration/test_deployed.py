"""The paths that can be deployed: what they compute, what they skip, what cannot sway them."""

import dataclasses

import numpy as np
import pytest
import torch

from arbiter.calibration.deliberation import DeliberationConfig, noise_source
from arbiter.calibration.deployed import DELIBERATED, FULL, GATED, PATHS, Deployed, Fitted
from arbiter.calibration.gate import Gate
from arbiter.features.batch import assemble
from arbiter.features.content import sample_digests
from arbiter.foils import FoilsConfig
from arbiter.model.bank import TravellingBank
from arbiter.model.noise import Noise
from arbiter.model.predict import Running, predict, predict_draft, softmax
from arbiter.sample import Sample
from tests.calibration.problems import CPU, WORDS, index, small_bank
from tests.conftest import make_model

NEVER = Gate(margin=2.0, entropy=0.0, confidence=2.0)
ALWAYS = Gate(margin=0.0, entropy=np.inf, confidence=0.0)


def fitted(**changes) -> Fitted:
    base = Fitted(0.5, 0.05, 0.07, None, DeliberationConfig(passes=3), seed=1)
    return dataclasses.replace(base, **changes)


def half_open(model, dataset) -> Gate:
    """A gate that opens for about half of the samples, with no sample near its edge."""
    top = np.sort(softmax(*predict_draft(model, dataset, Running())).max(axis=-1))
    middle = len(top) // 2
    return Gate(0.0, np.inf, float(top[middle - 1 : middle + 1].mean()))


@pytest.fixture(scope="module", params=["prefix", "full"])
def model(request, dataset, encoder):
    return make_model(dataset, encoder, attention=request.param)


def deployed(model, encoder, **changes) -> Deployed:
    return Deployed(model, fitted(**changes), small_bank(encoder), Running())


@pytest.mark.parametrize("path", PATHS)
def test_neighbours_and_batches_have_no_influence(model, dataset, encoder, path):
    gate = half_open(model, dataset)
    engine = deployed(model, encoder, gate=gate)
    together = engine.run(dataset, path)
    small = Deployed(model, engine.fitted, engine.bank, Running(batch_size=1))
    for rows in ([3], [16, 2], list(range(len(dataset)))[::-1]):
        part = small.run(dataset.take(rows), path)
        width = part.probabilities.shape[1]
        np.testing.assert_allclose(
            part.probabilities, together.probabilities[rows, :width], atol=1e-5
        )
        assert np.array_equal(part.early_exit, together.early_exit[rows])
        assert np.array_equal(part.uniform, together.uniform[rows])
        if path == DELIBERATED:
            assert np.array_equal(part.stability, together.stability[rows])
            assert np.array_equal(part.collision, together.collision[rows])
    np.testing.assert_allclose(together.probabilities.sum(axis=-1), 1)
    assert (together.probabilities[~together.mask] == 0).all()


def test_the_gate_chooses_between_the_two_heads(model, dataset, encoder):
    engine = deployed(model, encoder, gate=half_open(model, dataset))
    outcome = engine.run(dataset, GATED)
    assert 0 < outcome.early_exit.sum() < len(dataset)
    found = predict(model, dataset, 32, CPU, ahead=0)
    draft = softmax(found.draft_logits, found.mask, 0.5)
    full = softmax(found.logits, found.mask, 0.05)
    expected = np.where(outcome.early_exit[:, None], draft, full)
    np.testing.assert_allclose(outcome.probabilities, expected, atol=1e-5)
    np.testing.assert_allclose(engine.run(dataset, FULL).probabilities, full, atol=1e-5)


@pytest.mark.parametrize("gate", [None, NEVER, ALWAYS, "half"], ids=str)
def test_questions_that_exit_are_not_fused(model, dataset, encoder, gate, monkeypatch):
    gate = half_open(model, dataset) if gate == "half" else gate
    engine = deployed(model, encoder, gate=gate)
    fused = []
    original = model.fuse

    def counting(batch, **options):
        fused.append(int(batch.question_mask.sum()))
        return original(batch, **options)

    monkeypatch.setattr(model, "fuse", counting)
    outcome = engine.run(dataset, GATED)
    assert sum(fused) == len(dataset) - outcome.early_exit.sum()
    if gate is ALWAYS:
        assert fused == [] and outcome.early_exit.all()
    if gate is None or gate is NEVER:
        assert not outcome.early_exit.any()


def test_deliberation_is_the_mean_of_its_passes(model, dataset, encoder):
    """By hand, one sample at a time, each pass in a batch of its own."""
    engine = deployed(model, encoder)
    outcome = engine.run(dataset, DELIBERATED)
    source = noise_source(model, engine.fitted.deliberation, engine.fitted.seed)
    keep, router = source.draw(sample_digests(dataset))
    for row in (0, 4, 13, 16):
        batch = assemble(dataset, torch.tensor([[row]]))
        passes = []
        with torch.no_grad():
            for t in range(3):
                noise = Noise(keep[row, t][None, None], router[row, t][None, None])
                fused = model.fuse(batch, noise)
                passes.append(model.score(fused, batch.texts, batch.candidates)[0, 0].double())
        scores = torch.stack(passes)
        mean = scores.softmax(dim=-1).mean(dim=0)
        expected = (mean.log() / engine.fitted.deliberated_temperature).softmax(dim=-1)
        count = len(expected)
        np.testing.assert_allclose(outcome.probabilities[row, :count], expected, atol=1e-5)


def test_noise_moves_probabilities_and_its_absence_does_not(model, dataset, encoder):
    still = DeliberationConfig(passes=2, dropout=0.0, router_noise=0.0)
    engine = Deployed(
        model, fitted(deliberation=still, deliberated_temperature=0.05), None, Running()
    )
    outcome = engine.run(dataset, DELIBERATED)
    full = engine.run(dataset, FULL)
    np.testing.assert_allclose(outcome.probabilities, full.probabilities, atol=1e-5)
    assert (outcome.stability == 1).all() and outcome.collision is None
    noisy = deployed(model, encoder).run(dataset, DELIBERATED)
    assert np.abs(noisy.probabilities - full.probabilities).max() > 1e-3


def test_stability_counts_passes_and_foils(dataset, encoder, monkeypatch):
    """Scores set by hand: three passes, two candidates, and the two other texts as foils."""
    model = make_model(dataset, encoder)
    texts = ("red", "green", "blue", "black")
    values = torch.from_numpy(encoder.encode_text(texts)["pooled"].values)
    config = FoilsConfig(count=2, min_similarity=-1.0, max_similarity=0.99)
    bank = TravellingBank(config, texts, values.half())
    data = index([Sample("q?", ("red", "green"))], encoder)
    table = {  # text -> its score in each pass
        "red": [2.0, 2.0, 0.0],
        "green": [0.0, 0.0, 0.5],
        "blue": [1.0, 3.0, -1.0],
        "black": [-9.0, 2.0, 5.0],
    }

    def score(fused, texts_UD, candidates_BQK):
        names = [
            texts[int((values.half().float() - t).abs().sum(dim=1).argmin())] for t in texts_UD
        ]
        places = candidates_BQK[0].tolist()
        return torch.tensor([[[table[names[k]][t] for k in row] for t, row in enumerate(places)]])

    monkeypatch.setattr(model, "score", score)
    outcome = Deployed(model, fitted(), bank, Running()).run(data, DELIBERATED)
    # red wins passes 1 and 2, and the mean. Of the foils it beats both in pass 1 and neither in
    # pass 2, as a tie is no win; pass 3 is lost anyway.
    assert outcome.stability.tolist() == pytest.approx([(1 * 1 + 1 * 0 + 0 * 0.5) / 3])
    # Means: red 4/3, blue 1, black -2/3: no collision.
    assert outcome.collision.tolist() == [False]
    table["blue"][1] = 4.0  # its mean is 4/3 as well
    assert Deployed(model, fitted(), bank, Running()).run(data, DELIBERATED).collision[0]


def test_foils_are_never_candidates(encoder):
    bank = small_bank(encoder, count=8)
    features = torch.from_numpy(encoder.encode_text(["red", "unheard of"])["pooled"].values)
    found = bank.near(features, [("Red.", "green"), WORDS[:6]])
    names = [[WORDS[place] for place in row if place >= 0] for row in found.tolist()]
    assert sorted(names[0]) == sorted(set(WORDS) - {"red", "green"})
    assert sorted(names[1]) == sorted(WORDS[6:])


def test_randomisation_is_even_and_fixed(dataset, encoder, model):
    engine = deployed(model, encoder)
    first, second = (engine.run(dataset, path).uniform for path in (GATED, FULL))
    assert np.array_equal(first, second)
    assert len(set(first.tolist())) == len(dataset) and ((first >= 0) & (first < 1)).all()
    assert not np.array_equal(first, deployed(model, encoder, seed=2).run(dataset, FULL).uniform)
