"""A sample's name depends on what it holds, and on nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from arbiter.features.content import dataset_digest, sample_digests
from arbiter.features.dataset import index_samples
from arbiter.features.memory import MemoryStore
from arbiter.features.ragged import Ragged
from arbiter.sample import Sample
from tests.conftest import draw_square, make_samples, tone

PICTURE = draw_square("red", 8, 8)
BASE = Sample(
    "what?",
    ("a", "b", "c"),
    context="so",
    images=(PICTURE,),
    video=(draw_square("blue", 0, 0), draw_square("green", 0, 0)),
    audio=tone(440),
)


def digests(encoder, samples):
    return sample_digests(index_samples({"": samples}, MemoryStore(encoder, {}), encoder.spec)[""])


@pytest.mark.parametrize(
    "change",
    [
        {"question": "what then?"},
        {"candidates": ("a", "b")},
        {"candidates": ("a", "b", "d")},
        {"context": None},
        {"context": "else"},
        {"question": "so", "context": "what?"},
        {"images": ()},
        {"images": (PICTURE, PICTURE)},
        {"images": BASE.video, "video": (PICTURE,)},
        {"video": BASE.video[::-1]},
        {"audio": None},
        {"audio": tone(441)},
    ],
    ids=lambda change: "+".join(change),
)
def test_other_contents_have_another_name(encoder, change):
    one, other = digests(encoder, [BASE, replace(BASE, **change)])
    assert one != other


def test_names_do_not_depend_on_neighbours_order_or_answers(encoder):
    samples = make_samples()
    together = digests(encoder, samples)
    backwards = digests(encoder, samples[::-1])[::-1]
    alone = [digests(encoder, [sample])[0] for sample in samples]
    assert together == backwards == alone
    assert len(set(together)) == len(samples)
    shuffled = replace(BASE, candidates=("c", "a", "b"), answer=2, source="x", group="y", id="z")
    assert len(set(digests(encoder, [BASE, shuffled]))) == 1


def test_equal_pixels_in_another_form_have_the_same_name(encoder):
    as_array = replace(BASE, images=(np.asarray(PICTURE),))
    assert len(set(digests(encoder, [BASE, as_array]))) == 1


def test_some_of_the_samples_are_those_samples(foil_dataset):
    rows = [5, 0, 16, 5]
    part = foil_dataset.take(rows)
    names = sample_digests(foil_dataset)
    assert sample_digests(part) == [names[row] for row in rows]
    assert part.answer.tolist() == [foil_dataset.answer[row] for row in rows]
    assert [sample.id for sample in part.samples] == [foil_dataset.samples[r].id for r in rows]
    everything = foil_dataset.foils.take(torch.tensor(rows))
    assert torch.equal(part.foils.take(torch.arange(4)), everything)


def test_a_datasets_digest_tells_order_candidates_and_answers_apart(dataset):
    rows = list(range(len(dataset)))
    candidates = Ragged.of([c[::-1] for c in dataset.candidates.lists()])
    others = [
        dataset,
        dataset.take(rows[::-1]),
        dataset.take(rows[1:]),
        replace(dataset, answer=dataset.answer.flip(0)),
        replace(dataset, candidates=candidates),
    ]
    assert len({dataset_digest(other) for other in others}) == len(others)
    assert dataset_digest(dataset.take(rows)) == dataset_digest(dataset)
