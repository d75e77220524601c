"""ScienceQA: school science questions, half of them with a picture (Lu et al., 2022).

https://huggingface.co/datasets/derek-thomas/ScienceQA; train 12,726, validation 4,241, test 4,241.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from arbiter.config import option
from arbiter.datasets.base import HELD_OUT, LoadedSource
from arbiter.datasets.hub import HubSourceConfig, HubSplit, image_ref

_COLUMNS = (
    "image", "question", "choices", "answer", "hint", "subject", "topic", "category", "skill",
)  # fmt: skip
_PARTS = {"train": "train", "validation": HELD_OUT, "test": "test"}


@dataclass
class ScienceQAConfig(HubSourceConfig):
    """Options of the ScienceQA source. The official splits are kept."""

    _target_: str = field(
        default="arbiter.datasets.scienceqa.ScienceQA", metadata={"help": "The source's class."}
    )
    licence: str | None = option(
        "CC BY-NC-SA 4.0 (authors); the hub's card says CC BY-SA 4.0", help="Licence of the data."
    )
    repo: str = option("derek-thomas/ScienceQA", help="Repository on the hub, as owner/name.")
    image_only: bool = option(False, help="Only the questions that come with a picture.")


class ScienceQA:
    """The ScienceQA source; the hint is the context."""

    name = "scienceqa"

    def __init__(self, config: ScienceQAConfig):
        self.config = config

    def load(self, seed: int) -> LoadedSource:
        """Samples in official splits; the validation split serves selection and calibration.

        Raises:
            SourceError: it cannot be read.
        """
        loaded = LoadedSource()
        for split, part in _PARTS.items():
            rows = HubSplit(self.name, self.config, split, _COLUMNS).rows()
            for number, row in enumerate(rows):
                image = image_ref(row["image"])
                if image is None and self.config.image_only:
                    loaded.skipped["no picture"] += 1
                    continue
                loaded.add(
                    part,
                    question=row["question"],
                    candidates=tuple(row["choices"] or ()),
                    answer=row["answer"],
                    context=row["hint"] or None,
                    images=() if image is None else (image,),
                    source=self.name,
                    group=_group(row, image),
                    id=f"{split}/{number}",
                    meta={
                        "question_type": row["subject"],
                        **{key: row[key] for key in ("topic", "category", "skill")},
                    },
                )
        return loaded


def _group(row: dict, image: object) -> str:
    """One group per picture; a question without one is a group with its exact repetitions."""
    if isinstance(image, bytes):
        content = image
    else:
        content = repr((str(image), row["question"], row["choices"], row["hint"])).encode()
    return hashlib.sha256(content).hexdigest()[:16]
