"""When the draft head may answer without the full model.

A gate opens for a sample whose draft probabilities have a large enough margin, a low enough entropy
and a high enough confidence. The gates that are tried form one fixed sequence, from strict to
loose: `margin >= 1 - 0.55 s`, `entropy <= 0.40 s`, `confidence >= 1 - 0.35 s`, where s is
1.8 (i / 32)^2 for i = 1 to 32. The last asks for next to nothing; s = 1 would be 0.45, 0.40 and
0.65, thresholds that have been in use. The sequence does not depend on the data, so a sequential
test corrects for the search (`exact.fallback_test`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arbiter.calibration.exact import fallback_test, p_values, upper_bound
from arbiter.calibration.metrics import entropy
from arbiter.config import option

_LOOSEST, _GATES = 1.8, 32


@dataclass
class GateConfig:
    """How much the draft head may differ from the full model where it answers."""

    max_disagreement: float = option(
        0.01, help="Share of early exits that may differ from the full model.", above=0, below=1
    )
    confidence: float = option(
        0.95, help="Probability that the share is kept, over calibration splits.", above=0, below=1
    )


@dataclass(frozen=True)
class Gate:
    """What a sample's draft probabilities must satisfy for it to exit early.

    Attributes:
        margin: least difference between the two most probable candidates.
        entropy: largest entropy, in nats.
        confidence: least probability of the most probable candidate.
    """

    margin: float
    entropy: float
    confidence: float

    def opens(self, probabilities_NK: np.ndarray) -> np.ndarray:
        """For which samples, bool [N].

        Args:
            probabilities_NK: of the draft head, 0 where padded; K is at least 2.
        """
        return self._passes(*_statistics(probabilities_NK))

    def _passes(self, margin: np.ndarray, entropy: np.ndarray, top: np.ndarray) -> np.ndarray:
        return (margin >= self.margin) & (entropy <= self.entropy) & (top >= self.confidence)


def _statistics(probabilities_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Margin, entropy (nats) and confidence, float64 [N] each."""
    second_N, first_N = np.partition(probabilities_NK, (-2, -1), axis=-1)[:, -2:].T
    return first_N - second_N, entropy(probabilities_NK), first_N


@dataclass(frozen=True)
class GateFit:
    """What was found on the calibration split.

    Attributes:
        gate: None when it stays shut.
        reason: why this gate, or why none, in one sentence.
        samples: in the split.
        exits: how many of them exit through the gate.
        disagreements: how many of those differ from the full model.
        bound: upper bound on the share of exits that differ, one-sided, at the configured
            confidence, of this gate alone; None when shut.
    """

    gate: Gate | None
    reason: str
    samples: int
    exits: int
    disagreements: int
    bound: float | None


def gates() -> list[Gate]:
    """The gates that are tried, from the strictest to the loosest; each opens for more samples."""
    steps = _LOOSEST * (np.arange(1, _GATES + 1) / _GATES) ** 2
    return [Gate(*map(float, (1 - 0.55 * s, 0.40 * s, 1 - 0.35 * s))) for s in steps]


def fit_gate(
    draft_probabilities_NK: np.ndarray, disagrees_N: np.ndarray, config: GateConfig
) -> GateFit:
    """The loosest gate whose exits differ from the full model in at most `max_disagreement`.

    With probability `confidence` over calibration splits, no gate that exceeds the limit is chosen.

    Args:
        draft_probabilities_NK: of calibration samples, 0 where padded.
        disagrees_N: bool, whether draft head and full model choose different candidates.
    """
    tried = gates()
    found = _statistics(draft_probabilities_NK)
    opens = np.array([gate._passes(*found) for gate in tried])
    exits, wrong = opens.sum(axis=1), (opens & disagrees_N).sum(axis=1)
    error = 1 - config.confidence
    passed = fallback_test(p_values(wrong, exits, config.max_disagreement), error)
    samples, limit = len(disagrees_N), config.max_disagreement
    if not passed.any():
        # What it takes for a single gate to pass, if no exit at all is wrong.
        needed = int(np.ceil(np.log(error / len(tried)) / np.log1p(-limit)))
        reason = f"no gate kept disagreement within {limit:g} with {config.confidence:g} confidence"
        if exits[-1] < needed:
            reason = (
                f"{exits[-1]} of {samples} samples could exit; {needed} are needed to show a "
                f"disagreement of at most {limit:g} with {config.confidence:g} confidence"
            )
        return GateFit(None, reason, samples, 0, 0, None)
    best = int(np.flatnonzero(passed)[-1])
    reason = (
        f"{wrong[best]} of {exits[best]} exits differ from the full model; the share is at most "
        f"{limit:g} with {config.confidence:g} confidence"
    )
    bound = upper_bound(int(wrong[best]), int(exits[best]), config.confidence)
    return GateFit(tried[best], reason, samples, int(exits[best]), int(wrong[best]), bound)
