"""The model card that travels with a model."""

from __future__ import annotations

from collections.abc import Sequence


def model_card(summary: dict, inputs: Sequence[str]) -> str:
    """A README in the hub's form, from a run's summary; nothing in it that was not measured."""
    lines = [
        "---",
        "library_name: arbiter",
        "tags: [decision-model, visual-question-answering]",
        "---",
        "",
        "# Arbiter decision model",
        "",
        f"Chooses among candidate answers to a question; reads {', '.join(inputs) or 'text only'}.",
        f"{summary['parameters']['trainable']:,} trained parameters, "
        f"{summary['parameters']['active_per_token']:,} of them used per token.",
        "",
        "```python",
        "from arbiter import Arbiter",
        "",
        'arbiter = Arbiter.load("path/to/this/folder")',
        'decision = arbiter.decide("what is it?", ["one", "other"], image="x.png")',
        "```",
        "",
        "## Measured",
        "",
        "| test set | n | accuracy (95% interval) | question only | majority | random | ECE |",
        "|---|---|---|---|---|---|---|",
    ]
    for source, part in summary["test"].items():
        low, high = part["accuracy_interval"]
        lines.append(
            f"| {source} | {part['n']} | {part['accuracy']:.2%} ({low:.2%} to {high:.2%}) "
            f"| {part['question_only_accuracy']:.2%} | {part['majority_accuracy']:.2%} "
            f"| {part['random_accuracy']:.2%} | {part['ece']:.4f} |"
        )
    if summary["encoder"]["random_weights"]:
        lines += ["", "**The encoder has random weights, as asked for: it perceives nothing.**"]
    lines += [
        "",
        f"Selected on validation (accuracy {summary['validation']['accuracy']:.2%}, epoch "
        f"{summary['best_epoch']}). Temperature {summary['calibration']['temperature']:.3f} and "
        f"conformal scores fitted on {summary['calibration']['samples']} samples apart.",
        "",
        "## Limits",
        "",
        "Probabilities and prediction sets hold for questions like those it was calibrated on. It "
        "has seen the sources above only; elsewhere, measure before you trust it.",
        "",
        f"Code {summary['git_revision'] or 'unversioned'}, torch {summary['versions']['torch']}, "
        f"seed {summary['seed']}.",
        "",
    ]
    return "\n".join(lines)
