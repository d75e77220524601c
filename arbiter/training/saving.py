"""When resume states are written, and when a run stops."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from arbiter.errors import ProcessFailed, ProcessLost, RunInterrupted
from arbiter.hardware.distributed import Ranks
from arbiter.training.checkpoint import CheckpointConfig, State, StateWriter
from arbiter.training.interruption import Interruption


class Saving:
    """Writes states while the `with` block lasts, in which a signal waits for the step in hand.

    If another process of the run is lost, the last complete step is written before the block ends.
    Of several processes, the first one writes; all stop after the same step.

    Args:
        config: how often.
        directory: where states go.
        interruption: says when to stop.
        ranks: the processes of the run.
        take: makes the state of the last complete step, and names the step.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        directory: Path,
        interruption: Interruption,
        ranks: Ranks,
        take: Callable[[], tuple[int, State]],
    ):
        self._config, self._interruption = config, interruption
        self._ranks, self._take = ranks, take
        self._writer = StateWriter(directory)
        self._saved_step, self._last = 0, time.monotonic()

    def __enter__(self) -> Saving:
        self._interruption.defer(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lost = self._ranks.first and isinstance(error, (ProcessLost, ProcessFailed))
        try:
            if lost:
                self.save()
        finally:
            self._interruption.defer(False)
            self._writer.close()
        if lost:
            raise kind(f"stopped after step {self._saved_step}: {error}") from error

    def save(self) -> None:
        """Write a state in the background."""
        if not self._ranks.first:
            return
        self._saved_step, state = self._take()
        self._writer.submit(self._saved_step, state)
        self._last = time.monotonic()

    def end_step(self, step: int) -> None:
        """After a step: write a state if one is due, and stop if asked to.

        Raises:
            RunInterrupted: the run was asked to stop; a state has been written.
        """
        minutes = (time.monotonic() - self._last) / 60
        by_step = self._config.every_steps and step % self._config.every_steps == 0
        stop = self._asked_to_stop()
        if stop or by_step or minutes >= self._config.every_minutes:
            self.save()
        if stop:
            self._stop(step)

    def end_epoch(self, step: int) -> None:
        """After an epoch's validation: write a state, and stop if asked to.

        Raises:
            RunInterrupted: the run was asked to stop; a state has been written.
        """
        self.save()
        if self._asked_to_stop():
            self._stop(step)

    def _asked_to_stop(self) -> bool:
        return self._ranks.any(self._interruption.reason is not None)

    def _stop(self, step: int) -> None:
        self._writer.wait()
        reason = self._interruption.reason or "another process of the run was asked to stop"
        raise RunInterrupted(f"interrupted at step {step}: {reason}")
