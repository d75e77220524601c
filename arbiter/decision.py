"""What comes out: a decision, and how far to trust it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from arbiter.calibration.conformal import METHODS
from arbiter.calibration.deployed import DELIBERATED, FULL, GATED
from arbiter.calibration.escalation import EscalationConfig, Reason
from arbiter.config import from_dict
from arbiter.errors import ConfigError, DecisionError


@dataclass(frozen=True)
class Timings:
    """Wall-clock time of the batch that a decision was made in.

    Attributes:
        features_seconds: from inputs to features.
        model_seconds: from features to the answer.
        batch_size: decisions made together.
    """

    features_seconds: float
    model_seconds: float
    batch_size: int

    @property
    def seconds(self) -> float:
        """From inputs to the answer."""
        return self.features_seconds + self.model_seconds


@dataclass(frozen=True)
class Decision:
    """An answer, and how far to trust it.

    Attributes:
        choice: the most probable candidate.
        index: its index.
        probabilities: one per candidate, in the order given; they sum to 1.
        entropy: of the probabilities, in nats.
        prediction_set: candidates that hold the right one with probability at least `level`, most
            probable first; None when the model is not calibrated.
        level: 1 - alpha, or None.
        early_exit: whether the draft head answered.
        stability: in [0, 1]; see `arbiter.calibration.deliberation`. None without deliberation.
        certified: whether the stability is at least 0.80; None without deliberation.
        escalate: whether someone slower should be asked.
        reasons: why.
        modalities: what the decision was based on, beside question and candidates.
        notes: what else there is to know: a gate that is shut, a set that had to be all candidates.
        timings: of the batch.
    """

    choice: str
    index: int
    probabilities: tuple[float, ...]
    entropy: float
    prediction_set: tuple[str, ...] | None
    level: float | None
    early_exit: bool
    stability: float | None
    certified: bool | None
    escalate: bool
    reasons: tuple[Reason, ...]
    modalities: tuple[str, ...]
    notes: tuple[str, ...]
    timings: Timings

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


@dataclass(frozen=True)
class Options:
    """How to decide; every field may be given to `Arbiter.decide` by name.

    Attributes:
        alpha: the prediction set misses the right candidate with at most this probability.
        method: 'lac', 'aps' or 'raps'.
        per_source: calibrate the set on samples of the sample's own source alone, so that the
            guarantee holds within it; a source without such samples gets all candidates.
        early_exit: False has the full model answer every question.
        deliberate: stochastic passes and a tournament against foils; no early exit then.
        escalation: thresholds that differ from the model's own, by name.

    Raises:
        DecisionError: a value is not allowed.
    """

    alpha: float = 0.1
    method: str = "lac"
    per_source: bool = False
    early_exit: bool = True
    deliberate: bool = False
    escalation: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, Real) and 0 < self.alpha < 1):
            raise DecisionError(f"alpha={self.alpha}: must lie between 0 and 1, e.g. 0.1")
        # Of numpy's numbers, levels would have their precision, and not be JSON.
        object.__setattr__(self, "alpha", float(self.alpha))
        if self.method not in METHODS:
            raise DecisionError(f"method={self.method}: must be one of {', '.join(METHODS)}")

    @property
    def path(self) -> str:
        """The deployed path that is taken."""
        if self.deliberate:
            return DELIBERATED
        return GATED if self.early_exit else FULL

    def thresholds(self, stored: EscalationConfig) -> EscalationConfig:
        """The model's thresholds with those given here.

        Raises:
            ConfigError: no such threshold, or a value that is not allowed.
        """
        if not self.escalation:
            return stored
        try:
            return from_dict(EscalationConfig, {**dataclasses.asdict(stored), **self.escalation})
        except ConfigError as error:
            value = self.escalation.get(error.key, error.value)
            raise ConfigError(f"escalation.{error.key}", value, error.allowed) from None
