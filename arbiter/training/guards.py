"""Numbers that go wrong: losses and gradients that are not finite, losses that jump."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
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
        10,
        help="Steps in a row whose loss or gradient is not finite before the run stops.",
        low=1,
    )
    spike_factor: float = option(
        5.0, help="A step's loss above this multiple of its running mean is logged.", above=1
    )


class Guard:
    """Judges each step by its loss and its gradient's norm.

    Attributes:
        bad_steps: steps skipped in a row.
        skipped_steps: steps skipped in the whole run.
        running_loss: exponential mean of the loss, or None before the first step.
    """

    def __init__(
        self,
        config: GuardsConfig,
        bad_steps: int = 0,
        running_loss: float | None = None,
        skipped_steps: int = 0,
    ):
        self._config = config
        self.bad_steps, self.running_loss = bad_steps, running_loss
        self.skipped_steps = skipped_steps

    def allows(
        self, step: int, terms: dict[str, float], grad_norm: float, samples: Callable[[], str]
    ) -> bool:
        """Whether the optimizer may take this step; otherwise it is counted.

        Args:
            terms: the step's loss terms. One can be NaN while the gradient is finite.
            samples: names the step's samples, for the log.

        Raises:
            ProcessLost: another process died before it could name its own; nothing is counted.
            RunError: too many steps in a row have no finite loss or gradient.
        """
        if all(map(math.isfinite, (*terms.values(), grad_norm))):
            self._watch(step, terms["cross_entropy"], samples)
            self.bad_steps = 0
            return True
        log.warning("step %d: no finite loss or gradient; skipped; samples %s", step, samples())
        self.bad_steps += 1
        self.skipped_steps += 1
        if self.bad_steps >= self._config.max_bad_steps:
            raise RunError(
                f"training: {self.bad_steps} steps in a row without a finite loss or gradient, up "
                f"to step {step}; lower optimizer.lr, raise schedule.warmup_steps, or use "
                "hardware.precision=float32"
            )
        return False

    def _watch(self, step: int, loss: float, samples: Callable[[], str]) -> None:
        mean = loss if self.running_loss is None else self.running_loss
        if loss > max(self._config.spike_factor * mean, _NEGLIGIBLE_LOSS):
            log.warning(
                "step %d: loss %.3f, its running mean was %.3f; samples %s",
                step, loss, mean, samples(),
            )  # fmt: skip
        self.running_loss = _MEMORY * mean + (1 - _MEMORY) * loss
