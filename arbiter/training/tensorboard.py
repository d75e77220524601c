"""TensorBoard, fed from the events of metrics.jsonl; it may fail, and never the run with it."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from arbiter.errors import ConfigError

log = logging.getLogger(__name__)


class TensorBoard:
    """Writes the numbers of `step` and `epoch` events below a directory.

    Raises:
        ConfigError: the package is not installed.
    """

    def __init__(self, directory: Path):
        try:
            module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise ConfigError(
                "logging.tensorboard",
                "true",
                "tensorboard is not installed; pip install 'arbiter[tensorboard]', or false",
            ) from None
        self._make, self._directory, self._writer = module.SummaryWriter, directory, None
        self._failed = False

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Take one event of the run."""
        if event not in ("step", "epoch") or self._failed:
            return
        try:
            self._write(event, fields)
        # What its writer and the thread behind it raise: the disk, a closed queue, a bad value.
        except (OSError, ValueError, RuntimeError) as error:
            self._failed = True
            log.warning("tensorboard: switched off, the run goes on: %s", error)

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
