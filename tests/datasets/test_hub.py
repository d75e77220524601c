import os
import subprocess
import sys

import datasets
import pytest

from arbiter.datasets.hub import HubLocation, HubSplit, image_ref
from arbiter.errors import SourceError
from tests.datasets.hub_files import AI2D, SEED, cell, picture, write_split


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repo"
    for config in ("easy", "hard"):
        rows = [
            {"question": f"{config} {i}", "options": ["a", "b"], "answer": "0", "image": None}
            for i in range(6)
        ]
        rows[0]["image"] = cell(picture(1))
        write_split(root, "test", AI2D, rows, config=config, files=3)
    write_split(root, "val", AI2D, rows[:1], config="hard")
    return root


def location(path, config="hard", streaming=False):
    return HubLocation(repo="some/where", config=config, path=str(path), streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_missing_config_split_or_column_is_an_error_that_lists_those_that_exist(
    repository, streaming
):
    with pytest.raises(SourceError, match=r"^s: .*no config nope; there are easy, hard$"):
        HubSplit("s", location(repository, "nope", streaming), "test", ["question"])
    with pytest.raises(SourceError, match=r"name a config; there are easy, hard$"):
        HubSplit("s", location(repository, None, streaming), "test", ["question"])
    with pytest.raises(SourceError, match=r"split train: no such split; there are val, test$"):
        HubSplit("s", location(repository, "hard", streaming), "train", ["question"])
    with pytest.raises(
        SourceError, match=r"no column hint, pic; there are question, options, answer, image$"
    ):
        HubSplit("s", location(repository, "hard", streaming), "test", ["question", "hint", "pic"])


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_come_in_order_with_images_still_encoded(repository, streaming):
    split = HubSplit("s", location(repository, streaming=streaming), "test", ["question", "image"])
    rows = list(split.rows())
    assert [row["question"] for row in rows] == [f"hard {i}" for i in range(6)]
    assert image_ref(rows[0]["image"]) == picture(1)
    assert image_ref(rows[1]["image"]) is None
    assert set(rows[0]) == {"question", "image"}


def test_lists_of_images_stay_encoded(tmp_path):
    row = {name: "x" for name in SEED} | {"question_type_id": 1, "image": [cell(picture(2))]}
    write_split(tmp_path, "test", SEED, [row])
    split = HubSplit("s", location(tmp_path, None), "test", ["image"])
    assert [image_ref(c) for c in next(split.rows())["image"]] == [picture(2)]


def test_streaming_reads_single_files_and_single_columns(repository, monkeypatch):
    split = HubSplit("s", location(repository, streaming=True), "test", ["question", "image"])
    assert split.num_shards == 3
    assert [row["question"] for row in split.rows(shard=1)] == ["hard 2", "hard 3"]
    asked = []
    load = datasets.load_dataset

    def spy(*args, **kwargs):
        asked.append(kwargs.get("columns"))
        return load(*args, **kwargs)

    monkeypatch.setattr(datasets, "load_dataset", spy)
    assert list(split.rows(["question"], shard=2)) == [
        {"question": "hard 4"},
        {"question": "hard 5"},
    ]
    assert asked == [["question"]]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_broken_file_is_one_line_that_names_the_source(repository, streaming):
    for file in (repository / "hard").glob("test-00001*"):
        file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(SourceError, match=r"^s: ") as raised:
        list(HubSplit("s", location(repository, streaming=streaming), "test", ["question"]).rows())
    assert "\n" not in str(raised.value)


def test_an_error_of_the_consumer_is_not_taken_for_one_of_the_data(repository):
    rows = HubSplit("s", location(repository), "test", ["question"]).rows()
    with pytest.raises(ValueError, match="mine"):
        for _ in rows:
            raise ValueError("mine")


def test_a_missing_folder_says_what_to_give(tmp_path):
    with pytest.raises(SourceError, match="no such folder; give path"):
        HubSplit("s", location(tmp_path / "nowhere"), "test", ["question"])


def test_without_network_the_error_names_the_cause_and_the_remedy(tmp_path):
    code = (
        "from arbiter.datasets.scienceqa import *\n"
        "from arbiter.errors import SourceError\n"
        "try:\n    ScienceQA(ScienceQAConfig()).load(0)\n"
        "except SourceError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout.strip() == (
        "scienceqa: cannot reach derek-thomas/ScienceQA (HF_HUB_OFFLINE is set); "
        "set path to a folder with a copy of the repository, or another repo"
    ), done.stderr
