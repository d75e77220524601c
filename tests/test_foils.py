"""Foils against brute force in float64 over the texts themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from arbiter import foils, media
from arbiter.errors import ConfigError
from arbiter.features.batch import assemble
from arbiter.features.dataset import index_samples
from arbiter.features.sampler import blocks_of
from arbiter.features.store import FeatureStore
from arbiter.foils import FoilBank, FoilsConfig, attach_foils, bank_texts, normalise
from arbiter.sample import Sample
from tests.conftest import make_samples
from tests.features.helpers import flip_byte

WORDS = [
    "a red ball", "red balls", "The red ball.", "a red bell", "red", "blue ball", "a blue ball",
    "blue", "green grass", "the green grass", "grass", "a red fox", "red foxes", "a fox",
    "the blue sky", "sky blue", "yes", "no", "yes.", "seven", "seventeen", "seventy",
]  # fmt: skip


def word_samples() -> list[Sample]:
    """Forty samples over the words; the last one's answer is not known."""
    rng = np.random.default_rng(3)
    samples = []
    for i in range(40):
        candidates = tuple(rng.choice(WORDS, size=2 + i % 5, replace=False).tolist())
        samples.append(Sample(f"question {i}?", candidates, int(rng.integers(len(candidates)))))
    return [*samples[:-1], replace(samples[-1], answer=None)]


