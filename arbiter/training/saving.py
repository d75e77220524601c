"""When resume states are written, and when a run stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from arbiter.errors import RunInterrupted
from arbiter.training.checkpoint import CheckpointConfig, State, StateWriter
from arbiter.training.interruption import Interruption


class Saving:
    """Writes states while the `with` block lasts, in which a signal waits for the step in hand.

    Args:
        config: how often.
        directory: where states go.
        interruption: says when to stop.
        take: makes the state of the last complete step, and names the step.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        directory: Path,
        interruption: Interruption,
        take: Callable[[], tuple[int, State]],
    ):
        self._config, self._interruption, self._take = config, interruption, take
        self._writer = StateWriter(directory)
        self._last = time.monotonic()

    def __enter__(self) -> Saving:
        self._interruption.defer(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._interruption.defer(False)
        self._writer.close()

    def save(self) -> None:
        """Write a state in the background."""
        self._writer.submit(*self._take())
        self._last = time.monotonic()

    def end_step(self, step: int) -> None:
        """After a step within an epoch: write a state if one is due, and stop if asked to.

        Raises:
            RunInterrupted: the run was asked to stop; a state has been written.
        """
        minutes = (time.monotonic() - self._last) / 60
        by_step = self._config.every_steps and step % self._config.every_steps == 0
        stop = self._interruption.reason is not None
        if stop or by_step or minutes >= self._config.every_minutes:
            self.save()
        if stop:
            self._stop(step)

    def end_epoch(self, step: int, last: bool) -> None:
        """After an epoch's last step: write a state, and stop if asked to and there is more to do.

        Raises:
            RunInterrupted: the run was asked to stop; a state has been written.
        """
        self.save()
        if self._interruption.reason is not None and not last:
            self._stop(step)

    def _stop(self, step: int) -> None:
        self._writer.wait()
        raise RunInterrupted(f"interrupted at step {step}: {self._interruption.reason}")
