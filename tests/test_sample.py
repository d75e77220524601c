from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arbiter.errors import SampleError
from arbiter.sample import MAX_CANDIDATES, Modality, Sample


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"question": "  "}, "question is empty"),
        ({"candidates": ("a",)}, "at least two"),
        ({"candidates": ()}, "at least two"),
        ({"candidates": ("a", " a ")}, "more than once"),
        ({"candidates": ("a", "")}, "empty"),
        ({"candidates": "ab"}, "sequence of texts"),
        ({"candidates": ("a", 3)}, "sequence of texts"),
        ({"answer": 2}, "not an index"),
        ({"answer": -1}, "not an index"),
        ({"answer": "a"}, "answer 'a' is not an index"),
        ({"answer": 0.5}, "not an index"),
        ({"answer": True}, "not an index"),
        ({"candidates": 5}, "sequence of texts"),
        ({"candidates": None}, "sequence of texts"),
        ({"images": Image.new("L", (4, 4))}, "images must be a sequence"),
        ({"images": Path("x.png")}, "images must be a sequence"),
        ({"images": np.zeros((32, 32, 3))}, "images must be a sequence"),
        ({"video": np.zeros((2, 32, 32, 3))}, "video must be a sequence"),
        ({"group": ["g"]}, "group must be a text"),
        ({"audio": np.zeros((2, 100), np.float32)}, "mono"),
        ({"audio": np.zeros(100)}, "float32"),
    ],
)
def test_illegal_samples_name_source_and_id(changes, said):
    with pytest.raises(SampleError, match=said) as error:
        Sample(**{"question": "q", "candidates": ("a", "b"), "source": "s", "id": "7", **changes})
    assert str(error.value).startswith("s 7: ")
    assert "\n" not in str(error.value)


def test_modalities_are_those_that_hold_something():
    plain = Sample("q", ("a", "b"))
    assert plain.modalities == frozenset()
    assert Sample("q", ("a", "b"), context="  ").modalities == frozenset()
    full = Sample(
        "q", ("a", "b"), context="c", images=(b"",), video=(b"",), audio=np.zeros(4, np.float32)
    )
    assert full.modalities == frozenset(Modality)


def test_one_path_is_no_sequence_of_images():
    with pytest.raises(SampleError, match="images must be a sequence"):
        Sample("q?", ("a", "b"), images="picture.png")


def test_the_source_is_a_text():
    with pytest.raises(SampleError, match="source must be a text"):
        Sample("q?", ("a", "b"), source=["s"])


def test_very_many_candidates_are_counted_and_refused():
    """Comparing each with each would take minutes before anyone is told."""
    names = [str(number) for number in range(60_000)]
    assert len(Sample("q?", names[:MAX_CANDIDATES]).candidates) == 10_000
    with pytest.raises(SampleError, match="60,000 candidates given, more than 10,000"):
        Sample("q?", names)
    with pytest.raises(SampleError, match="'0' is given more than once"):
        Sample("q?", [*names[: MAX_CANDIDATES - 1], "0"])
