"""TensorBoard, fed from the events of metrics.jsonl; it may fail, and never the run with it."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from arbiter.errors import ArbiterError, ConfigError, first_line

log = logging.getLogger(__name__)


class TensorBoard:
    """Writes the numbers of `step` and `epoch` events below a directory.

    Raises:
        ConfigError: the package is not installed.
    """

    def __init__(self, directory: Path):
        self._directory, self._writer, self._failed = directory, None, False
        try:
            self._make = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ModuleNotFoundError:
            raise ConfigError(
                "logging.tensorboard",
                "true",
                "tensorboard is not installed; pip install 'arbiter[tensorboard]', or false",
            ) from None
        except Exception as error:
            self._give_up(error)

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Take one event of the run."""
        if event not in ("step", "epoch") or self._failed:
            return
        try:
            self._write(event, fields)
        except ArbiterError:
            # Never the writer's: a request to stop comes out of whatever is being done.
            raise
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Stay off from here on.

        Everything is caught, here alone: what the package, its file systems and the thread behind
        it raise is listed nowhere, and no run may be lost to a picture of it.
        """
        self._failed = True
        log.warning(
            "tensorboard: switched off, the run goes on: %s: %s",
            type(error).__name__, first_line(error),
        )  # fmt: skip

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        step = fields["step"]
        if self._writer is None:
            # What an earlier process wrote past the state that the run goes on from is hidden.
            self._writer = self._make(str(self._directory), purge_step=step)
        for name, value in fields.items():
            # Figures by source are one chart each.
            parts = value if isinstance(value, dict) else {None: value}
            for part, number in parts.items():
                if isinstance(number, (int, float)) and name != "step":
                    tag = f"{event}/{name}" if part is None else f"{event}/{name}/{part}"
                    self._writer.add_scalar(tag, number, step)
        self._writer.flush()
