"""What a run says about itself: the figures of metrics.jsonl's 'step' and 'epoch' lines."""

from __future__ import annotations

import logging
import math

import torch

from arbiter.hardware.telemetry import rss_mb, temperature_figures, vram_mb
from arbiter.model.decision_model import DecisionModel
from arbiter.training.objective import TERMS
from arbiter.training.totals import Totals

log = logging.getLogger(__name__)


def finite(value: float | None) -> float | None:
    """JSON has no NaN: a mean that met one is null."""
    return value if value is not None and math.isfinite(value) else None


def step_figures(window: Totals, model: DecisionModel, device: torch.device) -> dict:
    """Means over the steps since the last such line, the experts' load, and memory."""
    loads = torch.stack([layer.moe.load for layer in model.layers]).cpu()
    load_entropy = float(-(loads * loads.clamp(min=1e-12).log()).sum(dim=-1).mean())
    return {
        **{name: finite(window.mean(name)) for name in window.terms},
        "train_acc": window.accuracy,
        "samples_per_sec": window.samples_per_sec,
        "data_wait_share": window.wait_seconds / window.seconds,
        "expert_load_entropy": load_entropy,
        "least_loaded_share": float(loads.min()),
        "rss_mb": rss_mb(),
        "vram_mb": vram_mb(device),
        **temperature_figures(device),
    }


def epoch_figures(totals: Totals, train_seconds: float, device: torch.device) -> dict:
    """Means over the epoch's steps, its speed, and memory; a term that is off is null."""
    return {
        "train_loss": finite(totals.mean("cross_entropy")),
        "train_acc": totals.accuracy,
        **{name: finite(totals.mean(name)) for name in TERMS[1:]},
        "samples_per_sec": totals.questions / train_seconds,
        "train_seconds": train_seconds,
        "rss_mb": rss_mb(),
        "vram_mb": vram_mb(device),
    }


def log_epoch(event: dict, epochs: int) -> None:
    """One line for people about an 'epoch' event."""
    log.info(
        "epoch %d/%d  train loss %s acc %.4f  val loss %.4f acc %.4f  draft %.4f  %.0f samples/s",
        event["epoch"], epochs, _four_places(event["train_loss"]), event["train_acc"],
        event["val_loss"], event["val_acc"], event["draft_acc"], event["samples_per_sec"],
    )  # fmt: skip


def _four_places(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"
