"""The foils that travel with a model: found exactly, saved whole, read with suspicion."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from arbiter.errors import ArbiterError
from arbiter.features.memory import MemoryStore
from arbiter.foils import FoilsConfig
from arbiter.model.bank import FEATURES, TEXTS, load_bank, save_bank, travelling_bank

COLORS = [f"{shade} {color}" for shade in ("dark", "pale", "deep") for color in ("red", "blue")]


@pytest.fixture
def bank(encoder):
    table, _ = MemoryStore(encoder, {}).ensure("text", COLORS)
    config = FoilsConfig(count=3, min_similarity=0.1, max_similarity=0.95, vocabulary="/a/path")
    return travelling_bank(config, COLORS, table, 5)


def test_it_holds_the_first_texts_and_nothing_of_the_machine(bank, encoder):
    assert bank.texts == COLORS[:5] and bank.config.vocabulary is None
    found = encoder.encode_text(COLORS[:5])["pooled"].values
    assert np.array_equal(bank.half.numpy(), found.astype(np.float16))
    table, _ = MemoryStore(encoder, {}).ensure("text", COLORS)
    assert travelling_bank(FoilsConfig(), COLORS, table, 0) is None
    assert travelling_bank(FoilsConfig(), [], table, 5) is None


def test_the_nearest_in_the_band_are_found(bank, encoder):
    """Against float64 cosines, one by one."""
    answers = ["dark red", "dark blue", "mauve"]
    candidates = [("dark red", "pale red"), ("dark blue", "DEEP RED."), ("mauve", "x")]
    queries = torch.from_numpy(encoder.encode_text(answers)["pooled"].values)
    found = bank.near(queries, candidates)
    unit = bank.half.double() / bank.half.double().norm(dim=1, keepdim=True)
    for query, own, row in zip(queries.double(), candidates, found.tolist(), strict=True):
        cosines = (unit @ (query / query.norm())).tolist()
        taken = {text.casefold().strip(".") for text in own}
        allowed = [
            place for place, cosine in enumerate(cosines)
            if 0.1 <= cosine <= 0.95 and bank.texts[place] not in taken
        ]  # fmt: skip
        expected = sorted(allowed, key=lambda place: -round(cosines[place], 9))[:3]
        assert row == expected + [-1] * (3 - len(expected))
    alone = torch.cat([bank.near(queries[i : i + 1], candidates[i : i + 1]) for i in range(3)])
    assert torch.equal(found, alone)


def test_it_comes_back_as_it_was_saved(bank, tmp_path):
    save_bank(tmp_path, bank)
    again = load_bank(tmp_path, bank.half.shape[1])
    assert (again.texts, again.config) == (bank.texts, bank.config)
    assert torch.equal(again.half, bank.half)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.update(texts=[]), "list of texts"),
        (lambda v: v.update(texts="abc"), "list of texts"),
        (lambda v: v.update(texts=[1, 2, 3, 4, 5]), "list of texts"),
        (lambda v: v["texts"].pop(), "shape"),
        (lambda v: v.update(count=10**9), "more than its 5 texts"),
        (lambda v: v.update(count=0), "count"),
        (lambda v: v.update(count="many"), "count"),
        (lambda v: v.update(min_similarity=2.0), "min_similarity"),
        (lambda v: v.update(further=1), "further"),
    ],
)
def test_other_contents_are_refused(bank, tmp_path, change, said):
    save_bank(tmp_path, bank)
    values = json.loads((tmp_path / TEXTS).read_text())
    change(values)
    (tmp_path / TEXTS).write_text(json.dumps(values))
    with pytest.raises(ArbiterError, match=said) as error:
        load_bank(tmp_path, bank.half.shape[1])
    assert "\n" not in str(error.value)


def test_other_tensors_are_refused(bank, tmp_path):
    save_bank(tmp_path, bank)
    features = load_file(tmp_path / FEATURES)["features"]
    broken = features.clone()
    broken[0, 0] = torch.inf
    for tensors in (
        {"features": features.float()}, {"features": features[:, :-1].clone()}, {},
        {"features": broken}, {"features": features, "more": features.clone()},
    ):  # fmt: skip
        save_file(tensors, tmp_path / FEATURES)
        with pytest.raises(ArbiterError):
            load_bank(tmp_path, features.shape[1])
