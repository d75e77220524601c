"""A run's directory: its lock, status, metrics and summary."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from arbiter.errors import ArbiterError, RunError, RunInterrupted
from arbiter.files import disk_problem, naming, remove_leftovers, write_json_atomic
from arbiter.training.run_reading import read_object

log = logging.getLogger(__name__)


class Onlooker:
    """In place of the run directory in processes that write nothing: the first one does."""

    resume = Path(os.devnull)

    def log(self, event: str, **fields: Any) -> None:
        """Nothing: the first process logs the same."""

    def rewind_metrics(self, size: int) -> None:
        """Nothing, likewise."""


class RunDirectory:
    """The one owner of a run directory, while the `with` block lasts.

    status.json says `running` inside the block and `finished`, `failed` (with the error's line) or
    `interrupted` after it. Where a run finished before, it says so until `begin` is called: what
    is refused leaves it finished.

    Attributes:
        finished: whether the run had finished before.
        listeners: told of every event that is logged.

    Raises:
        RunError: another process is running there, or the disk takes no more.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = FileLock(path / ".lock")
        self.finished = False
        self.listeners: list[Callable[[str, dict[str, Any]], None]] = []

    def __enter__(self) -> RunDirectory:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # The lock is the system's: that of a dead process is free.
            self._lock.acquire(timeout=0)
            try:
                self._open()
            except BaseException:
                self._lock.release()
                raise
        except Timeout:
            raise RunError(f"{self.path}: another process is running there; wait for it") from None
        except OSError as error:
            raise self._explained(error) from error
        return self

    def _open(self) -> None:
        for directory in (self.path, self.resume, self.path / "evaluation"):
            remove_leftovers(directory)
        # A status that is damaged says nothing: the run's last part is done again.
        self.finished = read_object(self.path / "status.json").get("status") == "finished"
        # Unbuffered: after an error nothing is left that closing would try to write again.
        self._metrics = (self.path / "metrics.jsonl").open("ab", buffering=0)
        if not self.finished:
            self._set_status("running")

    def begin(self) -> None:
        """Say that the run is going on: from here on its files change."""
        self.finished = False
        self._set_status("running")

    def _explained(self, error: OSError) -> Exception:
        """The error's one line if it lies with the disk, and the error itself otherwise."""
        line = disk_problem(error, self.path)
        return error if line is None else RunError(f"{line}, and give resume={self.path}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, OSError):
                explained = self._explained(error)
                if explained is not error:
                    self._end(explained)
                    raise explained from error
            self._end(error)
        finally:
            self._metrics.close()
            self._lock.release()

    def _end(self, error: BaseException | None) -> None:
        """Write the last status."""
        if self.finished and error is not None:
            return
        if error is None:
            self._set_status("finished")
            return
        # A full disk may refuse even this; the error to show is the first one.
        with suppress(OSError):
            if isinstance(error, (KeyboardInterrupt, RunInterrupted)):
                self._set_status("interrupted")
                return
            known = isinstance(error, ArbiterError)
            line = str(error).splitlines()[0] if str(error) else ""
            # A sweep shows only its first error; each job's log must hold its own.
            log.error("failed: %s", line, exc_info=None if known else error)
            self._set_status("failed", line if known else f"{type(error).__name__}: {line}")

    @property
    def resume(self) -> Path:
        """Where resume states live."""
        return self.path / "resume"

    @property
    def model(self) -> Path:
        """Where the finished model lives."""
        return self.path / "model"

    def log(self, event: str, **fields: Any) -> None:
        """Append one line to metrics.jsonl: 'run', 'step', 'epoch' or 'final'."""
        line = json.dumps({"event": event, **fields}, allow_nan=False) + "\n"
        rest = line.encode()
        with naming(self.path / "metrics.jsonl"):
            while rest:
                rest = rest[self._metrics.write(rest) :]
        for listener in self.listeners:
            listener(event, fields)

    def metrics_size(self) -> int:
        """Bytes of metrics.jsonl so far, all of them on the disk."""
        with naming(self.path / "metrics.jsonl"):
            os.fsync(self._metrics.fileno())
        return self._metrics.tell()

    def rewind_metrics(self, size: int) -> None:
        """Cut metrics.jsonl to its first `size` bytes: what came after a state never happened."""
        found = os.fstat(self._metrics.fileno()).st_size
        if found < size:
            log.warning(
                "metrics.jsonl: %d of %d bytes are there; earlier lines are lost", found, size
            )
        with naming(self.path / "metrics.jsonl"):
            self._metrics.truncate(min(size, found))
        self._metrics.seek(0, os.SEEK_END)

    def write_summary(self, summary: dict) -> None:
        """Write summary.json."""
        write_json_atomic(self.path / "summary.json", summary)

    def read_summary(self) -> dict:
        """What `write_summary` wrote."""
        return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))

    def _set_status(self, status: str, error: str | None = None) -> None:
        value = {"status": status, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        if error is not None:
            value["error"] = error
        write_json_atomic(self.path / "status.json", value)
