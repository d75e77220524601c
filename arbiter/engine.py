"""The engine: a trained model that answers questions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arbiter.calibration.calibration import Calibration
from arbiter.calibration.conformal import prediction_set, quantile
from arbiter.calibration.metrics import entropy
from arbiter.encoders.base import Compute
from arbiter.errors import DecisionError
from arbiter.features.dataset import index_samples
from arbiter.features.memory import MemoryStore
from arbiter.hardware.device import resolve_device
from arbiter.model.decision_model import CONTEXT
from arbiter.model.files import LoadedModel, load_model, to_device
from arbiter.model.predict import predict, softmax
from arbiter.sample import ImageRef, Modality, Sample

_INPUT_OF = {
    Modality.CONTEXT: CONTEXT,
    Modality.IMAGE: "image",
    Modality.VIDEO: "video",
    Modality.AUDIO: "audio",
}


@dataclass(frozen=True)
class Decision:
    """An answer, and how far to trust it.

    Attributes:
        choice: the most probable candidate.
        index: its index.
        probabilities: one per candidate, in the order given; they sum to 1.
        entropy: of the probabilities, in nats.
        prediction_set: candidates that hold the right one with probability at least `coverage`,
            most probable first; None when the model is not calibrated.
        coverage: 1 - alpha, or None.
        escalate: whether someone slower should be asked.
        reasons: why.
        modalities: what the decision was based on, beside question and candidates.
        seconds: time from media to answer, for the whole batch that it was made in.
    """

    choice: str
    index: int
    probabilities: tuple[float, ...]
    entropy: float
    prediction_set: tuple[str, ...] | None
    coverage: float | None
    escalate: bool
    reasons: tuple[str, ...]
    modalities: tuple[str, ...]
    seconds: float


class Arbiter:
    """A decision engine; safe to share between threads.

    Example:
        arbiter = Arbiter.load("outputs/train/2026-01-31/12-00-00-000000")
        arbiter.decide("what color is the shape?", ["red", "blue"], image="shape.png").choice
    """

    def __init__(self, loaded: LoadedModel):
        self._model = loaded.model
        self._device = next(loaded.model.parameters()).device
        self._store = MemoryStore(loaded.encoder, loaded.codecs)
        self._calibration = None
        if loaded.calibration is not None:
            self._calibration = Calibration(**loaded.calibration)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Arbiter:
        """Load a run directory or a model directory.

        Raises:
            RunError: there is no complete, undamaged model.
            ConfigError: the device cannot be used.
        """
        directory = Path(path)
        if (directory / "model").is_dir():
            directory = directory / "model"
        resolved = resolve_device(device, "device")
        return cls(to_device(load_model(directory, Compute(resolved)), resolved))

    @property
    def max_frames(self) -> int:
        """Frames that the model looks at of a video."""
        return self._store.encoder.spec.max_frames

    def decide(
        self,
        question: str,
        candidates: Sequence[str],
        *,
        context: str | None = None,
        image: ImageRef | str | None = None,
        images: Sequence[ImageRef | str] = (),
        video: Sequence[ImageRef | str] = (),
        audio: np.ndarray | None = None,
        alpha: float = 0.1,
    ) -> Decision:
        """Choose among candidates.

        Args:
            question: text.
            candidates: at least two distinct texts.
            context: text to read.
            image, images: a path, encoded bytes, PIL image or uint8 array; one, or several.
            video: frames, as images.
            audio: mono float32 waveform at 16 kHz.
            alpha: the prediction set misses the right candidate with at most this probability.

        Raises:
            SampleError: the question or its candidates are not a decision problem.
            MediaError: an image cannot be read.
            DecisionError: the model was not trained on one of the modalities given.
        """
        sample = Sample(
            question=question,
            candidates=candidates if isinstance(candidates, str) else tuple(candidates),
            context=context,
            images=tuple(map(_reference, [*([] if image is None else [image]), *images])),
            video=tuple(map(_reference, video)),
            audio=audio,
        )
        return self.decide_batch([sample], alpha=alpha)[0]

    def decide_batch(self, samples: Sequence[Sample], *, alpha: float = 0.1) -> list[Decision]:
        """Decide many samples together; samples about the same media share its cost.

        Raises:
            MediaError, DecisionError: as `decide`.
        """
        if not (isinstance(alpha, (int, float)) and 0 < alpha < 1):
            raise DecisionError(f"alpha={alpha}: must lie between 0 and 1, e.g. 0.1")
        if not samples:
            return []
        started = time.perf_counter()
        for sample in samples:
            self._check_modalities(sample)
        dataset = index_samples({"": samples}, self._store, self._store.encoder.spec)[""]
        predictions = predict(self._model, dataset, len(samples), self._device, ahead=0)
        temperature = self._calibration.temperature if self._calibration else 1.0
        probabilities = softmax(predictions.logits, predictions.mask, temperature)
        seconds = time.perf_counter() - started
        return [
            self._decision(sample, row[: len(sample.candidates)], alpha, seconds)
            for sample, row in zip(samples, probabilities, strict=True)
        ]

    def _check_modalities(self, sample: Sample) -> None:
        for modality in sample.modalities:
            if _INPUT_OF[modality] not in self._model.inputs:
                known = [m.value for m, i in _INPUT_OF.items() if i in self._model.inputs]
                raise DecisionError(
                    f"{modality.value}: this model was trained without it; leave it out "
                    f"(it knows {', '.join(known) or 'text only'})"
                )

    def _decision(
        self, sample: Sample, probabilities: np.ndarray, alpha: float, seconds: float
    ) -> Decision:
        index = int(probabilities.argmax())
        chosen, reasons = None, []
        if self._calibration is None:
            reasons.append("the model is not calibrated")
        else:
            indices = prediction_set(probabilities, quantile(self._calibration.lac_scores, alpha))
            chosen = tuple(sample.candidates[i] for i in indices)
            if len(chosen) > 1:
                reasons.append(f"{len(chosen)} candidates are plausible at level {1 - alpha:g}")
        return Decision(
            choice=sample.candidates[index],
            index=index,
            probabilities=tuple(probabilities.tolist()),
            entropy=float(entropy(probabilities)),
            prediction_set=chosen,
            coverage=None if chosen is None else 1 - alpha,
            escalate=bool(reasons),
            reasons=tuple(reasons),
            modalities=tuple(sorted(m.value for m in sample.modalities)),
            seconds=seconds,
        )


def _reference(ref: ImageRef | str) -> ImageRef:
    return Path(ref) if isinstance(ref, str) else ref
