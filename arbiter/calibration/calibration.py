"""What is fitted on the calibration split and travels with the model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from arbiter.calibration.conformal import lac_scores
from arbiter.calibration.temperature import fit_temperature
from arbiter.model.predict import Predictions, softmax
from arbiter.sample import Sample


@dataclass(frozen=True)
class Calibration:
    """The fit.

    Attributes:
        temperature: divides the logits.
        samples: how many samples it was fitted on.
        split_digest: sha256 over the names of those samples.
        lac_scores: ascending scores of the right answers, at that temperature.
    """

    temperature: float
    samples: int
    split_digest: str
    lac_scores: list[float]

    def to_dict(self) -> dict:
        """As JSON."""
        return asdict(self)


def calibrate(predictions: Predictions, samples: Sequence[Sample]) -> Calibration:
    """Fit temperature, then conformal scores, on held-out predictions."""
    temperature = fit_temperature(predictions.logits, predictions.mask, predictions.answer)
    probabilities = softmax(predictions.logits, predictions.mask, temperature)
    names = sorted(f"{sample.source}/{sample.id}" for sample in samples)
    return Calibration(
        temperature=temperature,
        samples=len(samples),
        split_digest=hashlib.sha256("\n".join(names).encode()).hexdigest(),
        lac_scores=lac_scores(probabilities, predictions.answer).tolist(),
    )
