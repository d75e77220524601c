"""How a feature build gets on, for a person to watch."""

from __future__ import annotations

import logging
import time

from arbiter.console import ProgressBar

log = logging.getLogger(__name__)

_REFRESH_SECONDS = 0.1


class BuildProgress:
    """A progress bar per content kind, with items/s and the time left, and a line at its end."""

    def __init__(self) -> None:
        self._bar: ProgressBar | None = None
        self._started = self._shown = 0.0

    def __call__(self, kind: str, done: int, total: int) -> None:
        """Report that `done` of `total` contents have been looked at."""
        now = time.monotonic()
        if self._bar is None:
            self._bar = ProgressBar(f"features: {kind}", total).__enter__()
            self._started = now
        elapsed = max(now - self._started, 1e-9)
        if done == total:
            self.close()
            log.info(
                "features: %d %s contents looked at, new ones encoded, in %.1f s",
                total,
                kind,
                elapsed,
            )
        elif now - self._shown >= _REFRESH_SECONDS:
            self._shown = now
            self._bar.update(done, f"{done / elapsed:.1f} items/s")

    def close(self) -> None:
        """Take the bar away, as after an error in the middle of a build."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

    def __enter__(self) -> BuildProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
