"""The predecessor's mix as it is shipped, on small copies of all its sources."""

from collections import Counter
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from arbiter.config import instantiate
from arbiter.datasets.mix import load_mix
from experiments import schema
from tests.datasets.hub_files import (
    AI2D,
    CAULDRON,
    GQA_IMAGES,
    GQA_INSTRUCTIONS,
    SCIENCEQA,
    SEED,
    cell,
    picture,
    write_split,
)

CONF = Path(__file__).parents[2] / "conf"
PROMPT = "Question: What is {}?\nChoices:\nA. this\nB. that\nAnswer with the letter."


@pytest.fixture
def copies(tmp_path):
    """The overrides that point the mix at copies written under `tmp_path`."""
    for split, count, first in (("train", 60, 0), ("validation", 20, 100), ("test", 20, 200)):
        rows = [
            {
                "image": cell(picture(first + n)) if n % 2 else None,
                "question": f"{split} {n}?",
                "choices": ["yes", "no"],
                "answer": n % 2,
                "hint": "",
                "subject": "science",
            }
            for n in range(count)
        ]
        write_split(tmp_path / "scienceqa", split, SCIENCEQA, rows)
    rows = [
        {f"choice_{letter}": letter for letter in "abcd"}
        | {
            "question": f"{n}?",
            "answer": "C",
            "question_id": str(n),
            "question_type_id": 1 + n % 3,
            "data_type": "Video" if n % 3 == 2 else "Single Image",
            "image": [cell(picture(1000 + 10 * n + i, 8)) for i in range(8 if n % 3 == 2 else 1)],
        }
        for n in range(60)
    ]
    write_split(tmp_path / "seed", "test", SEED, rows, files=2)
    rows = [
        {
            "images": [cell(picture(2000 + n))],
            "texts": [
                {"user": PROMPT.format(i), "assistant": "Answer: A", "source": "AI2D"}
                for i in range(2)
            ],
        }
        for n in range(40)
    ]
    write_split(tmp_path / "cauldron", "train", CAULDRON, rows, config="ai2d")
    # The first test picture is also a training picture: it must not be trained on.
    rows = [
        {"question": "?", "options": list("wxyz"), "answer": "3", "image": cell(picture(2000 + n))}
        for n in (0, 500, 501, 502)
    ]
    write_split(tmp_path / "ai2d", "test", AI2D, rows)
    for prefix, count, first in (("train_balanced", 30, 0), ("testdev_balanced", 10, 500)):
        split = prefix.split("_")[0]
        questions = [
            {
                "id": f"{split}{n}",
                "imageId": str(n // 2),
                "question": f"{n}?",
                "answer": ["red", "blue", "green"][n % 3],
                "types": {"structural": "query", "semantic": "attr", "detailed": "color"},
            }
            for n in range(2 * count)
        ]
        images = [{"id": str(n), "image": cell(picture(3000 + first + n))} for n in range(count)]
        root = tmp_path / "gqa"
        write_split(root, split, GQA_INSTRUCTIONS, questions, config=f"{prefix}_instructions")
        write_split(root, split, GQA_IMAGES, images, config=f"{prefix}_images")
    return [
        f"dataset.sources.scienceqa.path={tmp_path}/scienceqa",
        f"dataset.sources.seed_bench_2.path={tmp_path}/seed",
        f"dataset.sources.ai2d.path={tmp_path}/ai2d",
        f"dataset.sources.ai2d.train.path={tmp_path}/cauldron",
        f"dataset.sources.gqa.path={tmp_path}/gqa",
    ]


def load(*overrides):
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return load_mix(instantiate(compose("train", ["dataset=v6_max", *overrides])).dataset, 0)


def test_all_five_sources_together(copies):
    mix = load(
        *copies,
        "dataset.sources.scienceqa.max_samples=40",
        "dataset.sources.seed_bench_2.max_samples=24",
        "dataset.sources.gqa.max_samples=50",
        "dataset.sources.robotics.max_samples=70",
    )
    assert {name: part.kept for name, part in mix.statistics.items()} == {
        "scienceqa": 40,
        "seed_bench_2": 24,
        "ai2d": 82,
        "gqa": 50,
        "robotics": 70,
    }
    assert mix.statistics["scienceqa"].skipped == {"no picture": 50}
    assert mix.statistics["ai2d"].skipped == {"shared a picture with a stricter official split": 2}
    assert mix.statistics["seed_bench_2"].modalities == {"image": 16, "video": 8}
    tested = Counter(sample.source for sample in mix["test"])
    assert tested["ai2d"] == 4 and tested["gqa"] == 10 and "seed_bench_2" not in tested
    homes = Counter(group for part in mix.values() for group in {s.group for s in part})
    assert set(homes.values()) == {1}


def test_a_source_is_dropped_and_one_is_renamed(copies):
    mix = load(
        *copies,
        "~dataset.sources.robotics",
        "+dataset/source@dataset.sources.more_robots=robotics",
        "dataset.sources.more_robots.max_samples=20",
    )
    assert list(mix.statistics) == ["scienceqa", "seed_bench_2", "ai2d", "gqa", "more_robots"]
    assert {s.source for part in mix.values() for s in part} == set(mix.statistics)
