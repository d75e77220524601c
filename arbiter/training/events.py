"""What a run says about itself: the figures of metrics.jsonl's 'step' and 'epoch' lines."""

from __future__ import annotations

import math

import numpy as np
import torch

from arbiter.calibration.metrics import entropy, negative_log_likelihood, summarize
from arbiter.features.dataset import FeatureDataset
from arbiter.hardware.telemetry import rss_mb, vram_mb
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import Predictions
from arbiter.training.totals import Totals

_TERMS = ("margin_loss", "foil_loss", "balance_loss", "draft_loss", "distillation_loss")


def finite(value: float | None) -> float | None:
    """JSON has no NaN: a mean that met one is null."""
    return value if value is not None and math.isfinite(value) else None


def step_figures(window: Totals, model: DecisionModel, device: torch.device) -> dict:
    """Means over the steps since the last such line, the experts' load, and memory.

    `expert_load` holds, layer by layer, the share of the last step's choices that each expert had.
    """
    loads = torch.stack([layer.moe.load for layer in model.layers]).cpu()
    load_entropy = float(-(loads * loads.clamp(min=1e-12).log()).sum(dim=-1).mean())
    return {
        **{name: finite(window.mean(name)) for name in window.terms},
        "train_acc": window.accuracy,
        "samples_per_sec": window.samples_per_sec,
        "data_wait_share": window.wait_seconds / window.seconds,
        "expert_load_entropy": load_entropy,
        "least_loaded_share": float(loads.min()),
        "expert_load": [[round(share, 4) for share in layer] for layer in loads.tolist()],
        "rss_mb": rss_mb(),
        "vram_mb": vram_mb(device),
    }


def validation_figures(predictions: Predictions, dataset: FeatureDataset) -> dict:
    """val_loss (nats), val_acc, both by source, mean entropy (nats), draft_acc."""
    probabilities = predictions.probabilities
    figures = summarize(probabilities, predictions.answer)
    right = probabilities.argmax(axis=-1) == predictions.answer
    sources = np.array([sample.source for sample in dataset.samples])
    rows_of = {source: sources == source for source in dict.fromkeys(sources.tolist())}
    draft_right = predictions.draft_logits.argmax(axis=-1) == predictions.answer
    return {
        "val_loss": figures["nll"],
        "val_loss_by_source": {
            source: negative_log_likelihood(probabilities[rows], predictions.answer[rows])
            for source, rows in rows_of.items()
        },
        "val_acc": figures["accuracy"],
        "val_acc_by_source": {
            source: float(right[rows].mean()) for source, rows in rows_of.items()
        },
        "entropy": float(entropy(probabilities).mean()),
        "draft_acc": float(draft_right.mean()),
    }


def epoch_figures(totals: Totals, train_seconds: float, device: torch.device) -> dict:
    """Means over the epoch's steps, its speed, and memory; a term that is off is null."""
    return {
        "train_loss": finite(totals.mean("cross_entropy")),
        "train_acc": totals.accuracy,
        **{name: finite(totals.mean(name)) for name in _TERMS},
        "samples_per_sec": totals.questions / train_seconds,
        "train_seconds": train_seconds,
        "rss_mb": rss_mb(),
        "vram_mb": vram_mb(device),
    }
