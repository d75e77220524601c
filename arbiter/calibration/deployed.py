"""The deployed path: from features to the probabilities that a person is shown.

There are three, and each is calibrated by being run on the calibration split:

- `gated`: the draft head answers where its gate opens; only the rest is fused.
- `full`: every question is fused.
- `deliberated`: the full model under noise, and a tournament against foils.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arbiter.calibration.deliberation import DeliberationConfig, deliberate, noise_source
from arbiter.calibration.gate import Gate
from arbiter.features.content import sample_digests
from arbiter.features.dataset import FeatureDataset
from arbiter.model.bank import TravellingBank
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import Running, predict_draft, predict_full, softmax
from arbiter.seeds import hash_fraction

GATED, FULL, DELIBERATED = PATHS = ("gated", "full", "deliberated")


@dataclass(frozen=True)
class Fitted:
    """What turns scores into answers.

    Attributes:
        draft_temperature, full_temperature, deliberated_temperature: divide the logits of each
            path; the last is None when deliberation is left out.
        gate: of draft probabilities at temperature 1; None when it stays shut.
        deliberation: how it is done.
        seed: of noise, and of the randomisation of prediction sets.
    """

    draft_temperature: float
    full_temperature: float
    deliberated_temperature: float | None
    gate: Gate | None
    deliberation: DeliberationConfig
    seed: int


UNCALIBRATED = Fitted(1.0, 1.0, None, None, DeliberationConfig(passes=0), 0)
"""Scores as they come: for a model whose calibration split was too small."""


@dataclass(frozen=True)
class Outcome:
    """What came out of one path for N samples, in the dataset's order.

    Attributes:
        probabilities: float64 [N, K], 0 where padded.
        mask: bool [N, K].
        early_exit: bool [N], whether the draft head answered.
        stability: float64 [N], or None without deliberation.
        collision: bool [N], whether a foil scored as high as the choice; None without.
        uniform: float64 [N] in [0, 1), the randomisation of prediction sets; depends on what a
            sample holds, and on nothing else.
    """

    probabilities: np.ndarray
    mask: np.ndarray
    early_exit: np.ndarray
    uniform: np.ndarray
    stability: np.ndarray | None = None
    collision: np.ndarray | None = None


class Deployed:
    """A model behind what was fitted for it.

    Args:
        model: in evaluation mode, on `running.device`.
        fitted: temperatures and gate.
        bank: foils for deliberation, or None.
        running: how it is run.
    """

    def __init__(
        self,
        model: DecisionModel,
        fitted: Fitted,
        bank: TravellingBank | None,
        running: Running,
    ):
        self.model, self.fitted, self.bank, self.running = model, fitted, bank, running

    def run(self, dataset: FeatureDataset, path: str, with_media: bool = True) -> Outcome:
        """Answer every sample of a dataset that is not empty.

        Args:
            path: one of `PATHS`.
            with_media: False leaves images, video and audio out; not when deliberating.
        """
        uniform = np.array(
            [hash_fraction(self.fitted.seed, d.hex()) for d in sample_digests(dataset)]
        )
        if path == DELIBERATED:
            source = noise_source(self.model, self.fitted.deliberation, self.fitted.seed)
            found = deliberate(self.model, dataset, source, self.bank, self.running)
            probabilities = softmax(found.logits, found.mask, self.fitted.deliberated_temperature)
            collision = None if self.bank is None else found.collision
            stays = np.zeros(len(dataset), bool)
            return Outcome(probabilities, found.mask, stays, uniform, found.stability, collision)
        exits = np.zeros(len(dataset), bool)
        probabilities = mask = None
        if path == GATED and self.fitted.gate is not None:
            logits, mask = predict_draft(self.model, dataset, self.running, with_media)
            probabilities = softmax(logits, mask, self.fitted.draft_temperature)
            exits = self.fitted.gate.opens(softmax(logits, mask))
        if not exits.all():
            # Those that left are really left out: the rest makes batches of its own.
            rest = np.flatnonzero(~exits)
            part = dataset if len(rest) == len(dataset) else dataset.take(rest)
            logits, full_mask = predict_full(self.model, part, self.running, with_media)
            answered = softmax(logits, full_mask, self.fitted.full_temperature)
            if len(rest) == len(dataset):
                probabilities, mask = answered, full_mask
            else:
                probabilities[rest, : answered.shape[1]] = answered
        return Outcome(probabilities, mask, exits, uniform)
