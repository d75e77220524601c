"""What calibration may be told."""

from __future__ import annotations

from dataclasses import dataclass

from arbiter.calibration.conformal import EMPTY_SETS, RapsConfig
from arbiter.calibration.deliberation import DeliberationConfig
from arbiter.calibration.escalation import EscalationConfig
from arbiter.calibration.gate import GateConfig
from arbiter.config import option


@dataclass
class CalibrationConfig:
    """Fitted after training, on the calibration split alone; travels with the model.

    Temperatures and gate are chosen to suit the samples that they see. Conformal scores and risks
    promise something about samples that nothing was chosen on, so they come from the other part of
    the split. Half and half, because either part's error falls with the root of its size.
    """

    fit_fraction: float = option(
        0.5,
        help="Share of the calibration groups for temperature and gate; the rest is for sets.",
        above=0,
        below=1,
    )
    empty_set: str = option(
        "top1", help="What becomes of an empty prediction set.", choices=EMPTY_SETS
    )
    raps: RapsConfig = option(RapsConfig(), help="Regularised adaptive prediction sets.")
    gate: GateConfig = option(GateConfig(), help="Early exit through the draft head.")
    deliberation: DeliberationConfig = option(
        DeliberationConfig(), help="Stochastic passes and the tournament against foils."
    )
    escalation: EscalationConfig = option(
        EscalationConfig(), help="When someone slower is asked; can be overridden by each decision."
    )
