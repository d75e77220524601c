"""What early exit and deliberation are worth on samples that nothing was fitted on."""

from __future__ import annotations

import numpy as np

from arbiter.calibration.deliberation import CERTIFIED
from arbiter.calibration.deployed import Outcome
from arbiter.calibration.metrics import wilson_interval


def exit_figures(gated: Outcome, full: Outcome, answer: np.ndarray) -> dict:
    """Early exit against the full model on the same N samples.

    Args:
        gated, full: the two paths.
        answer: int [N].

    Returns:
        rate: share that exits; agreement: share of exits where both paths choose alike, None
        without exits; accuracy_with and accuracy_without early exit.
    """
    first, second = (o.probabilities.argmax(axis=-1) for o in (gated, full))
    out = gated.early_exit
    return {
        "rate": float(out.mean()),
        "agreement": float((first == second)[out].mean()) if out.any() else None,
        "accuracy_with": float((first == answer).mean()),
        "accuracy_without": float((second == answer).mean()),
    }


def certified_figures(deliberated: Outcome, answer: np.ndarray) -> dict:
    """What a certificate is worth: accuracy of certified against uncertified decisions.

    Returns:
        certified and uncertified, each with n, accuracy and accuracy_interval (95%, Wilson), the
        latter two None without samples; accuracy of all; mean_stability; collisions, the share of
        decisions that a foil comes up to, None without foils.
    """
    right = deliberated.probabilities.argmax(axis=-1) == answer
    certified = deliberated.stability >= CERTIFIED

    def part(rows: np.ndarray) -> dict:
        n, good = int(rows.sum()), int(right[rows].sum())
        return {
            "n": n,
            "accuracy": good / n if n else None,
            "accuracy_interval": list(wilson_interval(good, n)) if n else None,
        }

    collision = deliberated.collision
    return {
        "certified": part(certified),
        "uncertified": part(~certified),
        "accuracy": float(right.mean()),
        "mean_stability": float(deliberated.stability.mean()),
        "collisions": None if collision is None else float(collision.mean()),
    }
