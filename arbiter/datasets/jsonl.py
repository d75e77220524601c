"""A person's own data: a file with one JSON object per line, and media files beside it.

The format is described, with an example to copy, in docs/own_data.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arbiter.clips import MAX_FRAME_SIDE
from arbiter.config import option
from arbiter.datasets.base import ALL, SPLITS, LoadedSource, SourceConfig
from arbiter.datasets.manifest import numbered_lines, parse_line, sample_of
from arbiter.errors import MediaError, SourceError

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
        config, folder = self.config, Path(self.config.path).parent
        for number, line in self._lines():
            try:
                record = parse_line(line, _REQUIRED)
                part = _part(record)
                sample = sample_of(
                    record, folder, number, self.name, config.video_frames, config.max_frame_side
                )
            except MediaError as error:
                loaded.damaged.append(f"line {number}: {error}")
            except SourceError as error:
                raise SourceError(f"{config.path} line {number}: {error}") from None
            else:
                loaded.parts.setdefault(part, []).append(sample)
        if not loaded.parts and not loaded.damaged:
            raise SourceError(
                f"{config.path}: holds no samples; give one JSON object a line, see "
                "docs/own_data.md"
            )
        return loaded

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not empty."""
        path = Path(self.config.path)
        try:
            with path.open("rb") as file:
                for number, line in numbered_lines(file):
                    if line.strip():
                        yield number, line
        except OSError as error:
            raise SourceError(
                f"{self.name}: cannot read {path} ({error.strerror}); give path a JSON-lines file, "
                "see docs/own_data.md"
            ) from None


def _part(record: dict[str, Any]) -> str:
    """The split that a line names, or 'all'."""
    part = record.get("split", ALL)
    if "split" in record and part not in SPLITS:
        raise SourceError(
            f"split {part!r} is none of {', '.join(SPLITS)}; leave it out to have the sample "
            "dealt out"
        )
    return part
