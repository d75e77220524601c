from collections import Counter

import pytest

from arbiter.datasets.hub import HubSplit
from arbiter.datasets.mix import DatasetConfig, load_mix
from arbiter.datasets.seed_bench import (
    SeedBench,
    SeedBench2,
    SeedBench2Config,
    SeedBenchConfig,
    choose_rows,
    quotas,
)
from arbiter.errors import SourceError
from tests.datasets.hub_files import SEED, cell, picture, write_split


def row(number, dimension=1, data_type="Single Image", images=1, **changes):
    return {
        "question": f"Question {number}?",
        "choice_a": "a one",
        "choice_b": "b one",
        "choice_c": "c one",
        "choice_d": "d one",
        "answer": "ABCD"[number % 4],
        "data_type": data_type,
        "question_id": f"{dimension}_{number}",
        "question_type_id": dimension,
        "image": [cell(picture(1000 * number + i, size=8)) for i in range(images)],
    } | changes


def source(path, rows, files=1, **options):
    write_split(path, "test", SEED, rows, files=files)
    return SeedBench2(SeedBench2Config(path=str(path), **options))


def test_each_data_type_lands_in_its_modality(tmp_path):
    rows = [
        row(0),
        row(1, 17, "Multiple Images", 3),
        row(2, 19, "Video", 8),
        row(3, 23, "Interleaved Image", 2, question="After <img> comes <img>?"),
    ]
    single, multiple, video, interleaved = source(tmp_path, rows).load(0).parts["all"]
    assert single.images == (picture(0, 8),)
    assert single.candidates == ("a one", "b one", "c one", "d one")
    assert [s.answer for s in (single, multiple, video, interleaved)] == [0, 1, 2, 3]
    assert len(multiple.images) == 3 and not multiple.video
    assert video.video == tuple(picture(2000 + i, 8) for i in range(8)) and not video.images
    assert len(interleaved.images) == 2 and interleaved.question.count("<img>") == 2
    assert video.meta["question_type"] == "19"


def test_seed_bench_one_writes_its_types_otherwise(tmp_path):
    rows = [row(0, 1, "image"), row(1, 10, "video", 8)]
    write_split(tmp_path, "test", SEED, rows)
    image, video = SeedBench(SeedBenchConfig(path=str(tmp_path))).load(0).parts["all"]
    assert image.source == "seed_bench" and len(image.images) == 1
    assert len(video.video) == 8


def test_generation_and_dimension_14_are_skipped_by_name(tmp_path):
    rows = [
        row(0),
        row(1, 25, "Image Generation", 4),
        row(2, 25, "Image Generation", 4),
        row(3, 27, "Image & Text Generation", 4),
        row(4, 14),
    ]
    assert source(tmp_path, rows).load(0).skipped == {
        "data type Image Generation": 2,
        "data type Image & Text Generation": 1,
        "excluded question type 14": 1,
    }
    loaded = SeedBench2(SeedBench2Config(path=str(tmp_path), excluded_question_types=[])).load(0)
    assert [s.meta["question_type"] for s in loaded.parts["all"]] == ["1", "14"]


def test_when_nothing_is_left_it_is_an_error_with_the_reasons(tmp_path):
    with pytest.raises(SourceError, match="excluded question type 14"):
        source(tmp_path, [row(0, 14)]).load(0)


def test_rows_that_are_no_question_are_noted(tmp_path):
    rows = [row(i) for i in range(4)]
    rows[1]["answer"] = "E"
    rows[2]["choice_b"] = None
    rows[3]["image"] = []
    loaded = source(tmp_path, rows).load(0)
    assert len(loaded.parts["all"]) == 1
    assert [line.split(":")[0] for line in loaded.illegal] == [
        "seed_bench_2 1_1",
        "seed_bench_2 1_2",
        "seed_bench_2 1_3",
    ]


def test_a_cap_takes_as_many_of_each_dimension(tmp_path):
    rows = [row(i, dimension=1 + i // 20) for i in range(60)] + [row(60, 4), row(61, 4)]
    loaded = source(tmp_path, rows, files=4, max_samples=20).load(0)
    taken = Counter(sample.meta["question_type"] for sample in loaded.parts["all"])
    assert taken == {"1": 6, "2": 6, "3": 6, "4": 2}
    again = SeedBench2(SeedBench2Config(path=str(tmp_path), max_samples=20))
    ids = [s.id for s in loaded.parts["all"]]
    assert [s.id for s in again.load(0).parts["all"]] == ids
    assert [s.id for s in again.load(1).parts["all"]] != ids


def test_quotas_hand_on_what_small_dimensions_lack():
    assert quotas({1: 2, 2: 50, 3: 50}, 22, 0) == {1: 2, 2: 10, 3: 10}
    assert quotas({1: 2, 2: 3}, 100, 0) == {1: 2, 2: 3}


def test_a_cap_opens_only_the_files_it_needs(tmp_path, monkeypatch):
    opened = []
    rows_of = HubSplit.rows

    def spy(self, columns=None, shard=None):
        if columns is None:
            opened.append(shard)
        return rows_of(self, columns, shard)

    monkeypatch.setattr(HubSplit, "rows", spy)
    # Forty rows in eight files, all of one dimension.
    loaded = source(tmp_path, [row(i) for i in range(40)], files=8, max_samples=5).load(0)
    assert len(loaded.parts["all"]) == 5
    assert len(opened) == 1


def test_without_streaming_the_choice_is_made_from_all_rows(tmp_path):
    rows = [row(i, dimension=1 + i % 3) for i in range(30)]
    loaded = source(tmp_path, rows, files=3, max_samples=9, streaming=False).load(0)
    assert Counter(s.meta["question_type"] for s in loaded.parts["all"]) == dict.fromkeys("123", 3)


def test_choose_rows_without_a_limit_takes_everything():
    assert choose_rows({0: {0: 1, 2: 5}, 3: {1: 1}}, None, 0) == {0: {0, 2}, 3: {1}}


def test_what_is_carved_from_a_test_split_is_recorded_and_not_reported(tmp_path):
    rows = [row(i) for i in range(60)]
    write_split(tmp_path, "test", SEED, rows)
    config = SeedBench2Config(path=str(tmp_path))
    mix = load_mix(DatasetConfig(sources={"seed_bench_2": config}), 0)
    assert mix["test"] == []
    statistics = mix.statistics["seed_bench_2"]
    assert statistics.carved_from == f"split test of {tmp_path}"
    assert sum(statistics.splits.values()) == 60

    config.split.train, config.split.test = 0.5, 0.3
    mix = load_mix(DatasetConfig(sources={"seed_bench_2": config}), 0)
    tested = {s.group for s in mix["test"]}
    assert tested and not tested & {
        s.group for split in ("train", "val", "calibration") for s in mix[split]
    }
