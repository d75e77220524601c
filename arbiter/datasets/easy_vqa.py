"""easy-VQA: 5,000 pictures of one coloured shape, 48,248 questions, 13 answers (MIT licence).

Victor Zhou, https://github.com/vzhou842/easy-VQA, installed with the PyPI package `easy-vqa`.
Every question gets all 13 answers as candidates, as in the published results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from arbiter.config import option
from arbiter.datasets.base import ALL, LoadedSource, SourceConfig
from arbiter.errors import SourceError
from arbiter.sample import Sample

_SHAPES = {"circle", "rectangle", "triangle"}


@dataclass
class EasyVQAConfig(SourceConfig):
    """Options of the easy-VQA source. The official test images are the test split."""

    _target_: str = field(
        default="arbiter.datasets.easy_vqa.EasyVQA", metadata={"help": "The source's class."}
    )
    licence: str | None = option("MIT", help="Licence of the data.")


def question_type(answer: str) -> str:
    """The kind of question, read from its answer: 'yes/no', 'shape' or 'colour'."""
    if answer in ("yes", "no"):
        return "yes/no"
    return "shape" if answer in _SHAPES else "colour"


class EasyVQA:
    """The easy-VQA source."""

    name = "easy_vqa"

    def __init__(self, config: EasyVQAConfig):
        self.config = config

    def load(self, seed: int) -> LoadedSource:
        """Training questions under 'all' (to be split by image), test questions under 'test'.

        Raises:
            SourceError: the package `easy-vqa` is not installed.
        """
        try:
            import easy_vqa
        except ImportError:
            raise SourceError(
                "easy_vqa: the package easy-vqa is not installed; pip install easy-vqa"
            ) from None
        candidates = tuple(easy_vqa.get_answers())
        train = (easy_vqa.get_train_questions(), easy_vqa.get_train_image_paths())
        test = (easy_vqa.get_test_questions(), easy_vqa.get_test_image_paths())
        return LoadedSource(
            {
                ALL: _samples("train", *train, candidates),
                "test": _samples("test", *test, candidates),
            }
        )


def _samples(
    part: str, questions: tuple, images: dict[int, str], candidates: tuple[str, ...]
) -> list[Sample]:
    return [
        Sample(
            question=question,
            candidates=candidates,
            answer=candidates.index(answer),
            images=(Path(images[image]),),
            source=EasyVQA.name,
            group=f"{part}/{image}",
            id=f"{part}/{number}",
            meta={"question_type": question_type(answer)},
        )
        for number, (question, answer, image) in enumerate(zip(*questions, strict=True))
    ]
