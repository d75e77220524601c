"""GQA: compositional questions about photographs, with open answers (Hudson and Manning, 2019).

https://huggingface.co/datasets/lmms-lab/GQA keeps questions and images in separate configs, e.g.
`train_balanced_instructions` and `train_balanced_images`, both with the single split `train`;
`imageId` of a question is the `id` of its image. Answers are open, so candidates are made: the
answer and distractors that are real answers to questions of the same detailed type.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from arbiter.config import option
from arbiter.datasets.base import ALL, LoadedSource
from arbiter.datasets.hub import HubSourceConfig, HubSplit, image_ref
from arbiter.errors import ConfigError, SourceError
from arbiter.seeds import generator

_QUESTION_COLUMNS = ("id", "imageId", "question", "answer", "types")
_IMAGE_COLUMNS = ("id", "image")
_TYPES = ("structural", "semantic", "detailed")


@dataclass
class GQAConfig(HubSourceConfig):
    """Options of the GQA source."""

    _target_: str = field(
        default="arbiter.datasets.gqa.GQA", metadata={"help": "The source's class."}
    )
    licence: str | None = option(
        "CC BY 4.0 (authors); the hub's tag says MIT", help="Licence of the data."
    )
    repo: str = option("lmms-lab/GQA", help="Repository on the hub, as owner/name.")
    streaming: bool = option(
        True, help="Read images over the network as needed; false downloads all (10 GB) once."
    )
    train: str = option(
        "train_balanced", help="Prefix of the configs that are dealt out by the shares."
    )
    test: str | None = option(
        "testdev_balanced", help="Prefix of the configs that are the test split; null: no test."
    )
    test_share: float = option(
        0.2, help="Part of max_samples that is drawn from the test split.", low=0, below=1
    )
    num_candidates: int = option(
        4, help="Candidates per question; fewer where a type has fewer answers.", low=2
    )
    questions_per_image: int | None = option(
        None, help="Questions taken per image; null takes all.", low=1
    )

    def check(self) -> None:
        """The configs follow from the prefixes."""
        if self.config is not None:
            raise ConfigError("config", self.config, "name the configs' prefix as train and test")


class GQA:
    """The GQA source."""

    name = "gqa"

    def __init__(self, config: GQAConfig):
        self.config = config

    def load(self, seed: int) -> LoadedSource:
        """Training questions under 'all', by image; test questions under 'test'.

        Images are read in the order of the files, and no further than `max_samples` asks.

        Raises:
            SourceError: it cannot be read, or questions and images do not belong together.
        """
        loaded = LoadedSource()
        limit, test_limit = self.config.max_samples, None
        if limit is not None:
            test_limit = round(limit * self.config.test_share) if self.config.test else 0
            limit -= test_limit
        self._load_part(loaded, ALL, self.config.train, limit, seed)
        if self.config.test and test_limit != 0:
            self._load_part(loaded, "test", self.config.test, test_limit, seed)
        return loaded

    def _load_part(
        self, loaded: LoadedSource, part: str, prefix: str, limit: int | None, seed: int
    ) -> None:
        questions = Questions(self._open(f"{prefix}_instructions", prefix, _QUESTION_COLUMNS))
        images = self._open(f"{prefix}_images", prefix, _IMAGE_COLUMNS)
        kept, joined = 0, 0
        for row in images.rows():
            asked = self._draw(questions.about(row["id"]), row["id"], seed)
            joined += len(asked)
            image = image_ref(row["image"])
            for question in asked:
                if limit is not None and kept == limit:
                    return
                where = f"{prefix}/{question.id}"
                if image is None:
                    loaded.illegal.append(f"{self.name} {where}: image {row['id']} is empty")
                    continue
                rng = generator(seed, self.name, question.id)
                candidates = draw_candidates(
                    question.answer, questions.pool(question), self.config.num_candidates, rng
                )
                if len(candidates) < 2:
                    loaded.skipped["no other answer to its type"] += 1
                    continue
                kept += loaded.add(
                    part,
                    question=question.text,
                    candidates=candidates,
                    answer=candidates.index(question.answer),
                    images=(image,),
                    source=self.name,
                    group=f"{prefix}/{row['id']}",
                    id=where,
                    meta={
                        "question_type": question.structural,
                        "semantic": question.semantic,
                        "detailed": question.detailed,
                    },
                )
        if not joined:
            raise SourceError(
                f"{images}: no id is the imageId of a question in {prefix}_instructions; "
                "take both from the same revision"
            )
        if self.config.questions_per_image is None and joined < len(questions):
            loaded.skipped["image not in the data set"] += len(questions) - joined

    def _open(self, config: str, prefix: str, columns: tuple[str, ...]) -> HubSplit:
        return HubSplit(self.name, self.config, prefix.split("_")[0], columns, config)

    def _draw(self, asked: list[Question], image: str, seed: int) -> list[Question]:
        """At most `questions_per_image` of the questions about one image."""
        limit = self.config.questions_per_image
        if limit is None or len(asked) <= limit:
            return asked
        chosen = generator(seed, self.name, "image", image).choice(len(asked), limit, replace=False)
        return [asked[i] for i in sorted(chosen)]


class Question(NamedTuple):
    """One question; fields that repeat are interned, for there may be a million."""

    id: str
    text: str
    answer: str
    structural: str
    semantic: str
    detailed: str


class Questions:
    """All questions of one config, by image, and the answers of each detailed type."""

    def __init__(self, split: HubSplit):
        self._by_image: dict[str, list[Question]] = defaultdict(list)
        self._pools: dict[str, Counter[str]] = defaultdict(Counter)
        for row in split.rows():
            types = row["types"]
            if not isinstance(types, dict) or not types.keys() >= {*_TYPES}:
                raise SourceError(f"{split}: column types lacks one of {', '.join(_TYPES)}")
            if row["answer"] is None:
                raise SourceError(
                    f"{split}: question {row['id']} has no answer; choose a split that has, as "
                    "train_balanced, val_balanced or testdev_balanced"
                )
            repeated = (row["question"], row["answer"], *(types[name] or "" for name in _TYPES))
            question = Question(row["id"], *map(sys.intern, repeated))
            self._by_image[row["imageId"]].append(question)
            self._pools[question.detailed][question.answer] += 1

    def __len__(self) -> int:
        return sum(map(len, self._by_image.values()))

    def about(self, image: str) -> list[Question]:
        """The questions about an image."""
        return self._by_image.get(image, [])

    def pool(self, question: Question) -> Counter[str]:
        """How often each answer is given to questions of the same detailed type."""
        return self._pools[question.detailed]


def draw_candidates(
    answer: str, pool: Counter[str], count: int, rng: np.random.Generator
) -> tuple[str, ...]:
    """The answer and up to `count - 1` distractors from `pool`, in random order.

    Distractors are drawn as often as they are real answers, so that being frequent is hardly a
    hint: with a uniform draw the most common candidate would be the right one far too often.
    """
    others = sorted(text for text in pool if text != answer)
    weights = np.array([pool[text] for text in others], np.float64)
    size = min(count - 1, len(others))
    drawn = []
    if size:
        drawn = [others[i] for i in rng.choice(len(others), size, False, weights / weights.sum())]
    candidates = [answer, *drawn]
    return tuple(candidates[i] for i in rng.permutation(len(candidates)))
