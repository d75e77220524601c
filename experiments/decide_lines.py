"""Answering a file of questions: one line of JSON in, one line of JSON out, in order."""

from __future__ import annotations

import io
import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from arbiter.datasets.manifest import numbered_lines, parse_line, sample_of
from arbiter.engine import Arbiter
from arbiter.errors import ArbiterError, DecisionError, SourceError, first_line
from arbiter.files import atomic_text, disk_problem
from arbiter.sample import Sample
from experiments.app import drop_unwritten
from experiments.schema import DecideConfig

STANDARD = "-"
"""Standard input, or output."""

_REQUIRED = ("question", "candidates")


def decide_lines(arbiter: Arbiter, config: DecideConfig, options: dict[str, Any]) -> str:
    """Answer `config.input` into `config.output`; what was done, in one line.

    Raises:
        DecisionError: some lines could not be decided: how many, and why the first one. The output
            is complete nevertheless.
        SourceError: the input cannot be read.
    """
    total = failed = 0
    first = ""
    with _opened_input(config.input) as (lines, folder), _opened_output(config) as output:
        for answer in answers(arbiter, lines, folder, config.source, config.batch_size, options):
            total += 1
            if "error" in answer:
                failed += 1
                first = first or f"line {answer['line']}: {answer['error']}"
            output.write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")
            if output is sys.stdout:
                output.flush()
    if failed:
        raise DecisionError(f"{failed:,} of {total:,} lines could not be decided; first: {first}")
    return f"lines decided: {total:,}"


def answers(
    arbiter: Arbiter,
    lines: BinaryIO,
    folder: Path,
    source: str,
    batch_size: int,
    options: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """An object for each line: its number, its id if it has one, and a decision or an error.

    Args:
        lines: a manifest, as docs/own_data.md describes it; answers are not needed.
        folder: that its paths are relative to.
        source: the data source that the questions are like.
        batch_size: lines decided together; no more are in memory.
        options: of `Arbiter.stream`.
    """
    heads: deque[dict[str, Any]] = deque()

    def samples() -> Iterator[Sample | ArbiterError]:
        for number, line in _read(lines):
            head: dict[str, Any] = {"line": number}
            heads.append(head)
            try:
                record = parse_line(line, _REQUIRED)
                if "id" in record:
                    head["id"] = record["id"]
                arbiter.check_known({"audio", "video"} & record.keys())
                yield sample_of(record, folder, number, source, arbiter.max_frames)
            except ArbiterError as error:
                yield error

    for result in arbiter.stream(samples(), batch_size, errors="return", **options):
        head = heads.popleft()
        if isinstance(result, ArbiterError):
            yield {**head, "error": first_line(result)}
        else:
            decision = result.to_dict()
            # Wall-clock times would make two answers to one file differ.
            del decision["timings"]
            yield {**head, **decision}


def _read(lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
    try:
        yield from numbered_lines(lines)
    except OSError as error:
        raise SourceError(f"input: cannot be read ({error.strerror})") from None


@contextmanager
def _opened_input(place: str) -> Iterator[tuple[BinaryIO, Path]]:
    """The lines, and the folder that their paths are relative to."""
    if place == STANDARD:
        yield sys.stdin.buffer, Path()
        return
    # Unlike those of Path, these take a name that the system refuses for one of nothing.
    if not os.path.exists(place) or os.path.isdir(place):
        raise SourceError(
            f"input={place}: there is no such file; give a JSON-lines file, see docs/own_data.md, "
            "or - for standard input"
        )
    with Path(place).open("rb") as file:
        yield file, Path(place).parent


@contextmanager
def _opened_output(config: DecideConfig) -> Iterator[TextIO]:
    """Where decisions go: a file appears under its name when it is complete, and not before.

    Raises:
        DecisionError: it cannot be written to, or nobody reads it any longer.
    """
    place = Path(config.output)
    try:
        if config.output == STANDARD:
            # JSON is UTF-8, whatever the terminal's encoding.
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8")
            yield sys.stdout
            sys.stdout.flush()
            return
        if not place.parent.is_dir():
            raise DecisionError(f"output={place}: there is no folder {place.parent}; make it first")
        if place.is_dir():
            raise DecisionError(f"output={place}: is a folder; name a file")
        if place.exists() and config.input != STANDARD and place.samefile(config.input):
            raise DecisionError(f"output={place}: is the input; name another file")
        # A pipe or a device keeps its name, and takes lines as they come.
        special = place.exists() and not place.is_file()
        with place.open("w", encoding="utf-8") if special else atomic_text(place) as file:
            yield file
    except BrokenPipeError:
        drop_unwritten()
        raise DecisionError(
            f"output={config.output}: whoever read the decisions has stopped"
        ) from None
    except OSError as error:
        drop_unwritten()
        line = disk_problem(error, f"output={config.output}")
        if line is None:
            raise
        raise DecisionError(line) from None
