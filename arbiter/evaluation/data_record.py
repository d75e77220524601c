"""What a run remembers of its data, so that it can be evaluated later without reading them again.

Lies in the run directory, not in the model: it names training questions and answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from arbiter.errors import RunError
from arbiter.evaluation.majority import MajorityBaseline
from arbiter.features.content import sample_digests
from arbiter.features.dataset import FeatureDataset
from arbiter.files import write_json_atomic, write_tensors

ANSWERS, SAMPLES = "training_answers.json", "samples.safetensors"
USED = ("train", "val", "calibration")


@dataclass(frozen=True)
class DataRecord:
    """The record.

    Attributes:
        majority: the frequency baseline of the training answers.
        digests: split -> int64, ascending: the first 8 bytes of each sample's digest.
    """

    majority: MajorityBaseline
    digests: Mapping[str, np.ndarray]

    def used(self, dataset: FeatureDataset) -> dict[str, int]:
        """How many of these samples the run has used, by what for; content decides, not names."""
        found = _digests(dataset)
        return {split: int(np.isin(found, known).sum()) for split, known in self.digests.items()}


def _digests(dataset: FeatureDataset) -> np.ndarray:
    first = b"".join(digest[:8] for digest in sample_digests(dataset))
    return np.frombuffer(first, "<i8")


def write_record(run: Path, data: Mapping[str, FeatureDataset]) -> DataRecord:
    """Write down the splits of a run, of which `USED` count as used."""
    record = DataRecord(
        MajorityBaseline(data["train"].samples),
        {split: np.unique(_digests(data[split])) for split in USED},
    )
    write_json_atomic(run / ANSWERS, record.majority.to_dict())
    write_tensors(save_file, dict(record.digests), run / SAMPLES)
    return record


def read_record(run: Path) -> DataRecord | None:
    """What `write_record` wrote; None where a run has none.

    Raises:
        RunError: a file is damaged.
    """
    if not (run / ANSWERS).is_file() or not (run / SAMPLES).is_file():
        return None
    try:
        answers = json.loads((run / ANSWERS).read_text(encoding="utf-8"))
        majority = MajorityBaseline.from_dict(answers)
        digests = load_file(run / SAMPLES)
        return DataRecord(majority, {split: digests[split] for split in USED})
    except (ValueError, TypeError, KeyError, AttributeError, SafetensorError) as error:
        raise RunError(
            f"{run}: {ANSWERS} or {SAMPLES} is damaged ({type(error).__name__}); remove both to "
            "evaluate without the majority baseline"
        ) from None
