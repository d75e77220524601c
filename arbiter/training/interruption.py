"""Stopping a run politely: by signal, or in time for a queue."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType, TracebackType

from arbiter.errors import RunInterrupted
from arbiter.hardware.distributed import ranks

_SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
]

# torchrun passes on what the terminal has sent to its processes as well.
_SAME_REQUEST_SECONDS = 10.0


class Interruption:
    """While the `with` block lasts, SIGTERM, SIGINT and SIGUSR1 end the run instead of the process.

    Between `defer` and the end of training a signal only sets `reason`, so that the step in hand
    is finished and a state written; elsewhere it raises `RunInterrupted` at once. A second signal
    always raises; with several processes, only one that comes later than torchrun's echo of it.

    Args:
        max_minutes: after this time `reason` is set as well; None for no limit.
    """

    def __init__(self, max_minutes: float | None = None):
        self._limit = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._max_minutes = max_minutes
        self._signal: str | None = None
        self._signalled = -math.inf
        self._deferred = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        # Python delivers signals to the main thread only; a job in another thread goes without.
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._handle) for s in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def defer(self, deferred: bool) -> None:
        """Whether a signal waits for the step in hand."""
        self._deferred = deferred

    @property
    def reason(self) -> str | None:
        """Why the run should stop now, or None."""
        if self._signal is None and self._limit is not None and time.monotonic() >= self._limit:
            return f"checkpoint.max_minutes={self._max_minutes:g} is over"
        return self._signal

    def check(self) -> None:
        """Between parts of a run.

        Raises:
            RunInterrupted: the run was asked to stop.
        """
        if self.reason is not None:
            raise RunInterrupted(f"interrupted: {self.reason}")

    def lift_limit(self) -> None:
        """Forget `max_minutes`: what is to be done writes no state, and would begin anew."""
        self._limit = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name, before = signal.Signals(number).name, self._signalled
        self._signalled = time.monotonic()
        if ranks().size > 1 and self._signalled - before < _SAME_REQUEST_SECONDS:
            return
        if not self._deferred or self._signal is not None:
            raise RunInterrupted(f"interrupted by {name}")
        self._signal = name
