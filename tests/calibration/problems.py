"""A world whose right answers are drawn by a known model, and that model behind a calibration."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from arbiter.calibration.config import CalibrationConfig
from arbiter.features.batch import DecisionBatch
from arbiter.features.dataset import FeatureDataset, index_samples
from arbiter.features.memory import MemoryStore
from arbiter.foils import FoilsConfig
from arbiter.model.bank import TravellingBank
from arbiter.model.decision_model import DecisionModel
from arbiter.model.heads import mask_logits
from arbiter.model.predict import predict, softmax
from arbiter.sample import Sample
from tests.conftest import make_model

CPU = torch.device("cpu")
WORDS = ("red", "green", "blue", "black", "white", "stop", "go", "left", "right", "wait")


def text_samples(count: int, seed: int = 0) -> list[Sample]:
    """Questions with 2 to 5 candidates, two to a group, without answers."""
    rng = np.random.default_rng(seed)
    return [
        Sample(
            f"case {seed} {number}: what about {rng.integers(10**9)}?",
            tuple(rng.permutation(WORDS)[: 2 + number % 4].tolist()),
            source=("left", "right")[number % 2],
            group=f"{seed}-{number // 2}",
            id=str(number),
        )
        for number in range(count)
    ]


class Mimic(DecisionModel):
    """A model whose draft head says nearly what the full model says, at its own sharpness."""

    def draft_logits(self, batch: DecisionBatch) -> torch.Tensor:
        """The decision head's scores, disturbed by those of the draft head."""
        scores = self.score(self.fuse(batch), batch.texts, batch.candidates)
        return mask_logits(0.7 * scores + super().draft_logits(batch), batch.candidate_mask)


def sharpened(dataset: FeatureDataset, encoder) -> DecisionModel:
    """An untrained model whose scores are spread out as those of a trained one."""
    model = make_model(dataset, encoder)
    with torch.no_grad():
        model.head.log_temperature.fill_(-4.0)
        model.draft.candidate.weight.mul_(4.0)
    model.__class__ = Mimic
    return model


def answered(model: DecisionModel, dataset: FeatureDataset, seed: int = 0) -> FeatureDataset:
    """The dataset with answers drawn from the model's own probabilities at temperature 2."""
    found = predict(model, dataset, 32, CPU, ahead=0)
    probabilities = softmax(found.logits, found.mask, 2.0)
    rng = np.random.default_rng(seed)
    answer = [int(rng.choice(len(row), p=row)) for row in probabilities]
    samples = [
        dataclasses.replace(sample, answer=a)
        for sample, a in zip(dataset.samples, answer, strict=True)
    ]
    return dataclasses.replace(dataset, samples=samples, answer=torch.tensor(answer))


def index(samples: list[Sample], encoder) -> FeatureDataset:
    """The samples over features in memory."""
    return index_samples({"": samples}, MemoryStore(encoder, {}), encoder.spec)[""]


def small_bank(encoder, count: int = 3) -> TravellingBank:
    """All of `WORDS`, each near enough to every other."""
    values = encoder.encode_text(WORDS)["pooled"].values
    config = FoilsConfig(count=count, min_similarity=-1.0, max_similarity=0.99)
    return TravellingBank(config, WORDS, torch.from_numpy(values).half())


def loose(**changes) -> CalibrationConfig:
    """The default calibration with a gate that opens on little evidence."""
    config = CalibrationConfig()
    config.gate.max_disagreement = 0.2
    config.deliberation.passes = 4
    for name, value in changes.items():
        setattr(config, name, value)
    return config
