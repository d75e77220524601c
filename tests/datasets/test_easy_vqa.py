"""Against the package's own files, read independently."""

import json
from pathlib import Path

import easy_vqa
import pytest

from arbiter.datasets.base import SplitFractions
from arbiter.datasets.easy_vqa import EasyVQAConfig
from arbiter.datasets.mix import DatasetConfig, load_mix


@pytest.fixture(scope="module")
def splits():
    source = EasyVQAConfig(split=SplitFractions(0.9, 0.05, 0.05, 0.0))
    return load_mix(DatasetConfig(sources={"easy_vqa": source}), seed=0)


def test_published_sizes(splits):
    assert len(splits["test"]) == 9_673
    assert sum(len(splits[s]) for s in ("train", "val", "calibration")) == 38_575


def test_every_test_sample_is_as_published(splits):
    data = Path(easy_vqa.__file__).parent / "data"
    published = json.loads((data / "test" / "questions.json").read_text())
    assert len(published) == len(splits["test"])
    for sample, (question, answer, image) in zip(splits["test"], published, strict=True):
        assert sample.question == question
        assert sample.candidates[sample.answer] == answer
        assert sample.images == (data / "test" / "images" / f"{image}.png",)
        assert len(sample.candidates) == 13


def test_no_image_is_on_two_sides(splits):
    images = {split: {s.images[0] for s in part} for split, part in splits.items()}
    names = list(images)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            assert not images[first] & images[second]
