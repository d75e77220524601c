"""What a run says about itself: the figures of metrics.jsonl's 'step' and 'epoch' lines."""

from __future__ import annotations

import logging

import torch

from arbiter.hardware.telemetry import rss_mb, temperature_figures, vram_mb
from arbiter.model.decision_model import DecisionModel
from arbiter.training.objective import TERMS
from arbiter.training.totals import Totals

log = logging.getLogger(__name__)


def step_figures(window: Totals, model: DecisionModel, device: torch.device) -> dict:
    """Means over the steps taken since the last such line, the experts' load, and memory.

    A mean of none is null.
    `expert_load` holds, layer by layer, the share of the last step's choices that each expert had.
    """
    loads = torch.stack([layer.moe.load for layer in model.layers]).cpu()
    load_entropy = float(-(loads * loads.clamp(min=1e-12).log()).sum(dim=-1).mean())
    return {
        **{name: window.mean(name) for name in window.terms},
        "train_acc": window.accuracy,
        "samples_per_sec": window.samples_per_sec,
        "data_wait_share": window.wait_share,
        "expert_load_entropy": load_entropy,
        "least_loaded_share": float(loads.min()),
        "expert_load": [[round(share, 4) for share in layer] for layer in loads.tolist()],
        "rss_mb": rss_mb(),
        "vram_mb": vram_mb(device),
        **temperature_figures(device),
    }


def epoch_figures(totals: Totals, device: torch.device) -> dict:
    """Means over the epoch's steps taken, its speed, and memory; a term that is off is null."""
    return {
        "train_loss": totals.mean("cross_entropy"),
        "train_acc": totals.accuracy,
        **{name: totals.mean(name) for name in TERMS[1:]},
        "samples_per_sec": totals.samples_per_sec,
        "train_seconds": totals.seconds,
        "rss_mb": rss_mb(),
        "vram_mb": vram_mb(device),
    }


def log_epoch(event: dict, epochs: int) -> None:
    """One line for people about an 'epoch' event."""
    log.info(
        "epoch %d/%d  train loss %s acc %s  val loss %.4f acc %.4f  draft %.4f  %.0f samples/s",
        event["epoch"], epochs, _four_places(event["train_loss"]),
        _four_places(event["train_acc"]), event["val_loss"], event["val_acc"],
        event["draft_acc"], event["samples_per_sec"],
    )  # fmt: skip


def _four_places(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
