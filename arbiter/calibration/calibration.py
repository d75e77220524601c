"""What is fitted on the calibration split and travels with the model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from arbiter.calibration.config import CalibrationConfig
from arbiter.calibration.conformal import (
    METHODS,
    RapsConfig,
    answer_scores,
    fill_empty,
    prediction_sets,
    quantiles_by_source,
    scores,
)
from arbiter.calibration.deliberation import deliberate, noise_source
from arbiter.calibration.deployed import DELIBERATED, PATHS, Deployed, Fitted, Outcome
from arbiter.calibration.escalation import EscalationConfig
from arbiter.calibration.gate import GateFit, fit_gate
from arbiter.calibration.risk import RiskCounts
from arbiter.calibration.temperature import FEW_SAMPLES, fit_temperature
from arbiter.features.dataset import FeatureDataset
from arbiter.model.bank import TravellingBank
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import Running, predict, softmax
from arbiter.sample import Sample
from arbiter.seeds import hash_fraction

FORMAT_VERSION = 2

# A sample's scores differ by less than this from one batch to another. Without it, rounding would
# decide on which side of a threshold the very sample falls that the threshold was taken from.
_ROUNDING = 1e-6

BySource = dict[str, list[float]]


@dataclass(frozen=True)
class PathCalibration:
    """What the decisions of one path are worth, from samples that nothing was fitted on.

    Attributes:
        scores: method -> source -> ascending scores of the right answers.
        risk: how many decisions are wrong above each confidence.
    """

    scores: dict[str, BySource]
    risk: RiskCounts

    @cached_property
    def pooled(self) -> dict[str, list[float]]:
        """method -> ascending scores of all sources."""
        return {
            method: sorted(score for part in by_source.values() for score in part)
            for method, by_source in self.scores.items()
        }


@dataclass(frozen=True)
class Sets:
    """Prediction sets of N samples.

    Attributes:
        deployed: bool [N, K], empty ones treated as `empty_set` says.
        unfilled: bool [N, K], as they come.
        behind: int [N], how many calibration samples are behind each.
        too_few: bool [N], whether they are too few for the level: the set is all candidates.
    """

    deployed: np.ndarray
    unfilled: np.ndarray
    behind: np.ndarray
    too_few: np.ndarray


@dataclass(frozen=True)
class Calibration:
    """The fit.

    Attributes:
        fitted: temperatures, gate and deliberation.
        gate: why the gate is as it is.
        paths: by path that can be deployed.
        fit_samples: samples behind temperatures and gate.
        set_samples: samples behind sets and risks; from other groups.
        split_digest: sha256 over the names of all of them.
        empty_set, raps, escalation: as configured.
    """

    fitted: Fitted
    gate: GateFit
    paths: dict[str, PathCalibration]
    fit_samples: int
    set_samples: int
    split_digest: str
    empty_set: str
    raps: RapsConfig
    escalation: EscalationConfig

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever reads a probability must know of the fit."""
        if self.fit_samples >= FEW_SAMPLES:
            return ()
        return (
            f"the temperature comes from {self.fit_samples} samples, fewer than {FEW_SAMPLES}: "
            "probabilities are rough",
        )

    def prediction_sets(
        self,
        outcome: Outcome,
        path: str,
        method: str,
        alpha: float,
        sources: Sequence[str] | None = None,
    ) -> Sets:
        """The sets of N samples that took a path.

        Args:
            sources: of each sample, for sets calibrated within its source; None for all together.
        """
        found = self.paths[path]
        parts = {"": found.pooled[method]} if sources is None else found.scores[method]
        names = [""] * len(outcome.mask) if sources is None else sources
        threshold = quantiles_by_source(parts, names, alpha)
        each = scores(method, outcome.probabilities, outcome.mask, outcome.uniform, self.raps)
        unfilled = prediction_sets(each, threshold + _ROUNDING)
        return Sets(
            deployed=fill_empty(unfilled, outcome.probabilities, self.empty_set),
            unfilled=unfilled,
            behind=np.array([len(parts.get(name, ())) for name in names]),
            too_few=np.isinf(threshold),
        )

    def summary(self, bank: TravellingBank | None) -> dict:
        """What a run's summary says of it: everything but the scores."""
        fitted = self.fitted
        return {
            "samples": self.fit_samples + self.set_samples,
            "fit_samples": self.fit_samples,
            "set_samples": self.set_samples,
            "split_digest": self.split_digest,
            "temperature": fitted.full_temperature,
            "draft_temperature": fitted.draft_temperature,
            "deliberated_temperature": fitted.deliberated_temperature,
            "gate": asdict(self.gate),
            "notes": list(self.notes),
            "foils": 0 if bank is None else len(bank),
        }

    def to_dict(self) -> dict:
        """As JSON; `read_calibration` takes it back."""
        return {"format_version": FORMAT_VERSION, **asdict(self)}


