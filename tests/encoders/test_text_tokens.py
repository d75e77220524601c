"""One token per word or text token, from the encoders to the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch

from arbiter.config import build
from arbiter.encoders.openclip import OpenCLIPConfig, OpenCLIPEncoder
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig, hash_text
from arbiter.features.batch import assemble
from arbiter.features.dataset import FeatureDataset, index_samples
from arbiter.features.store import FeatureStore
from arbiter.files import new_directory
from arbiter.model.architecture import ArchitectureConfig
from arbiter.model.decision_model import DecisionModel
from arbiter.model.files import load_model, save_model
from arbiter.model.predict import predict
from arbiter.sample import Sample
from tests.encoders.tiny_openclip import write_model


def raw(**options) -> RawEncoder:
    return RawEncoder(RawEncoderConfig(text_tokens=True, **options))


def sample(question: str, context: str | None = None) -> Sample:
    return Sample(question, ("yes", "no", "a longer answer"), answer=0, context=context)


SAMPLES = [
    sample("is red left of blue?"),
    sample("is blue left of red?", context="a blue circle is left of a red one"),
    sample("why?", context="no reason"),
]


def index(samples: list[Sample], folder: Path, encoder: RawEncoder) -> FeatureDataset:
    return index_samples({"": samples}, FeatureStore(folder, encoder), encoder.spec)[""]


def make_model(encoder: RawEncoder, attention: str = "prefix") -> DecisionModel:
    torch.manual_seed(0)
    config = ArchitectureConfig(
        hidden_dim=16, num_heads=2, num_layers=2, scoring_dim=8, attention=attention
    )
    return DecisionModel(config, encoder.spec, ("context",)).eval()


def logits(model: DecisionModel, samples: list[Sample], folder: Path, encoder) -> np.ndarray:
    return predict(model, index(samples, folder, encoder), 8, torch.device("cpu"), 0).logits


def test_raw_hashes_each_word_where_it_stands():
    found = raw(max_text_tokens=3).encode_text(["Is it RED, or blue?", "no"])["tokens"]
    assert found.counts.tolist() == [3, 1]
    assert found.positions.tolist() == [[0], [1], [2], [0]]
    expected = [hash_text(word, 256) for word in ("is", "it", "red", "no")]
    np.testing.assert_array_equal(found.values, expected)


def test_the_option_leaves_pooled_text_and_other_features_alone():
    plain = RawEncoder(RawEncoderConfig())
    np.testing.assert_array_equal(
        plain.encode_text(["a b"])["pooled"].values, raw().encode_text(["a b"])["pooled"].values
    )
    assert plain.fingerprint("image") == raw().fingerprint("image")
    prints = [str(e.fingerprint("text")) for e in (plain, raw(), raw(max_text_tokens=9))]
    assert len(set(prints)) == 3


@pytest.mark.parametrize("tokenizer", [True, False], ids=["transformers", "open_clip"])
@torch.no_grad()
def test_openclip_gives_every_token_but_the_padding(tmp_path, tokenizer):
    name = f"local-dir:{write_model(tmp_path, tokenizer=tokenizer)}"
    model, ids = open_clip.create_model(name).eval(), open_clip.get_tokenizer(name)(["red", "a a!"])
    output = model.forward_intermediates(text=ids, normalize_intermediates=True)
    # A start (open_clip's own tokenizer only), the words, and an end.
    lengths = [2, 4] if tokenizer else [3, 5]
    encoder = OpenCLIPEncoder(OpenCLIPConfig(model_name=name, weights=None, text_tokens=True))
    found = encoder.encode_text(["red", "a a!"])["tokens"]
    assert found.counts.tolist() == lengths
    states = output["text_intermediates"][-1]
    expected = torch.cat([states[0, : lengths[0]], states[1, : lengths[1]]])
    expected = expected / expected.square().mean(dim=-1, keepdim=True).sqrt()
    np.testing.assert_allclose(found.values, expected.numpy(), atol=1e-4)
    assert found.positions[:, 0].tolist() == [*range(lengths[0]), *range(lengths[1])]
    assert encoder.spec["text"]["tokens"].dim == 16
    assert encoder.spec["text"]["tokens"].grid == (12,)


def test_a_batch_holds_the_words_of_each_question_and_context(tmp_path):
    encoder = raw(cache_dtype="float16")
    data = index([*SAMPLES, SAMPLES[0]], tmp_path, encoder)
    batch = assemble(data, torch.tensor([[0, 1], [2, -1], [3, -1]]))
    assert batch.text_tokens["question"].tokens.mask.shape[0] == 3  # distinct texts, once each
    for name, text_of in (("question", lambda s: s.question), ("context", lambda s: s.context)):
        text = batch.text_tokens[name]
        for place, number in (((0, 0), 0), ((0, 1), 1), ((1, 0), 2), ((2, 0), 3)):
            wanted = text_of(data.samples[number])
            assert bool(text.present[place]) == (wanted is not None)
            if wanted is not None:
                mask = text.tokens.mask[text.index[place]]
                expected = encoder.encode_text([wanted])["tokens"]
                values = text.tokens.values[text.index[place]][mask]
                np.testing.assert_allclose(values, expected.values, rtol=1e-3, atol=1e-4)
        assert not text.present[1, 1] and not text.present[2, 1]


@pytest.mark.parametrize("attention", ["prefix", "full"])
def test_words_reach_the_decision_and_neighbours_do_not(tmp_path, attention):
    encoder = raw()
    model = make_model(encoder, attention)
    together = logits(model, SAMPLES, tmp_path, encoder)
    for number, one in enumerate(SAMPLES):
        alone = logits(model, [one], tmp_path, encoder)
        np.testing.assert_allclose(alone[0], together[number], atol=1e-5)
    with torch.no_grad():
        model.tokens.words.weight.mul_(-1)
    for name in ("question", "context"):
        with torch.no_grad():
            model.tokens.word_type_embedding[name].add_(
                torch.randn(16, generator=torch.manual_seed(1))
            )
    moved = logits(model, SAMPLES, tmp_path, encoder)
    assert (np.abs(moved - together).max(axis=1) > 1e-4).all()


@torch.no_grad()
def test_words_of_a_context_move_only_questions_that_have_one(tmp_path):
    encoder = raw()
    model = make_model(encoder)
    before = logits(model, SAMPLES, tmp_path, encoder)
    model.tokens.word_type_embedding["context"].add_(torch.randn(16))
    after = logits(model, SAMPLES, tmp_path, encoder)
    assert (np.abs(after - before).max(axis=1) > 1e-4).tolist() == [False, True, True]


def test_a_saved_model_reads_words_again(tmp_path):
    encoder = raw()
    model = make_model(encoder)
    store = FeatureStore(tmp_path / "codecs", encoder)
    store.ensure("text", ["a text"])
    with new_directory(tmp_path / "model") as directory:
        save_model(directory, model, encoder, {"text": store.codecs("text")})
    loaded = load_model(tmp_path / "model")
    assert loaded.encoder.spec == encoder.spec
    np.testing.assert_array_equal(
        logits(loaded.model, SAMPLES, tmp_path, loaded.encoder),
        logits(model, SAMPLES, tmp_path, build(encoder.config)),
    )
