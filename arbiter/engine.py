"""The engine: a trained model that answers questions."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from PIL import Image

from arbiter import sharing
from arbiter.calibration.calibration import Calibration
from arbiter.calibration.deployed import GATED, UNCALIBRATED, Deployed
from arbiter.calibration.escalation import EscalationConfig
from arbiter.calibration.files import read_calibration
from arbiter.calibration.risk import RiskThreshold
from arbiter.decision import Decision, Options, Timings
from arbiter.encoders.base import Compute
from arbiter.errors import ArbiterError, DecisionError
from arbiter.features.dataset import Store, index_samples
from arbiter.features.memory import MemoryStore
from arbiter.hardware.device import resolve_device
from arbiter.inputs import (
    AudioInput,
    ImageInput,
    VideoInput,
    check_known,
    check_modalities,
    read_audio,
    read_images,
    read_sample,
    read_video,
)
from arbiter.judge import judge
from arbiter.model.files import LoadedModel, load_model, to_device
from arbiter.model.predict import Running
from arbiter.sample import Sample
from arbiter.sharing import find_model


class Arbiter:
    """A decision engine; deciding is safe from several threads at once.

    Example:
        arbiter = Arbiter.load("outputs/train/2026-01-31/12-00-00-000000")
        arbiter.decide("what color is the shape?", ["red", "blue"], image="shape.png").choice
    """

    def __init__(self, loaded: LoadedModel, store: Store | None = None):
        """Put a model to work; `load` does so from files.

        Args:
            loaded: the model, on its device.
            store: where features are kept; None makes them anew for every decision.
        """
        self._loaded = loaded
        self._model = loaded.model
        self._store = store or MemoryStore(loaded.encoder, loaded.codecs)
        self.calibration: Calibration | None = None
        if loaded.calibration is not None:
            self.calibration = read_calibration(loaded.calibration)
        fitted = self.calibration.fitted if self.calibration else UNCALIBRATED
        running = Running(next(loaded.model.parameters()).device)
        self._deployed = Deployed(loaded.model, fitted, loaded.bank, running)
        self._target: dict[str, RiskThreshold] | None = None

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "cpu",
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Arbiter:
        """Load a run directory, a model directory, or a repository of the Hugging Face hub.

        Args:
            path: a directory, or owner/name on the hub.
            device: cpu, cuda, mps, directml or auto.
            revision, token, cache_dir, local_files_only: as huggingface_hub takes them; without
                meaning for a directory.

        Raises:
            RunError: there is no complete, undamaged model.
            ConfigError: the device cannot be used.
        """
        resolved = resolve_device(device, "device")
        directory = find_model(path, revision, token, cache_dir, local_files_only)
        return cls(to_device(load_model(directory, Compute(resolved)), resolved))

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the model into a directory, from where `load` takes it.

        Other files in the directory stay. With `push_to_hub` the model is uploaded as well.

        Args:
            repo_id: owner/name on the hub; the directory's name if left out.
            model_card_kwargs: fields of the card's metadata, e.g. {"license": "mit"}.
            push_to_hub_kwargs: see `push_to_hub`.

        Returns:
            The commit's address if the model was uploaded, else None.

        Raises:
            RunError: the directory cannot be written, or the hub refuses.
        """
        sharing.save_pretrained(save_directory, self._loaded, model_card_kwargs)
        if not push_to_hub:
            return None
        return self.push_to_hub(
            repo_id or Path(save_directory).resolve().name,
            model_card_kwargs=model_card_kwargs,
            **push_to_hub_kwargs,
        )

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push model using Arbiter.",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        model_card_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Upload the model to the Hugging Face hub in one commit; the repository is made if needed.

        Args:
            repo_id: owner/name; without an owner it is whoever is logged in.
            private: whether a new repository is private; None leaves it to the hub.
            token: of the hub; None takes the one that is logged in.
            branch: to commit to; None is the main one.
            create_pr: propose the commit as a pull request.
            model_card_kwargs: fields of the card's metadata, e.g. {"license": "mit"}.

        Returns:
            The commit's address.

        Raises:
            RunError: the hub cannot be reached, or refuses.
        """
        return sharing.push_to_hub(
            self._loaded,
            repo_id,
            commit_message=commit_message,
            private=private,
            token=token,
            branch=branch,
            create_pr=create_pr,
            model_card_kwargs=model_card_kwargs,
        )

    @property
    def can_deliberate(self) -> bool:
        """Whether the model was calibrated for deliberation."""
        return self._deployed.fitted.deliberated_temperature is not None

    @property
    def max_frames(self) -> int:
        """Frames that the model looks at of a video."""
        return self._loaded.encoder.spec.max_frames

    def check_known(self, carried: Iterable[str]) -> None:
        """Whether the model knows these modalities, by name, before anything is decoded.

        Raises:
            DecisionError: it was trained without one of them.
        """
        check_known(carried, self._model.modalities)

    def set_target_risk(
        self, target: float | None, confidence: float = 0.95
    ) -> dict[str, RiskThreshold]:
        """From now on, escalate so that what stands is wrong in at most a share `target`.

        The guarantee holds with probability `confidence` over calibration splits, for each path by
        itself. The threshold alone decides then what is escalated: further reasons would pick out a
        part of the decisions for which nothing is promised. A path without such a threshold
        escalates everything. Not to be called while other threads decide.

        Args:
            target: in (0, 1); None goes back to the model's own thresholds.
            confidence: in (0, 1).

        Returns:
            By path: the threshold, the share decided, and why.

        Raises:
            DecisionError: no path has a threshold that reaches the target, or the model is not
                calibrated.
        """
        if target is None:
            self._target = None
            return {}
        for name, value in (("target_risk", target), ("confidence", confidence)):
            if not (isinstance(value, Real) and 0 < value < 1):
                raise DecisionError(f"{name}={value}: must lie between 0 and 1, e.g. 0.05")
        if self.calibration is None:
            raise DecisionError("target_risk: the model is not calibrated; train it with more data")
        found = {
            name: path.risk.threshold_for(float(target), float(confidence))
            for name, path in self.calibration.paths.items()
        }
        if all(threshold.threshold is None for threshold in found.values()):
            raise DecisionError(f"target_risk={target:g}: {found[GATED].reason}")
        self._target = found
        return found

    def decide(
        self,
        question: str,
        candidates: Sequence[str],
        *,
        context: str | None = None,
        image: ImageInput | None = None,
        images: Sequence[ImageInput] = (),
        video: VideoInput = (),
        audio: AudioInput | None = None,
        source: str = "",
        **options: Any,
    ) -> Decision:
        """Choose among candidates.

        Args:
            question: text.
            candidates: at least two distinct texts.
            context: text to read.
            image, images, video, audio: see `arbiter.inputs`.
            source: the data source that the question is like, for `per_source`.
            options: fields of `Options`.

        Raises:
            SampleError: the question or its candidates are not a decision problem.
            MediaError: an image, clip or sound cannot be read.
            DecisionError: the model was not trained on one of the modalities given, or an option
                is not allowed.
        """
        chosen = self._options(options)
        if isinstance(video, (str, Path)):
            self.check_known(["video"])
        if audio is not None:
            self.check_known(["audio"])
        listed = isinstance(candidates, Iterable) and not isinstance(candidates, str)
        sample = Sample(
            question=question,
            candidates=tuple(candidates) if listed else candidates,
            context=context,
            images=read_images(image, images),
            video=read_video(video, self.max_frames),
            audio=None if audio is None else read_audio(audio),
            source=source,
        )
        return self._decide([self._read(sample, {})], chosen)[0]

    def decide_batch(
        self, samples: Sequence[Sample], *, errors: str = "raise", **options: Any
    ) -> list[Decision | ArbiterError]:
        """Decide many samples together; samples about the same media share its cost.

        Args:
            samples: in any order; neighbours have no influence on each other.
            errors: 'raise', or 'return' for an error object in the place of a sample that cannot
                be decided.
            options: fields of `Options`.

        Raises:
            SampleError, MediaError, DecisionError: as `decide`, naming the sample's index.
        """
        return list(self.stream(samples, max(len(samples), 1), errors=errors, **options))

    def stream(
        self,
        samples: Iterable[Sample | ArbiterError],
        batch_size: int = 32,
        *,
        errors: str = "raise",
        **options: Any,
    ) -> Iterator[Decision | ArbiterError]:
        """Decide samples as they come, in order, `batch_size` at a time; memory stays flat.

        Args:
            samples: read no further than the batch at work. An error in the place of a sample
                stands for one that could not even be made.
            batch_size: samples decided together.
            errors: as in `decide_batch`; with 'raise' all decisions before the error come first.
            options: fields of `Options`.
        """
        if errors not in ("raise", "return"):
            raise DecisionError(f"errors={errors}: must be raise or return")
        if batch_size < 1:
            raise DecisionError(f"batch_size={batch_size}: must be at least 1")
        return self._stream(iter(samples), batch_size, errors == "raise", self._options(options))

    def _stream(
        self, samples: Iterator[Sample | ArbiterError], size: int, strict: bool, options: Options
    ) -> Iterator[Decision | ArbiterError]:
        first = 0
        while chunk := list(itertools.islice(samples, size)):
            results = self._decide_chunk(chunk, options)
            for index, result in enumerate(results, first):
                if strict and isinstance(result, ArbiterError):
                    result.args = (f"sample {index}: {result}",)
                    raise result
                yield result
            first += len(chunk)

    def _decide_chunk(
        self, chunk: Sequence[Sample | ArbiterError], options: Options
    ) -> list[Decision | ArbiterError]:
        """A result for each sample; those that can be read are decided together."""
        results: list[Any] = list(chunk)
        readable: dict[int, Sample] = {}
        decoded: dict[object, Image.Image] = {}
        for place, sample in enumerate(chunk):
            if not isinstance(sample, ArbiterError):
                try:
                    readable[place] = self._read(sample, decoded)
                except ArbiterError as error:
                    results[place] = error
        if readable:
            decisions = self._decide_apart(list(readable.values()), options)
            for place, decision in zip(readable, decisions, strict=True):
                results[place] = decision
        return results

    def _decide_apart(
        self, samples: Sequence[Sample], options: Options
    ) -> list[Decision | ArbiterError]:
        """Decide together; one by one if the encoder refuses one of them, to find out which."""
        try:
            return list(self._decide(samples, options))
        except ArbiterError as error:
            if len(samples) == 1:
                return [error]
            return [self._decide_apart([sample], options)[0] for sample in samples]

    def _read(self, sample: Sample, decoded: dict[object, Image.Image]) -> Sample:
        check_modalities(sample, self._model.modalities)
        return read_sample(sample, self.max_frames, decoded)

    def _options(self, options: dict[str, Any]) -> Options:
        """The options of a call, held against what the model can do."""
        known = [field.name for field in dataclasses.fields(Options)]
        for name in options.keys() - set(known):
            raise TypeError(f"{name}: no such option; there are {', '.join(known)}")
        chosen = Options(**options)
        if not isinstance(chosen.escalation, Mapping):
            raise DecisionError(
                f"escalation={chosen.escalation}: give thresholds by name, e.g. "
                "{'min_confidence': 0.9}"
            )
        stored = self.calibration.escalation if self.calibration else EscalationConfig()
        chosen.thresholds(stored)
        if chosen.deliberate and not self.can_deliberate:
            raise DecisionError(
                "deliberate: this model was not calibrated for it; train with "
                "calibration.deliberation.passes above 0"
            )
        return chosen

    def _decide(self, samples: Sequence[Sample], options: Options) -> list[Decision]:
        """Decide samples that can be read."""
        if options.per_source and not all(sample.source for sample in samples):
            raise DecisionError(
                "per_source: give source as well, the name of the data source that a question is "
                "like"
            )
        started = time.perf_counter()
        dataset = index_samples({"": samples}, self._store, self._loaded.encoder.spec)[""]
        encoded = time.perf_counter()
        outcome = self._deployed.run(dataset, options.path)
        timings = Timings(encoded - started, time.perf_counter() - encoded, len(samples))
        return judge(
            samples, outcome, options, timings, self.calibration, self._target,
            self._deployed.bank is not None,
        )  # fmt: skip