@pytest.mark.parametrize(
    "one, other",
    [
        ("Red", "red"), ("red.", "red"), ("  a  red\tball ", "A red ball!"), ("“Red”", "'red'"),
        ("STRASSE", "straße"), ("(red)", "red?"),
    ],
)  # fmt: skip
def test_texts_that_say_the_same_are_equal(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize("one, other", [("5", "-5"), ("C", "C++"), ("a.b", "ab"), ("?", "!")])
def test_texts_that_do_not_are_not(one, other):
    assert normalise(one) != normalise(other) != ""


def test_the_bank_holds_each_text_once_and_the_most_frequent_first():
    samples = [
        Sample("?", ("Red", "blue")), Sample("?", ("red.", "blue")),
        Sample("?", ("Red", "zebra")), Sample("?", ("apple", "blue ")),
    ]  # fmt: skip
    assert bank_texts(FoilsConfig(), samples) == ["blue", "Red", "apple", "zebra"]
    assert bank_texts(FoilsConfig(capacity=2), samples) == ["blue", "Red"]
    assert bank_texts(FoilsConfig(), samples[::-1]) == ["blue", "Red", "apple", "zebra"]


def test_a_vocabulary_comes_after_the_candidates(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("zebra\n\nRED!\n ape \nApe\n", encoding="utf-8-sig")
    config = FoilsConfig(vocabulary=str(path))
    samples = [Sample("?", ("red", "blue"))]
    assert bank_texts(config, samples) == ["blue", "red", "zebra", "ape"]
    assert bank_texts(replace(config, capacity=3), samples) == ["blue", "red", "zebra"]


def test_a_vocabulary_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "latin").write_bytes("caf\xe9".encode("latin-1"))
    for name, reason in (("nowhere", "No such file"), ("latin", "not UTF-8"), (".", "directory")):
        config = FoilsConfig(vocabulary=str(tmp_path / name))
        with pytest.raises(ConfigError, match=rf"objective\.foils\.vocabulary=.*{reason}") as error:
            bank_texts(config, [])
        assert "\n" not in str(error.value)


def test_a_band_must_hold_something():
    with pytest.raises(ConfigError, match=r"min_similarity=0\.5: must be below .* 0\.5"):
        FoilsConfig(min_similarity=0.5, max_similarity=0.5).check()


class Stream:
    """Features in memory, gathered by row."""

    def __init__(self, values: torch.Tensor):
        self.values = values

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.values[rows], None


@pytest.mark.parametrize("bank_block, query_block", [(8192, 1024), (7, 4), (50, 1), (1, 100)])
def test_a_search_finds_what_sorting_all_similarities_finds(monkeypatch, bank_block, query_block):
    monkeypatch.setattr(foils, "_BANK_BLOCK", bank_block)
    monkeypatch.setattr(foils, "_QUERY_BLOCK", query_block)
    generator = torch.Generator().manual_seed(0)
    stored = torch.randn(80, 5, generator=generator)
    queries = torch.cat([stored[:6], torch.randn(5, 5, generator=generator)])
    queries = queries * (1 + torch.arange(11.0))[:, None]
    rows = torch.randperm(80, generator=generator)[:61]
    texts = [f"t{int(row)}" for row in rows]
    config = FoilsConfig(min_similarity=0.3, max_similarity=0.9, count=12)
    bank = FoilBank(config, texts, Stream(stored), rows)
    answers = [f"T{i}." for i in range(11)]
    found = bank.search(queries, answers)
    assert found.shape == (11, 12)
    short = 0
    for query, answer, places in zip(queries.double(), answers, found.tolist(), strict=True):
        cosines = torch.cosine_similarity(query[None], stored[rows].double(), dim=1)
        expected = [
            place
            for place in cosines.argsort(descending=True).tolist()
            if 0.3 <= cosines[place] <= 0.9 and texts[place] != answer[:-1].lower()
        ][:12]
        short += len(expected) < 12
        assert places == expected + [-1] * (12 - len(expected))
    assert 0 < short < 11


def test_without_the_answers_only_the_band_leaves_texts_out():
    stored = torch.eye(3) + 0.1
    config = FoilsConfig(min_similarity=0, max_similarity=1, count=3)
    bank = FoilBank(
        replace(config, max_similarity=1.1), list("abc"), Stream(stored), torch.arange(3)
    )
    assert bank.search(stored[1:2]).tolist() == [[1, 0, 2]]
    assert bank.search(stored[1:2], ["B"]).tolist()[0][2] == -1
    assert bank.search(stored[:0]).shape == (0, 3)


@pytest.fixture(scope="module")
def words(encoder, tmp_path_factory):
    """A store and a dataset of the word samples, with further texts for the bank."""
    store = FeatureStore(tmp_path_factory.mktemp("words"), encoder)
    texts = bank_texts(CONFIG, word_samples())
    return store, index_samples({"": word_samples()}, store, encoder.spec, texts)[""], texts


CONFIG = FoilsConfig(weight=1.0, count=4, min_similarity=0.2, max_similarity=0.95)


def expected_foils(dataset, texts: list[str], config: FoilsConfig) -> list[list[int]]:
    """The text rows of each sample's foils, by sorting all cosines in float64."""
    table = dataset.tables["text"]

    def features(part: list[str]) -> torch.Tensor:
        rows = table.index([media.text_key(text) for text in part])
        return table.streams["pooled"].gather(rows)[0].double()

    expected = []
    for sample in dataset.samples:
        chosen = []
        if sample.answer is not None:
            answer = features([sample.candidates[sample.answer]])
            cosines = torch.cosine_similarity(answer, features(texts), dim=1)
            own = {normalise(candidate) for candidate in sample.candidates}
            chosen = [
                texts[place]
                for place in cosines.argsort(descending=True).tolist()
                if config.min_similarity <= cosines[place] <= config.max_similarity
                and normalise(texts[place]) not in own
            ][: config.count]
        rows = table.index([media.text_key(text) for text in chosen]).tolist()
        expected.append(rows + [-1] * (config.count - len(rows)))
    return expected


@pytest.mark.parametrize("count", [1, 4, 50])
def test_samples_get_the_nearest_texts_that_are_none_of_their_candidates(words, count):
    store, dataset, texts = words
    config = replace(CONFIG, count=count)
    expected = expected_foils(dataset, texts, config)
    table = attach_foils(config, texts, dataset, store).foils
    assert table.rows[table.place].tolist() == expected
    # The words are such that the rules bite: some samples have all foils, some fewer.
    filled = [sum(row >= 0 for row in rows) for rows in expected]
    assert min(filled) == 0 and max(filled) >= min(count, 4)


def test_many_kinds_of_sample_are_compared_by_the_block(words, monkeypatch):
    store, dataset, texts = words
    whole = attach_foils(CONFIG, texts, dataset, store).foils
    near = torch.randint(-1, 5, (3, 6), generator=torch.Generator().manual_seed(0))
    kinds = [(i % 4 - 1, tuple(range(i % 3))) for i in range(10)]
    found = foils._without_candidates(near, kinds, replace(CONFIG, count=2)).tolist()
    for (line, own), row in zip(kinds, found, strict=True):
        left = [] if line < 0 else [p for p in near[line].tolist() if p >= 0 and p not in own]
        assert row == [*left, -1, -1][:2]
    assert whole.rows.dtype == torch.int32


def test_neighbours_are_found_once_and_found_again_when_damaged(words, monkeypatch, caplog):
    store, dataset, texts = words
    config = replace(CONFIG, count=3)
    searches, search = [], FoilBank.search

    def counted(self, *arguments):
        searches.append(self)
        return search(self, *arguments)

    monkeypatch.setattr(FoilBank, "search", counted)
    folder = store.directory("text")
    before = set(folder.glob("foils-*"))
    first = attach_foils(config, texts, dataset, store).foils
    (path,) = set(folder.glob("foils-*")) - before
    contents = path.read_bytes()
    assert len(searches) == 1
    again = attach_foils(config, texts, dataset, store).foils
    assert len(searches) == 1 and torch.equal(again.rows, first.rows)

    flip_byte(path, len(contents) - 1)
    repaired = attach_foils(config, texts, dataset, store).foils
    assert len(searches) == 2 and torch.equal(repaired.rows, first.rows)
    assert path.read_bytes() == contents and "is damaged" in caplog.text
    assert not list(folder.glob(".foils-writing-*"))


@pytest.mark.parametrize(
    "change", [{"count": 5}, {"min_similarity": 0.21}, {"max_similarity": 0.94}], ids=str
)
def test_what_neighbours_depend_on_names_them(words, change):
    store, dataset, texts = words
    first = attach_foils(CONFIG, texts, dataset, store).foils.digest
    assert attach_foils(CONFIG, texts, dataset, store).foils.digest == first
    assert attach_foils(replace(CONFIG, **change), texts, dataset, store).foils.digest != first
    assert attach_foils(CONFIG, texts[:-1], dataset, store).foils.digest != first
    part = replace(dataset, samples=dataset.samples[:3])
    assert attach_foils(CONFIG, texts, part, store).foils.digest != first


def test_the_store_does_not_mistake_neighbours_for_features(words):
    store, dataset, texts = words
    attach_foils(CONFIG, texts, dataset, store)
    assert list(store.directory("text").glob("foils-*.safetensors"))
    assert store.damaged("text") == []
    assert set(store.open("text").rows) == set(dataset.tables["text"].rows)


def test_no_foil_at_all_is_said(words, caplog):
    store, dataset, texts = words
    config = replace(CONFIG, min_similarity=0.9999, max_similarity=0.99995)
    table = attach_foils(config, texts, dataset, store).foils
    assert (table.rows == -1).all() and table.take(torch.arange(5)) is None
    assert "no sample has any" in caplog.text


def test_a_batch_carries_its_samples_foils(words):
    store, dataset, texts = words
    expected = expected_foils(dataset, texts, CONFIG)
    dataset = attach_foils(CONFIG, texts, dataset, store)
    stream = dataset.tables["text"].streams["pooled"]
    batch = assemble(dataset, blocks_of(dataset, 7))
    assert batch.foils.shape == (*batch.question.shape, 4)
    seen = 0
    for b, q in batch.question_mask.nonzero().tolist():
        rows = [row for row in expected[batch.sample[b, q]] if row >= 0]
        got = batch.texts[batch.foils[b, q][batch.foil_mask[b, q]]]
        assert torch.equal(got, stream.gather(torch.tensor(rows, dtype=torch.int64))[0])
        seen += len(rows)
    assert int(batch.foil_mask.sum()) == seen > 0
    moved = batch.to(torch.device("cpu"))
    assert torch.equal(moved.foils, batch.foils) and torch.equal(moved.foil_mask, batch.foil_mask)


def test_foils_leave_the_rest_of_a_batch_as_it_was(words):
    store, dataset, texts = words
    blocks = blocks_of(dataset, 7)
    plain = assemble(dataset, blocks)
    batch = assemble(attach_foils(CONFIG, texts, dataset, store), blocks)
    assert plain.foils is None and plain.foil_mask is None
    assert plain.to(torch.device("cpu")).foils is None
    for name in ("question", "context", "candidates"):
        before = plain.texts[getattr(plain, name)]
        mask = plain.question_mask if name != "candidates" else plain.candidate_mask
        assert torch.equal(before[mask], batch.texts[getattr(batch, name)][mask]), name


def test_a_batch_of_samples_without_foils_has_none(words):
    store, dataset, texts = words
    dataset = attach_foils(CONFIG, texts, dataset, store)
    alone = torch.tensor([[len(dataset) - 1]])
    assert assemble(dataset, alone).foils is None


def test_a_vocabulary_is_in_the_text_table(encoder, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a red ball\n", encoding="utf-8")
    config = FoilsConfig(weight=1.0, min_similarity=-1.0, vocabulary=str(path))
    samples = make_samples()
    texts = bank_texts(config, samples)
    store = FeatureStore(tmp_path / "features", encoder)
    dataset = index_samples({"": samples}, store, encoder.spec, texts)[""]
    dataset = attach_foils(config, texts, dataset, store)
    row = dataset.tables["text"].rows[media.text_key("a red ball")]
    assert (dataset.foils.rows == row).any(dim=-1).all()
