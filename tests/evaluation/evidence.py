"""Made-up decisions whose figures can be worked out by hand."""

from __future__ import annotations

import numpy as np

from arbiter.calibration.calibration import Calibration, PathCalibration
from arbiter.calibration.conformal import METHODS, RapsConfig, answer_scores, scores
from arbiter.calibration.deliberation import DeliberationConfig
from arbiter.calibration.deployed import GATED, Fitted, Outcome
from arbiter.calibration.escalation import EscalationConfig
from arbiter.calibration.gate import GateFit
from arbiter.calibration.risk import RiskCounts
from arbiter.sample import Sample


def outcome(probabilities, mask=None, exits=None, stability=None, seed: int = 0) -> Outcome:
    probabilities = np.asarray(probabilities, float)
    mask = probabilities > 0 if mask is None else mask
    return Outcome(
        probabilities,
        mask,
        np.zeros(len(probabilities), bool) if exits is None else np.asarray(exits),
        np.random.default_rng(seed).random(len(probabilities)),
        None if stability is None else np.asarray(stability),
        None if stability is None else np.zeros(len(probabilities), bool),
    )


def calibration(known: dict[str, tuple[Outcome, np.ndarray]], empty_set="allow") -> Calibration:
    """From decisions and answers on calibration samples, by source."""
    each = {
        method: {
            source: answer_scores(
                scores(method, o.probabilities, o.mask, o.uniform), answer
            ).tolist()
            for source, (o, answer) in known.items()
        }
        for method in METHODS
    }
    count = sum(len(answer) for _, answer in known.values())
    return Calibration(
        fitted=Fitted(1.0, 1.0, None, None, DeliberationConfig(), 0),
        gate=GateFit(None, "too few", count, 0, 0, None),
        paths={GATED: PathCalibration(each, RiskCounts(count, (), ()))},
        fit_samples=count,
        set_samples=count,
        split_digest="",
        empty_set=empty_set,
        raps=RapsConfig(),
        escalation=EscalationConfig(),
    )


def drawn(count: int, rng: np.random.Generator, noise: float = 0.0):
    """Decisions over four candidates of a model that is right to be unsure, and their answers."""
    logits = rng.normal(size=(count, 4)) * 2
    answer = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    weights = np.exp(logits + noise * rng.normal(size=logits.shape))
    p = weights / weights.sum(axis=1, keepdims=True)
    return outcome(p, seed=int(rng.integers(2**31))), answer


def samples(answers, source: str = "a", **fields) -> list[Sample]:
    return [
        Sample("which?", ("p", "q", "r", "s"), answer=int(answer), source=source, **fields)
        for answer in answers
    ]
