import pytest

from arbiter.datasets.mix import DatasetConfig, load_mix
from arbiter.datasets.scienceqa import ScienceQA, ScienceQAConfig
from arbiter.sample import Modality
from tests.datasets.hub_files import SCIENCEQA, cell, picture, write_split


def row(number, image=None, **changes):
    return {
        "image": None if image is None else cell(picture(image)),
        "question": f"Question {number}?",
        "choices": ["first", "second", "third"],
        "answer": number % 3,
        "hint": "",
        "task": "closed choice",
        "grade": "grade2",
        "subject": "natural science",
        "topic": "physics",
        "category": "Magnets",
        "skill": "Identify magnets",
        "lecture": "A lecture.",
        "solution": "A solution.",
    } | changes


@pytest.fixture
def copy(tmp_path):
    root = tmp_path / "scienceqa"
    write_split(root, "train", SCIENCEQA, [row(0, image=1), row(1), row(2, image=2, hint="Read.")])
    write_split(root, "validation", SCIENCEQA, [row(i, image=100 + i) for i in range(40)])
    write_split(root, "test", SCIENCEQA, [row(4, image=3), row(5)])
    return str(root)


def test_fields_are_read_as_the_hub_writes_them(copy):
    loaded = ScienceQA(ScienceQAConfig(path=copy)).load(0)
    first, second, third = loaded.parts["train"]
    assert first.question == "Question 0?"
    assert first.candidates == ("first", "second", "third")
    assert [s.answer for s in loaded.parts["train"]] == [0, 1, 2]
    assert first.images == (picture(1),)
    assert second.modalities == frozenset()
    assert third.context == "Read."
    assert third.modalities == {Modality.IMAGE, Modality.CONTEXT}
    assert first.meta["question_type"] == "natural science"
    assert first.meta["skill"] == "Identify magnets"
    assert "solution" not in first.question + str(first.context)


def test_image_only_skips_and_counts(copy):
    loaded = ScienceQA(ScienceQAConfig(path=copy, image_only=True)).load(0)
    assert {part: len(samples) for part, samples in loaded.parts.items()} == {
        "train": 2,
        "validation": 40,
        "test": 1,
    }
    assert loaded.skipped == {"no picture": 2}


def test_official_splits_are_kept_and_validation_serves_selection_and_calibration(copy):
    mix = load_mix(DatasetConfig(sources={"scienceqa": ScienceQAConfig(path=copy)}), 0)
    assert {sample.id for sample in mix["train"]} == {"train/0", "train/1", "train/2"}
    assert {sample.id for sample in mix["test"]} == {"test/0", "test/1"}
    held_out = mix["val"] + mix["calibration"]
    assert {sample.id for sample in held_out} == {f"validation/{i}" for i in range(40)}
    assert len(mix["val"]) > 10 and len(mix["calibration"]) > 10
    statistics = mix.statistics["scienceqa"]
    assert statistics.kept == 45
    assert statistics.modalities == {"image": 43, "context": 1}
    assert statistics.candidates == {3: 45}


def test_questions_about_one_picture_share_a_group(tmp_path):
    root = tmp_path / "repo"
    rows = [row(0, image=1), row(1, image=2), row(2, image=1), row(3), row(4)]
    for split in ("train", "validation", "test"):
        write_split(root, split, SCIENCEQA, rows)
    samples = ScienceQA(ScienceQAConfig(path=str(root))).load(0).parts["train"]
    groups = [sample.group for sample in samples]
    assert groups[0] == groups[2]
    assert len(set(groups)) == 4


def test_rows_without_answer_or_choices_are_noted(tmp_path):
    rows = [row(0), row(1, answer=None), row(2, choices=None), row(3, answer=3)]
    for split in ("train", "validation", "test"):
        write_split(tmp_path, split, SCIENCEQA, rows if split == "train" else rows[:1])
    loaded = ScienceQA(ScienceQAConfig(path=str(tmp_path))).load(0)
    assert [s.id for s in loaded.parts["train"]] == ["train/0"]
    assert [line.partition(": ")[0] for line in loaded.illegal] == [
        "scienceqa train/1",
        "scienceqa train/2",
        "scienceqa train/3",
    ]
