"""When a decision asks for someone slower, and why."""

from __future__ import annotations

from dataclasses import dataclass

from arbiter.config import option

NOT_CALIBRATED = "not_calibrated"
HIGH_ENTROPY = "high_entropy"
LOW_CONFIDENCE = "low_confidence"
SET_TOO_LARGE = "set_too_large"
EMPTY_SET = "empty_set"
UNSTABLE = "unstable"
FOIL_COLLISION = "foil_collision"
TARGET_RISK = "target_risk"


@dataclass
class EscalationConfig:
    """Thresholds; null switches one off."""

    max_entropy: float | None = option(
        0.69, help="Largest entropy in nats; a coin toss between two has 0.693.", low=0
    )
    min_confidence: float | None = option(
        0.6, help="Least probability of the choice.", low=0, high=1
    )
    max_set_size: int | None = option(1, help="Largest prediction set.", low=1)
    min_stability: float | None = option(
        0.8, help="Least stability, which is looked at when deliberating.", low=0, high=1
    )
    foil_collision: bool = option(
        True, help="Whether a foil that scores as high as the choice escalates."
    )


@dataclass(frozen=True)
class Reason:
    """Why a decision is escalated.

    Attributes:
        code: stable, for programs: one of this module's constants.
        text: one clause, for people.
    """

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Evidence:
    """What is known about one decision.

    Attributes:
        entropy: in nats.
        confidence: probability of the choice.
        level: of the prediction set.
        set_size: None without a set.
        too_few: calibration samples behind a set that had to be all candidates; None for others.
        stability, collision: None without deliberation.
    """

    entropy: float
    confidence: float
    level: float
    set_size: int | None
    too_few: int | None
    stability: float | None
    collision: bool | None


def reasons(config: EscalationConfig, seen: Evidence, empty_escalates: bool) -> list[Reason]:
    """All that speaks against letting a decision stand, in a fixed order."""
    found = []
    if config.max_entropy is not None and seen.entropy > config.max_entropy:
        found.append(
            Reason(HIGH_ENTROPY, f"entropy {seen.entropy:.3f} is above {config.max_entropy:g} nats")
        )
    if config.min_confidence is not None and seen.confidence < config.min_confidence:
        found.append(
            Reason(
                LOW_CONFIDENCE,
                f"confidence {seen.confidence:.3f} is below {config.min_confidence:g}",
            )
        )
    if seen.set_size == 0 and empty_escalates:
        found.append(Reason(EMPTY_SET, f"no candidate is plausible at level {seen.level:.12g}"))
    limit = config.max_set_size
    if limit is not None and seen.set_size is not None and seen.set_size > limit:
        text = f"{seen.set_size} candidates are plausible at level {seen.level:.12g}"
        if seen.too_few is not None:
            text = f"too few calibration samples for level {seen.level:.12g}: {seen.too_few}"
        found.append(Reason(SET_TOO_LARGE, text))
    least = config.min_stability
    if seen.stability is not None and least is not None and seen.stability < least:
        found.append(Reason(UNSTABLE, f"stability {seen.stability:.2f} is below {least:g}"))
    if seen.collision and config.foil_collision:
        found.append(Reason(FOIL_COLLISION, "a foil scores at least as high as the choice"))
    return found
