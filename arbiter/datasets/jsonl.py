"""A person's own data: a file with one JSON object per line, and media files beside it.

The format is described, with an example to copy, in docs/own_data.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arbiter.clips import MAX_FRAME_SIDE, load_audio, load_video
from arbiter.config import option
from arbiter.datasets.base import ALL, SPLITS, LoadedSource, SourceConfig
from arbiter.errors import MediaError, SampleError, SourceError
from arbiter.sample import Sample

_TEXT, _TEXTS = "a text", "a list of texts"
_KEYS = {
    "question": (_TEXT,),
    "candidates": (_TEXTS,),
    "answer": (_TEXT, "an index"),
    "context": (_TEXT,),
    "image": (_TEXT,),
    "images": (_TEXTS,),
    "video": (_TEXT, _TEXTS),
    "audio": (_TEXT,),
    "split": (_TEXT,),
    "group": (_TEXT,),
    "id": (_TEXT,),
    "question_type": (_TEXT,),
}
_REQUIRED = ("question", "candidates", "answer")


@dataclass
class JsonlConfig(SourceConfig):
    """Options of a person's own data."""

    _target_: str = field(
        default="arbiter.datasets.jsonl.Jsonl", metadata={"help": "The source's class."}
    )
    path: str = option(help="The manifest: a file with one JSON object per line.")
    video_frames: int = option(8, help="Frames taken from a video file, evenly spread.", low=1)
    max_frame_side: int = option(
        MAX_FRAME_SIDE,
        help="Longer side in pixels that frames of a video file are reduced to.",
        low=16,
    )


class Jsonl:
    """A manifest as a source. What is wrong with a line is an error that names the line."""

    name = "jsonl"

    def __init__(self, config: JsonlConfig):
        self.config = config

    def load(self, seed: int) -> LoadedSource:
        """Samples under the split that their line names, or under 'all'.

        Audio and video files that cannot be decoded are noted as damaged; pictures are looked at by
        the mix.

        Raises:
            SourceError: the manifest cannot be read, or a line is not as documented.
        """
        loaded = LoadedSource()
        for number, record in self._records():
            where = f"{self.config.path} line {number}"
            part = record.get("split", ALL)
            if "split" in record and part not in SPLITS:
                raise SourceError(
                    f"{where}: split {part!r} is none of {', '.join(SPLITS)}; leave it out to "
                    "have the sample dealt out"
                )
            try:
                sample = self._sample(record, number, where)
            except MediaError as error:
                loaded.damaged.append(f"line {number}: {error}")
            except SampleError as error:
                raise SourceError(f"{where}: {error}") from None
            else:
                loaded.parts.setdefault(part, []).append(sample)
        return loaded

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        path = Path(self.config.path)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise SourceError(
                f"{self.name}: cannot read {path} ({reason}); give path a JSON-lines file, "
                "see docs/own_data.md"
            ) from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, parse_line(line, f"{path} line {number}")

    def _sample(self, record: dict[str, Any], number: int, where: str) -> Sample:
        folder = Path(self.config.path).parent
        images = [*([record["image"]] if "image" in record else []), *record.get("images", ())]
        video = record.get("video", [])
        if isinstance(video, str):
            frames = load_video(
                folder / video, self.config.video_frames, self.config.max_frame_side
            )
        else:
            frames = tuple(folder / frame for frame in video)
        identifier = record.get("id", f"line {number}")
        return Sample(
            question=record["question"],
            candidates=tuple(record["candidates"]),
            answer=_answer(record, where),
            context=record.get("context"),
            images=tuple(folder / image for image in images),
            video=frames,
            audio=load_audio(folder / record["audio"]) if "audio" in record else None,
            source=self.name,
            group=record.get("group") or _group(record, number),
            id=identifier,
            meta={"question_type": record["question_type"]} if "question_type" in record else {},
        )


def parse_line(line: str, where: str) -> dict[str, Any]:
    """One line of a manifest; keys whose value is null count as absent.

    Raises:
        SourceError: it is not a JSON object with the documented keys and types.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise SourceError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(record, dict):
        raise SourceError(f"{where}: not a JSON object; write {{...}}, one per line")
    record = {key: value for key, value in record.items() if value is not None}
    unknown = [key for key in record if key not in _KEYS]
    if unknown:
        raise SourceError(f"{where}: no such key {unknown[0]!r}; there are {', '.join(_KEYS)}")
    for key in _REQUIRED:
        if key not in record:
            raise SourceError(f"{where}: {key} is missing")
    for key, value in record.items():
        if _kind(value) not in _KEYS[key]:
            raise SourceError(f"{where}: {key} must be {' or '.join(_KEYS[key])}")
    return record


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return _TEXT
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return _TEXTS
    return "an index" if isinstance(value, int) and not isinstance(value, bool) else "other"


def _answer(record: dict[str, Any], where: str) -> int:
    """The index of the answer, which is given as the candidate's text or as its index."""
    answer, candidates = record["answer"], record["candidates"]
    if isinstance(answer, int):
        return answer
    stripped = [candidate.strip() for candidate in candidates]
    if answer.strip() not in stripped:
        raise SourceError(f"{where}: answer {answer!r} is none of the candidates {candidates}")
    return stripped.index(answer.strip())


def _group(record: dict[str, Any], number: int) -> str:
    """Questions about one text belong together; what shares media is linked by the mix."""
    has_media = any(key in record for key in ("image", "images", "video", "audio"))
    if "context" in record and not has_media:
        return "context " + hashlib.sha256(record["context"].encode()).hexdigest()[:16]
    return f"line {number}"
