"""How a model does on the validation split."""

from __future__ import annotations

import numpy as np
import torch

from arbiter.calibration.metrics import entropy, summarize
from arbiter.errors import RunError
from arbiter.features.dataset import FeatureDataset
from arbiter.hardware.device import HardwareConfig, batches_ahead
from arbiter.hardware.distributed import Ranks
from arbiter.hardware.memory import OutOfMemory, noticing_out_of_memory
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import Predictions, predict


def validate(
    model: DecisionModel,
    dataset: FeatureDataset,
    hardware: HardwareConfig,
    device: torch.device,
    remedy: str,
    ranks: Ranks,
) -> dict:
    """`validation_figures` of the model, as it is.

    Args:
        remedy: when, and what to do, if its scores are not finite.
        ranks: the processes that share the work; all get all figures.

    Raises:
        RunError: they are not, or there is not enough memory.
    """
    ahead = batches_ahead(hardware, device)
    size = hardware.eval_batch_size
    try:
        with noticing_out_of_memory():
            predictions = predict(model, dataset, size, device, ahead, ranks=ranks)
    except OutOfMemory as error:
        raise RunError(
            f"validation: out of memory with batches of {size} ({error}); go on with "
            f"resume=<this run> hardware.eval_batch_size={max(1, size // 4)}"
        ) from None
    if not np.isfinite(predictions.logits).all():
        raise RunError(f"training: the model's scores are not finite {remedy}")
    return validation_figures(predictions, dataset)


def validation_figures(predictions: Predictions, dataset: FeatureDataset) -> dict:
    """val_loss (nats), val_acc, the same accuracy by source, mean entropy (nats), draft_acc."""
    probabilities = predictions.probabilities
    figures = summarize(probabilities, predictions.answer)
    right = probabilities.argmax(axis=-1) == predictions.answer
    sources = np.array([sample.source for sample in dataset.samples])
    draft_right = predictions.draft_logits.argmax(axis=-1) == predictions.answer
    return {
        "val_loss": figures["nll"],
        "val_acc": figures["accuracy"],
        "val_acc_by_source": {
            source: float(right[sources == source].mean())
            for source in dict.fromkeys(sources.tolist())
        },
        "entropy": float(entropy(probabilities).mean()),
        "draft_acc": float(draft_right.mean()),
    }
