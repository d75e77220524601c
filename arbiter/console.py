"""The terminal: log lines that get along with a progress bar, and plain lines without one."""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

_LOG_WIDTH = 140


class Terminal(Console):
    """The process's own terminal: where jobs go to other processes, each one's is meant."""

    def __reduce__(self) -> str:
        return "console"


console = Terminal(highlight=False)


class ConsoleHandler(logging.Handler):
    """Prints log lines above any progress bar, unwrapped and unstyled.

    Errors are left to the log file: they end the app, which prints them last and once.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if record.levelno >= logging.ERROR:
            return
        console.print(self.format(record), markup=False, soft_wrap=True)


class LogFile(logging.FileHandler):
    """A run's log file. A disk that takes no more lines ends the log, never the run.

    Whatever must not be lost is written by others, whose errors count.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Stay silent about the disk; logging would print a traceback for each record."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the file, with what a full disk has left in its buffer."""
        with suppress(OSError):
            super().close()


def say(line: str) -> None:
    """Print a line as it is, however long."""
    console.print(line, markup=False, soft_wrap=True)


def as_lines(tables: Iterable[Table]) -> list[str]:
    """Tables as plain lines, for a log."""
    # Names come from data: a bracket in one is no markup.
    plain = Console(file=io.StringIO(), width=_LOG_WIDTH, no_color=True, markup=False, emoji=False)
    for table in tables:
        plain.print(table)
    return [line.rstrip() for line in plain.file.getvalue().splitlines()]


class ProgressBar:
    """A bar with figures and the time left on a terminal; a plain line now and then otherwise.

    Args:
        title: what is going on.
        total: units of work.
        every_seconds: interval of plain lines.
    """

    def __init__(self, title: str, total: int, every_seconds: float = 10.0):
        self._title, self._total, self._every = title, total, every_seconds
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(title, total=total, figures="")

    def __enter__(self) -> ProgressBar:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, figures: str = "") -> None:
        """Show that `done` units are finished, with a few figures beside."""
        if self._bar:
            self._bar.update(self._task, completed=done, figures=figures)
        elif time.monotonic() - self._last_line >= self._every:
            self._last_line = time.monotonic()
            left = (self._last_line - self._started) * (self._total - done) / max(done, 1)
            line = f"{self._title} {done}/{self._total} {figures} {left:.0f} s left"
            logging.getLogger(__name__).info(" ".join(line.split()))
