"""The test split through every path that can be deployed, once, after everything is settled."""

from __future__ import annotations

import time

from arbiter.calibration.deployed import DELIBERATED, FULL, GATED, Deployed, Outcome
from arbiter.calibration.held_out import certified_figures, exit_figures
from arbiter.features.dataset import FeatureDataset


def score_test(deployed: Deployed, test: FeatureDataset) -> tuple[Outcome, Outcome, dict]:
    """Answer a test split whose answers are known.

    Returns:
        The default path's outcome; the full model's without media; and figures: `exit` (see
        `exit_figures`, with seconds per question either way, features aside), `deliberation` (see
        `certified_figures`; None without deliberation).
    """
    answer = test.answer.numpy()
    blind = deployed.run(test, FULL, with_media=False)
    seconds, outcomes = {}, {}
    for path in (GATED, FULL):
        started = time.perf_counter()
        outcomes[path] = deployed.run(test, path)
        seconds[path] = (time.perf_counter() - started) / len(test)
    figures = {
        "exit": {
            **exit_figures(outcomes[GATED], outcomes[FULL], answer),
            "seconds_with": seconds[GATED],
            "seconds_without": seconds[FULL],
        },
        "deliberation": None,
    }
    if deployed.fitted.deliberated_temperature is not None:
        figures["deliberation"] = certified_figures(deployed.run(test, DELIBERATED), answer)
    return outcomes[GATED], blind, figures


def held_out_lines(figures: dict) -> list[str]:
    """The figures of `score_test` for a terminal."""
    early, thought = figures["exit"], figures["deliberation"]
    agreement = "" if early["agreement"] is None else f", agreement {early['agreement']:.2%}"
    lines = [
        f"early exit: {early['rate']:.1%} of questions{agreement}; accuracy "
        f"{early['accuracy_with']:.2%} with, {early['accuracy_without']:.2%} without; "
        f"{early['seconds_with'] * 1e3:.3f} ms a question with, "
        f"{early['seconds_without'] * 1e3:.3f} without"
    ]
    if thought is not None:
        parts = [
            f"{name} {part['n']}"
            + ("" if part["accuracy"] is None else f" (accuracy {part['accuracy']:.2%})")
            for name, part in ((name, thought[name]) for name in ("certified", "uncertified"))
        ]
        lines.append(f"deliberation: {', '.join(parts)}; accuracy {thought['accuracy']:.2%}")
    return lines
