"""Whether a run goes on with the data that it began with."""

from __future__ import annotations

from arbiter.errors import RunError
from arbiter.features.content import dataset_digest
from arbiter.features.dataset import FeatureDataset

_SPLITS = ("train", "val")


def describe_data(
    train: FeatureDataset, val: FeatureDataset, features: str | None, steps_per_epoch: int
) -> dict:
    """What training depends on beside the configuration, as JSON for resume states.

    Args:
        train, val: the splits.
        features: the fingerprint of their features.
        steps_per_epoch: of training.
    """
    return {
        "train": {"samples": len(train), "digest": dataset_digest(train)},
        "val": {"samples": len(val), "digest": dataset_digest(val)},
        "features": features,
        "foils": None if train.foils is None else train.foils.digest,
        "steps_per_epoch": steps_per_epoch,
    }


def require_same_data(then: dict, now: dict) -> None:
    """Hold the data against those that a run began with.

    Raises:
        RunError: what differs.
    """
    splits = [
        f"{split} (then {then[split]['samples']} samples, now {now[split]['samples']})"
        for split in _SPLITS
        if then[split] != now[split]
    ]
    # In this order, as other samples bring other foils.
    if splits:
        changed, remedy = f"samples in {' and '.join(splits)}", "restore the data"
    elif then["features"] != now["features"]:
        changed, remedy = "features", "restore the encoder's weights and paths.features"
    elif then["foils"] != now["foils"]:
        changed, remedy = "foils", "restore objective.foils.vocabulary"
    elif then["steps_per_epoch"] != now["steps_per_epoch"]:
        changed, remedy = "steps per epoch", "restore the schedule"
    else:
        return
    raise RunError(f"resume: the run began with other {changed}; {remedy}, or start a new run")
