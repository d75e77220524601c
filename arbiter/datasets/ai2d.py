"""AI2D: multiple-choice questions about science diagrams (Kembhavi et al., 2016).

The test set is https://huggingface.co/datasets/lmms-lab/ai2d (3,088 questions, no training split).
Training questions come from https://huggingface.co/datasets/HuggingFaceM4/the_cauldron, config
`ai2d`, where they are written out as conversations and have to be parsed back.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from arbiter.config import option
from arbiter.datasets.base import ALL, LoadedSource
from arbiter.datasets.hub import HubLocation, HubSourceConfig, HubSplit, image_ref
from arbiter.errors import SourceError

_CAULDRON = HubLocation(repo="HuggingFaceM4/the_cauldron", config="ai2d")

_USER = re.compile(
    r"\s*Question:\s*(?P<question>.+?)\s*\n\s*Choices:\s*\n(?P<choices>.+?)\n"
    r"\s*Answer with the letter\.?\s*",
    re.DOTALL,
)
_CHOICE = re.compile(r"\s*(?P<letter>[A-Z])[.)]\s*(?P<text>\S.*?)\s*")
_ASSISTANT = re.compile(r"\s*(?:Answer:\s*)?(?P<letter>[A-Z])\.?\s*")


@dataclass
class AI2DConfig(HubSourceConfig):
    """Options of the AI2D source: `train` is dealt out by the shares, the rest is the test."""

    _target_: str = field(
        default="arbiter.datasets.ai2d.AI2D", metadata={"help": "The source's class."}
    )
    licence: str | None = option(
        "unknown: the repositories state none", help="Licence of the data."
    )
    repo: str = option("lmms-lab/ai2d", help="Repository of the test set, as owner/name.")
    train: HubLocation = option(_CAULDRON, help="Where the training conversations lie.")

    @property
    def repositories(self) -> tuple[str, ...]:
        """That of the test set, and that of the training conversations."""
        return (self.repo, self.train.repo)


class AI2D:
    """The AI2D source."""

    name = "ai2d"

    def __init__(self, config: AI2DConfig):
        self.config = config

    def load(self, seed: int) -> LoadedSource:
        """Parsed conversations under 'all', the official questions under 'test'.

        Raises:
            SourceError: it cannot be read, or no conversation can be parsed.
        """
        loaded = LoadedSource()
        self._load_train(loaded)
        self._load_test(loaded)
        return loaded

    def _load_train(self, loaded: LoadedSource) -> None:
        split = HubSplit(f"{self.name} (train)", self.config.train, "train", ("images", "texts"))
        first_rejected = None
        for number, row in enumerate(split.rows()):
            images = tuple(image_ref(cell) for cell in row["images"])
            for turn, text in enumerate(row["texts"]):
                if not images or None in images:
                    loaded.skipped["no picture"] += 1
                    continue
                try:
                    user, assistant = text["user"] or "", text["assistant"] or ""
                    question, candidates, answer = parse_turn(user, assistant)
                except ValueError as error:
                    loaded.skipped[f"turn rejected: {error}"] += 1
                    first_rejected = first_rejected or f"row {number}: {error}"
                    continue
                loaded.add(
                    ALL,
                    question=question,
                    candidates=candidates,
                    answer=answer,
                    images=images,
                    source=self.name,
                    group=_group(images[0]),
                    id=f"train/{number}/{turn}",
                )
        if not loaded.parts.get(ALL):
            raise SourceError(
                f"{split}: no conversation could be parsed ({first_rejected or 'there is none'}); "
                "point dataset.sources.ai2d.train at the config ai2d of the_cauldron"
            )

    def _load_test(self, loaded: LoadedSource) -> None:
        columns = ("question", "options", "answer", "image")
        for number, row in enumerate(HubSplit(self.name, self.config, "test", columns).rows()):
            where = f"{self.name} test/{number}"
            image = image_ref(row["image"])
            if image is None:
                loaded.illegal.append(f"{where}: there is no picture")
            elif not re.fullmatch(r"\d+", str(row["answer"]).strip()):
                loaded.illegal.append(f"{where}: answer {row['answer']!r} is not an index")
            else:
                loaded.add(
                    "test",
                    question=row["question"],
                    candidates=tuple(row["options"]),
                    answer=int(row["answer"]),
                    images=(image,),
                    source=self.name,
                    group=_group(image),
                    id=f"test/{number}",
                )


def parse_turn(user: str, assistant: str) -> tuple[str, tuple[str, ...], int]:
    """Question, candidates and answer of one exchange of the_cauldron, or nothing at all.

    Raises:
        ValueError: the texts are not exactly of the known form; the message says in what.
    """
    prompt = _USER.fullmatch(user)
    if not prompt:
        raise ValueError("the prompt has another form")
    choices = [_CHOICE.fullmatch(line) for line in prompt["choices"].split("\n")]
    if not all(choices):
        raise ValueError("a choice has another form")
    letters = [choice["letter"] for choice in choices]
    if letters != [chr(ord("A") + i) for i in range(len(letters))]:
        raise ValueError("the choices are not lettered A, B, C, ...")
    candidates = tuple(choice["text"] for choice in choices)
    if len(set(candidates)) != len(candidates) or len(candidates) < 2:
        raise ValueError("the choices are not at least two distinct ones")
    reply = _ASSISTANT.fullmatch(assistant)
    if not reply or reply["letter"] not in letters:
        raise ValueError("the reply is not the letter of a choice")
    return prompt["question"], candidates, letters.index(reply["letter"])


def _group(image: bytes | Path) -> str:
    content = image if isinstance(image, bytes) else str(image).encode()
    return hashlib.sha256(content).hexdigest()[:16]
