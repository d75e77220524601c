"""The lines of a manifest: one JSON object per question, with paths of its media.

The format is described in docs/own_data.md. The source `jsonl` trains on such a file,
`experiments.decide` answers one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from arbiter.clips import MAX_FRAME_SIDE, load_audio, load_video
from arbiter.errors import SampleError, SourceError
from arbiter.sample import Sample
from arbiter.strict_json import parse_json

MAX_LINE_BYTES = 1 << 24

_TEXT, _TEXTS, _INDEX = "a text", "a list of texts", "an index"
_KEYS = {
    "question": (_TEXT,),
    "candidates": (_TEXTS,),
    "answer": (_TEXT, _INDEX),
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
_MAY_BE_EMPTY = ("images", "video")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, counted from 1, one in memory at a time.

    Line breaks are cut off, and so is a UTF-8 byte order mark at the beginning. Of a line that is
    longer than `MAX_LINE_BYTES`, one byte more than that is given.
    """
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        rest = line
        while rest and not rest.endswith(b"\n") and len(rest) > MAX_LINE_BYTES:
            rest = file.readline(MAX_LINE_BYTES + 1)
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        yield number, line.rstrip(b"\r\n")


def parse_line(line: bytes, required: tuple[str, ...]) -> dict[str, Any]:
    """One line of a manifest; keys whose value is null, or an empty list of media, are absent.

    Args:
        line: without its line break.
        required: keys that must be there.

    Raises:
        SourceError: it is not a JSON object with the documented keys and types. The line is not
            named in it.
    """
    if len(line) > MAX_LINE_BYTES:
        raise SourceError(f"longer than {MAX_LINE_BYTES:,} bytes")
    if not line.strip():
        raise SourceError("the line is empty")
    try:
        record = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise SourceError("not UTF-8 text; save the file as UTF-8") from None
    except ValueError as error:
        raise SourceError(str(error)) from None
    if not isinstance(record, dict):
        raise SourceError("not a JSON object; write {...}, one per line")
    unknown = [key for key in record if key not in _KEYS]
    if unknown:
        raise SourceError(f"no such key {unknown[0]!r}; there are {', '.join(_KEYS)}")
    record = {
        key: value
        for key, value in record.items()
        if value is not None and not (value == [] and key in _MAY_BE_EMPTY)
    }
    for key in required:
        if key not in record:
            raise SourceError(f"{key} is missing")
    for key, value in record.items():
        if _kind(value) not in _KEYS[key]:
            raise SourceError(f"{key} must be {' or '.join(_KEYS[key])}")
    return record


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return _TEXT
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return _TEXTS
    return _INDEX if isinstance(value, int) and not isinstance(value, bool) else "other"


def sample_of(
    record: dict[str, Any],
    folder: Path,
    number: int,
    source: str = "",
    video_frames: int = 8,
    max_frame_side: int = MAX_FRAME_SIDE,
) -> Sample:
    """The sample that a line describes; sounds and video files are decoded, pictures are not yet.

    Args:
        record: from `parse_line`.
        folder: that its paths are relative to.
        number: of the line.
        source: the name of the data source.
        video_frames: frames taken from a video file.
        max_frame_side: longer side in pixels that they are reduced to.

    Raises:
        SourceError: the line is no legal sample. The line is not named in it.
        MediaError: a sound or a video file cannot be decoded.
    """
    images = [*([record["image"]] if "image" in record else []), *record.get("images", ())]
    video = record.get("video", [])
    if isinstance(video, str):
        frames = load_video(folder / video, video_frames, max_frame_side)
    else:
        frames = tuple(folder / frame for frame in video)
    try:
        return Sample(
            question=record["question"],
            candidates=tuple(record["candidates"]),
            answer=_answer(record),
            context=record.get("context"),
            images=tuple(folder / image for image in images),
            video=frames,
            audio=load_audio(folder / record["audio"]) if "audio" in record else None,
            source=source,
            group=record.get("group") or _group(record, number),
            id=record.get("id", f"line {number}"),
            meta={"question_type": record["question_type"]} if "question_type" in record else {},
        )
    except SampleError as error:
        raise SourceError(error.problem) from None


def _answer(record: dict[str, Any]) -> int | None:
    """The index of the answer, which is given as the candidate's text or as its index."""
    answer, candidates = record.get("answer"), record["candidates"]
    if answer is None or isinstance(answer, int):
        return answer
    stripped = [candidate.strip() for candidate in candidates]
    if answer.strip() not in stripped:
        raise SourceError(f"answer {answer!r} is none of the candidates {candidates}")
    return stripped.index(answer.strip())


def _group(record: dict[str, Any], number: int) -> str:
    """Questions about one text belong together; what shares media is linked by the mix."""
    has_media = any(key in record for key in ("image", "images", "video", "audio"))
    if "context" in record and not has_media:
        return "context " + hashlib.sha256(record["context"].encode()).hexdigest()[:16]
    return f"line {number}"
