"""A run's directory: its lock, status, metrics and summary."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from arbiter.errors import ArbiterError, RunError, RunInterrupted
from arbiter.files import write_json_atomic

log = logging.getLogger(__name__)


class RunDirectory:
    """The one owner of a run directory, while the `with` block lasts.

    `finished` says whether the run had finished before.

    status.json says `running` inside the block and `finished`, `failed` (with the error's line) or
    `interrupted` after it.

    Raises:
        RunError: another process is running there.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = FileLock(path / ".lock")
        status = path / "status.json"
        self.finished = status.exists() and json.loads(status.read_text())["status"] == "finished"

    def __enter__(self) -> RunDirectory:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunError(f"{self.path}: another process is running there; wait for it") from None
        self._metrics = (self.path / "metrics.jsonl").open("a", encoding="utf-8")
        self._set_status("running")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._set_status("finished")
            elif isinstance(error, (KeyboardInterrupt, RunInterrupted)):
                self._set_status("interrupted")
            else:
                known = isinstance(error, ArbiterError)
                line = str(error).splitlines()[0] if str(error) else ""
                # A sweep shows only its first error; each job's log must hold its own.
                log.error("failed: %s", line, exc_info=None if known else error)
                self._set_status("failed", line if known else f"{kind.__name__}: {line}")
        finally:
            self._metrics.close()
            self._lock.release()

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
        line = json.dumps({"event": event, **fields}, allow_nan=False)
        self._metrics.write(line + "\n")
        self._metrics.flush()

    def metrics_size(self) -> int:
        """Bytes of metrics.jsonl so far."""
        return self._metrics.tell()

    def rewind_metrics(self, size: int) -> None:
        """Cut metrics.jsonl to its first `size` bytes: what came after a state never happened."""
        self._metrics.truncate(size)
        self._metrics.seek(size)

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
