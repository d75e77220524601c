"""An evaluation as the file that reports read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arbiter.evaluation.data_record import DataRecord
from arbiter.evaluation.figures import ALPHAS, Evidence, evaluate
from arbiter.features.dataset import FeatureDataset
from arbiter.files import write_json_atomic

FOLDER = "evaluation"
RESERVED = ("test", "gallery")
"""Files in that folder that training writes."""

_PURPOSES = {"train": "trained on", "val": "selected by", "calibration": "calibrated on"}


def document(
    evidence: Evidence,
    data: FeatureDataset,
    record: DataRecord | None,
    *,
    run: Path,
    dataset: str,
    split: str,
    alphas: Sequence[float] = ALPHAS,
    notes: Sequence[str] = (),
) -> dict:
    """All figures, with what they are of and what a reader must know beside.

    Args:
        evidence: of the samples of `data`.
        record: what the run has used, to tell whether these samples are held out; None if that is
            not known.
        run, dataset, split: names.
        notes: further lines for the reader.
    """
    used = None if record is None else {s: n for s, n in record.used(data).items() if n}
    lines = [
        f"NOT HELD OUT: the run was {_PURPOSES[split]} {count} of these {len(data)} samples"
        for split, count in (used or {}).items()
    ]
    if record is None:
        lines.append(
            "the run has no record of its data: no majority baseline, and no telling whether these "
            "samples are held out"
        )
    if evidence.sets is None:
        lines.append("the model is not calibrated: no prediction sets, probabilities as they come")
    else:
        lines += evidence.sets.notes(alphas)
    return {
        "run": str(run),
        "dataset": dataset,
        "split": split,
        "alphas": list(alphas),
        "held_out": None if used is None else not used,
        "used": used,
        "notes": [*lines, *notes],
        **evaluate(evidence, alphas, held_out=used == {}),
    }


def write_document(run: Path, name: str, values: dict) -> Path:
    """Write <run>/evaluation/<name>.json, and give its path."""
    path = run / FOLDER / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_json_atomic(path, values)
    return path
