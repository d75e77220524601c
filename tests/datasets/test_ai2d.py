import pytest

from arbiter.datasets.ai2d import AI2D, AI2DConfig, parse_turn
from arbiter.datasets.hub import HubLocation
from arbiter.errors import SourceError
from tests.datasets.hub_files import AI2D as AI2D_FEATURES
from tests.datasets.hub_files import CAULDRON, cell, picture, write_split

PROMPT = "Question: What eats grass?\nChoices:\nA. hawk\nB. deer\nC. fox\nAnswer with the letter."


def turn(user=PROMPT, assistant="Answer: B"):
    return {"user": user, "assistant": assistant, "source": "AI2D"}


def write(tmp_path, train, test):
    write_split(tmp_path / "cauldron", "train", CAULDRON, train, config="ai2d")
    write_split(tmp_path / "ai2d", "test", AI2D_FEATURES, test)
    return AI2D(
        AI2DConfig(
            path=str(tmp_path / "ai2d"),
            train=HubLocation(
                repo="HuggingFaceM4/the_cauldron", config="ai2d", path=str(tmp_path / "cauldron")
            ),
        )
    )


def test_row(number, answer):
    return {
        "question": f"Question {number}?",
        "options": ["w", "x", "y", "z"],
        "answer": answer,
        "image": cell(picture(50 + number)),
    }


test_row.__test__ = False


def test_test_answers_are_index_strings_not_letters(tmp_path):
    rows = [test_row(i, str(i)) for i in range(4)] + [test_row(4, "B")]
    loaded = write(tmp_path, [{"images": [cell(picture(1))], "texts": [turn()]}], rows).load(0)
    assert [s.candidates[s.answer] for s in loaded.parts["test"]] == ["w", "x", "y", "z"]
    assert loaded.illegal == ["ai2d test/4: answer 'B' is not an index"]


def test_every_turn_of_a_diagram_becomes_a_sample_of_its_group(tmp_path):
    other = PROMPT.replace("What eats grass?", "What\nis it?")
    train = [
        {"images": [cell(picture(1))], "texts": [turn(), turn(other, "Answer: C")]},
        {"images": [cell(picture(2))], "texts": [turn(assistant="A")]},
    ]
    first, second, third = write(tmp_path, train, [test_row(0, "0")]).load(0).parts["all"]
    assert first.question == "What eats grass?"
    assert first.candidates == ("hawk", "deer", "fox")
    assert (first.answer, second.answer, third.answer) == (1, 2, 0)
    assert second.question == "What\nis it?"
    assert first.group == second.group != third.group
    assert first.images == (picture(1),)


@pytest.mark.parametrize(
    ("user", "assistant", "reason"),
    [
        ("What eats grass?", "Answer: B", "prompt"),
        (PROMPT.replace("B. deer", "deer"), "Answer: B", "a choice"),
        (PROMPT.replace("B. deer", "D. deer"), "Answer: B", "not lettered"),
        (PROMPT.replace("deer", "hawk"), "Answer: B", "distinct"),
        (PROMPT, "Answer: D", "reply"),
        (PROMPT, "The deer, B", "reply"),
        (PROMPT, "", "reply"),
    ],
)
def test_a_turn_of_any_other_form_is_rejected(user, assistant, reason):
    with pytest.raises(ValueError, match=reason):
        parse_turn(user, assistant)


def test_rejected_turns_are_counted_by_reason(tmp_path):
    texts = [turn(), turn(assistant="Deer."), turn("Describe the diagram.", "A food web.")]
    loaded = write(
        tmp_path, [{"images": [cell(picture(1))], "texts": texts}], [test_row(0, "0")]
    ).load(0)
    assert len(loaded.parts["all"]) == 1
    assert loaded.skipped == {
        "turn rejected: the reply is not the letter of a choice": 1,
        "turn rejected: the prompt has another form": 1,
    }


def test_when_nothing_can_be_parsed_it_is_an_error(tmp_path):
    source = write(
        tmp_path, [{"images": [cell(picture(1))], "texts": [turn("Hi", "Ho")]}], [test_row(0, "0")]
    )
    with pytest.raises(SourceError, match=r"no conversation could be parsed .*row 0"):
        source.load(0)
