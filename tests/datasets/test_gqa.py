from collections import Counter

import numpy as np
import pytest

from arbiter.config import validate
from arbiter.datasets.gqa import GQA, GQAConfig, draw_candidates
from arbiter.errors import ConfigError, SourceError
from tests.datasets.hub_files import GQA_IMAGES, GQA_INSTRUCTIONS, cell, picture, write_split

COLOURS = ["red", "blue", "green", "white", "black"]


def question(number, image, answer, detailed="color", structural="query"):
    return {
        "id": f"q{number}",
        "imageId": f"i{image}",
        "question": f"Question {number}?",
        "answer": answer,
        "fullAnswer": f"It is {answer}.",
        "isBalanced": True,
        "types": {"structural": structural, "semantic": "attr", "detailed": detailed},
    }


def write(root, prefix, questions, images, files=1):
    split = prefix.split("_")[0]
    write_split(root, split, GQA_INSTRUCTIONS, questions, config=f"{prefix}_instructions")
    rows = [{"id": f"i{i}", "image": cell(picture(i))} for i in images]
    write_split(root, split, GQA_IMAGES, rows, config=f"{prefix}_images", files=files)


@pytest.fixture
def copy(tmp_path):
    train = [question(n, image=n % 10, answer=COLOURS[n % 5]) for n in range(40)]
    train += [question(100 + n, n, ["yes", "no"][n % 2], "exist", "verify") for n in range(10)]
    write(tmp_path, "train_balanced", train, range(10), files=2)
    test = [question(200 + n, 50 + n, COLOURS[n]) for n in range(5)]
    write(tmp_path, "testdev_balanced", test, range(50, 55))
    return str(tmp_path)


def load(copy, seed=0, **options):
    return GQA(GQAConfig(path=copy, **options)).load(seed)


def test_questions_are_joined_with_their_images(copy):
    parts = load(copy).parts
    assert len(parts["all"]) == 50 and len(parts["test"]) == 5
    for sample in parts["all"]:
        number = int(sample.question.split()[1].rstrip("?"))
        assert sample.images == (picture(number % 10 if number < 100 else number - 100),)
        expected = COLOURS[number % 5] if number < 100 else ["yes", "no"][number % 2]
        assert sample.candidates[sample.answer] == expected
        assert sample.group == f"train_balanced/i{number % 10 if number < 100 else number - 100}"
    assert {s.group for s in parts["test"]} == {f"testdev_balanced/i{50 + n}" for n in range(5)}


def test_distractors_are_real_answers_to_the_same_detailed_type(copy):
    for sample in load(copy).parts["all"]:
        if sample.meta["detailed"] == "exist":
            assert sorted(sample.candidates) == ["no", "yes"]
        else:
            assert len(sample.candidates) == 4
            assert set(sample.candidates) <= set(COLOURS)
    assert sample.meta["question_type"] in ("query", "verify")


def test_candidates_are_the_same_for_a_seed_and_not_for_another(copy):
    def candidates(**options):
        return {s.id: s.candidates for s in load(copy, **options).parts["all"]}

    assert candidates() == candidates()
    assert candidates() != candidates(seed=1)
    few = candidates(max_samples=20)
    assert few.items() <= candidates().items()


def test_the_place_of_the_answer_is_no_hint():
    pool = Counter({answer: 1 for answer in COLOURS})
    places = Counter(
        draw_candidates("red", pool, 4, np.random.default_rng(i)).index("red") for i in range(2000)
    )
    assert all(430 < n < 570 for n in places.values())


def test_being_the_most_common_candidate_is_hardly_a_hint():
    # Answers fall off as in a large type; a uniform draw of distractors would give this guess 49%.
    pool = Counter({f"answer {i}": 1000 // (i + 4) for i in range(40)})
    rng = np.random.default_rng(0)
    names, weights = list(pool), np.array(list(pool.values())) / pool.total()
    hits = 0
    for answer in rng.choice(names, 4000, p=weights):
        drawn = draw_candidates(str(answer), pool, 4, rng)
        hits += max(drawn, key=pool.__getitem__) == answer
    assert 0.22 < hits / 4000 < 0.30


def test_a_cap_reads_no_more_images_than_it_needs_and_splits_train_and_test(copy, monkeypatch):
    from arbiter.datasets.hub import HubSplit

    read = Counter()
    rows = HubSplit.rows

    def counting(self, *args, **kwargs):
        for row in rows(self, *args, **kwargs):
            read[self.config] += 1
            yield row

    monkeypatch.setattr(HubSplit, "rows", counting)
    parts = load(copy, max_samples=12, test_share=0.25).parts
    assert len(parts["all"]) == 9 and len(parts["test"]) == 3
    # Five questions an image: nine of them need two images, and three more stop at the third.
    assert read["train_balanced_images"] <= 3
    assert read["testdev_balanced_images"] <= 4


def test_questions_per_image_is_a_seeded_draw(copy):
    parts = load(copy, questions_per_image=2).parts
    assert Counter(s.group for s in parts["all"]).most_common()[0][1] == 2
    assert len(parts["all"]) == 20
    assert {s.id for s in parts["all"]} == {
        s.id for s in load(copy, questions_per_image=2).parts["all"]
    }


def test_questions_without_an_image_and_lonely_answers_are_counted(tmp_path):
    train = [question(0, 1, "red"), question(1, 1, "blue"), question(2, 9, "red")]
    train += [question(3, 1, "sideways", detailed="pose")]
    write(tmp_path, "train_balanced", train, [1])
    loaded = load(str(tmp_path), test=None)
    assert len(loaded.parts["all"]) == 2
    assert loaded.skipped == {"no other answer to its type": 1, "image not in the data set": 1}


def test_images_and_questions_that_do_not_belong_together_are_an_error(tmp_path):
    write(tmp_path, "train_balanced", [question(0, 1, "red")], [7])
    with pytest.raises(SourceError, match="no id is the imageId of a question"):
        load(str(tmp_path), test=None)


def test_a_wrong_prefix_lists_the_configs(copy):
    with pytest.raises(SourceError, match=r"no config train_all_instructions; there are .*train_b"):
        load(copy, train="train_all")


def test_config_is_not_a_key_here():
    with pytest.raises(ConfigError, match="config=x"):
        validate(GQAConfig(config="x"))


def test_a_split_without_answers_is_an_error(tmp_path):
    write(tmp_path, "train_balanced", [question(0, 1, None)], [1])
    with pytest.raises(SourceError, match="question q0 has no answer; choose a split that has"):
        load(str(tmp_path), test=None)
