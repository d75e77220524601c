"""Numbers that go wrong: gradients that are not finite, losses that jump."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from arbiter.config import option
from arbiter.errors import RunError

log = logging.getLogger(__name__)

_MEMORY = 0.98
_NEGLIGIBLE_LOSS = 0.5


@dataclass
class GuardsConfig:
    """What is done about numbers that go wrong."""

    max_bad_steps: int = option(
        10, help="Steps in a row with a gradient that is not finite before the run stops.", low=1
    )
    spike_factor: float = option(
        5.0, help="A step's loss above this multiple of its running mean is logged.", above=1
    )


class Guard:
    """Judges each step by its loss and its gradient's norm.

    Attributes:
        bad_steps: steps without a finite gradient, in a row.
        running_loss: exponential mean of the loss, or None before the first step.
    """

    def __init__(self, config: GuardsConfig, bad_steps: int = 0, running_loss: float | None = None):
        self._config = config
        self.bad_steps, self.running_loss = bad_steps, running_loss

    def allows(self, step: int, loss: float, grad_norm: float, samples: str) -> bool:
        """Whether the optimizer may take this step.

        Args:
            samples: names some of the step's samples, for the log.

        Raises:
            RunError: too many steps in a row have no finite gradient.
        """
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self.bad_steps = 0
            self._watch(step, loss, samples)
            return True
        self.bad_steps += 1
        log.warning("step %d: no finite gradient; skipped; samples %s", step, samples)
        if self.bad_steps >= self._config.max_bad_steps:
            raise RunError(
                f"training: {self.bad_steps} steps in a row without a finite gradient, up to step "
                f"{step}; lower optimizer.lr, raise schedule.warmup_steps, or use "
                "hardware.precision=float32"
            )
        return False

    def _watch(self, step: int, loss: float, samples: str) -> None:
        mean = loss if self.running_loss is None else self.running_loss
        if loss > max(self._config.spike_factor * mean, _NEGLIGIBLE_LOSS):
            log.warning(
                "step %d: loss %.3f, %.0f times its running mean; samples %s",
                step, loss, loss / mean, samples,
            )  # fmt: skip
        self.running_loss = _MEMORY * mean + (1 - _MEMORY) * loss