def calibrate(
    model: DecisionModel,
    dataset: FeatureDataset,
    config: CalibrationConfig,
    bank: TravellingBank | None,
    running: Running,
    seed: int,
) -> Calibration | None:
    """Fit on one part of the calibration split, then run every path on the other part.

    No group is on both sides, since samples about one picture resemble each other. Samples without
    an answer are left out.

    Returns:
        None when a part is left without samples: then nothing may be called calibrated.
    """
    rows = np.array([r for r, sample in enumerate(dataset.samples) if sample.answer is not None])
    samples = [dataset.samples[row] for row in rows]
    fits = _fits(samples, config.fit_fraction, seed)
    if not fits.any() or fits.all():
        return None
    fit_part, set_part = dataset.take(rows[fits]), dataset.take(rows[~fits])
    fitted, gate = _fit(model, fit_part, config, bank, running, seed)
    deployed = Deployed(model, fitted, bank, running)
    paths = [p for p in PATHS if p != DELIBERATED or fitted.deliberated_temperature is not None]
    names = sorted(f"{sample.source}/{sample.id}" for sample in samples)
    return Calibration(
        fitted=fitted,
        gate=gate,
        paths={
            path: _measure(deployed.run(set_part, path), set_part, config.raps) for path in paths
        },
        fit_samples=len(fit_part),
        set_samples=len(set_part),
        split_digest=hashlib.sha256("\n".join(names).encode()).hexdigest(),
        empty_set=config.empty_set,
        raps=config.raps,
        escalation=config.escalation,
    )


def _fits(samples: Sequence[Sample], fraction: float, seed: int) -> np.ndarray:
    """Which samples serve temperatures and gate, bool [N]: whole groups, chosen by their hash.

    Each side has at least one group, if there are two.
    """
    groups = sorted(
        {sample.group for sample in samples},
        key=lambda group: hash_fraction(seed, f"calibration/{group}"),
    )
    count = min(max(round(fraction * len(groups)), 1), len(groups) - 1)
    chosen = set(groups[:count]) if count > 0 else set()
    return np.array([sample.group in chosen for sample in samples], bool)


def _fit(
    model: DecisionModel,
    part: FeatureDataset,
    config: CalibrationConfig,
    bank: TravellingBank | None,
    running: Running,
    seed: int,
) -> tuple[Fitted, GateFit]:
    """Temperatures, and the gate."""
    found = predict(model, part, running.batch_size, running.device, running.ahead)
    draft_temperature = fit_temperature(found.draft_logits, found.mask, found.answer)
    deliberated_temperature = None
    if config.deliberation.passes:
        source = noise_source(model, config.deliberation, seed)
        thought = deliberate(model, part, source, bank, running)
        deliberated_temperature = fit_temperature(thought.logits, thought.mask, found.answer)
    disagrees = found.draft_logits.argmax(axis=-1) != found.logits.argmax(axis=-1)
    # At temperature 1, for the gates that are tried may not depend on these samples; with a
    # temperature that was fitted on them they would.
    gate = fit_gate(softmax(found.draft_logits, found.mask), disagrees, config.gate)
    fitted = Fitted(
        draft_temperature=draft_temperature,
        full_temperature=fit_temperature(found.logits, found.mask, found.answer),
        deliberated_temperature=deliberated_temperature,
        gate=gate.gate,
        deliberation=config.deliberation,
        seed=seed,
    )
    return fitted, gate


def _measure(outcome: Outcome, part: FeatureDataset, raps: RapsConfig) -> PathCalibration:
    """Conformal scores and risks of one path."""
    answer = part.answer.numpy()
    sources = np.array([sample.source for sample in part.samples])
    right = outcome.probabilities.argmax(axis=-1) == answer

    def by_source(method: str) -> BySource:
        each = scores(method, outcome.probabilities, outcome.mask, outcome.uniform, raps)
        return {
            name: answer_scores(each[sources == name], answer[sources == name]).tolist()
            for name in sorted(set(sources.tolist()))
        }

    return PathCalibration(
        scores={method: by_source(method) for method in METHODS},
        risk=RiskCounts.count(outcome.probabilities.max(axis=-1), right),
    )


def describe_calibration(calibration: Calibration | None) -> str:
    """One line for a log."""
    if calibration is None:
        return "none: its split needs samples of at least two groups; decisions will say so"
    gate = calibration.gate
    fitted = (
        f"temperature {calibration.fitted.full_temperature:.3f} and gate from "
        f"{calibration.fit_samples} samples, sets from {calibration.set_samples}"
    )
    found = f"gate {'open' if gate.gate else 'shut'}: {gate.reason}"
    return "; ".join((fitted, *calibration.notes, found))
