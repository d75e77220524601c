"""Running a model on samples whose answers are known, by every way that it is deployed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arbiter.calibration.calibration import Calibration
from arbiter.calibration.deployed import DELIBERATED, FULL, GATED, Deployed, Fitted, Outcome
from arbiter.decision import Options, Timings
from arbiter.errors import DecisionError
from arbiter.evaluation.figures import Evidence
from arbiter.evaluation.majority import MajorityBaseline
from arbiter.evaluation.sets import DeployedSets
from arbiter.features.dataset import FeatureDataset
from arbiter.features.ragged import Ragged
from arbiter.judge import judge
from arbiter.model.decision_model import DecisionModel
from arbiter.sample import MEDIA, Modality, Sample


def measure(
    deployed: Deployed,
    calibration: Calibration | None,
    dataset: FeatureDataset,
    majority: MajorityBaseline | None,
    per_source: bool = False,
) -> Evidence:
    """Decide every sample as deployed, and again without early exit, without media, without each
    modality, and with deliberation where the model was calibrated for it.

    Args:
        deployed: the model behind what was fitted.
        calibration: that fit; None of a model without.
        dataset: at least one sample; all answers are known.
        majority: the frequency baseline, if training answers are known.
        per_source: make prediction sets from calibration samples of the same source alone.
    """
    samples, fitted = dataset.samples, deployed.fitted
    seconds: dict[str, float] = {}

    def run(path: str) -> Outcome:
        started = time.perf_counter()
        outcome = deployed.run(dataset, path)
        seconds[path] = (time.perf_counter() - started) / len(dataset)
        return outcome

    outcome = run(GATED)
    options, timings = Options(per_source=per_source), Timings(0.0, 0.0, len(samples))
    decisions = judge(samples, outcome, options, timings, calibration, None, False)
    sets = None
    if calibration is not None:
        sources = [sample.source for sample in samples]
        sets = DeployedSets(calibration, outcome, GATED, sources, per_source)
    blind = deployed.run(dataset, GATED, with_media=False).probabilities
    present = set().union(*(sample.modalities for sample in samples))
    dropped = {}
    for modality in Modality:
        if present & set(MEDIA) == {modality}:
            dropped[modality.value] = blind
        elif modality in present:
            part = without(dataset, modality)
            dropped[modality.value] = deployed.run(part, GATED).probabilities
    chosen = None
    if majority is not None:
        chosen = np.array([majority.predict(sample) for sample in samples])
    return Evidence(
        samples=samples,
        outcome=outcome,
        escalated=[tuple(reason.code for reason in decision.reasons) for decision in decisions],
        uncalibrated=None if calibration is None else at_temperature_1(outcome, fitted),
        question_only=blind,
        full=None if fitted.gate is None else run(FULL),
        deliberated=None if fitted.deliberated_temperature is None else run(DELIBERATED),
        sets=sets,
        majority=chosen,
        dropped=dropped,
        seconds=seconds,
    )


def at_temperature_1(outcome: Outcome, fitted: Fitted) -> np.ndarray:
    """The probabilities before temperature scaling, float64 [N, K]: p^T, normalised."""
    temperature = np.where(outcome.early_exit, fitted.draft_temperature, fitted.full_temperature)[
        :, None
    ]
    largest = outcome.probabilities.max(axis=-1, keepdims=True)
    raised = (outcome.probabilities / largest) ** temperature
    return raised / raised.sum(axis=-1, keepdims=True)


def without(dataset: FeatureDataset, modality: Modality) -> FeatureDataset:
    """The same questions as if none of them had come with a modality."""
    if modality is Modality.CONTEXT:
        return replace(dataset, context=dataset.context.new_full(dataset.context.shape, -1))
    if modality is Modality.AUDIO:
        silent = dataset.media_audio.new_full(dataset.media_audio.shape, -1)
        return replace(dataset, media_audio=silent)
    name = "media_images" if modality is Modality.IMAGE else "media_frames"
    none = Ragged.of([[] for _ in dataset.media_audio])
    return replace(dataset, **{name: none})


def check_inputs(model: DecisionModel, samples: Sequence[Sample]) -> None:
    """Whether a model knows the modalities of all samples.

    Raises:
        DecisionError: naming the source and the modality that it was trained without.
    """
    for sample in samples:
        for modality in sorted(sample.modalities, key=str):
            if modality.value not in model.modalities:
                raise DecisionError(
                    f"{sample.source} {sample.id}: this model was trained without "
                    f"{modality.value}; leave the source out, or train on such data "
                    f"(it knows {', '.join(model.modalities) or 'text only'})"
                )
