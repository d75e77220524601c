import numpy as np
import pytest

from arbiter.errors import SampleError
from arbiter.sample import Modality, Sample


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
