"""The model card that travels with a model, in the hub's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from arbiter.errors import RunError, first_line

_HERE = "path/to/this/folder"
_NAME = "Arbiter decision model"


def model_card(summary: dict, modalities: Sequence[str], test: dict | None) -> str:
    """A README from a run's figures; nothing in it that was not measured.

    Args:
        summary: contents of summary.json.
        modalities: of the model, by name.
        test: `overall` of the evaluation on the test split; None without one.
    """
    parts = (
        _about(summary, modalities),
        _sources(summary),
        _measured(summary),
        _trust(summary, test),
        _limits(summary),
    )
    lines = [line for part in parts for line in (*part, "")]
    return f"---\n{_metadata(summary, modalities).to_yaml()}\n---\n\n" + "\n".join(lines)


def addressed(card: str, repo_id: str) -> str:
    """The card of a model that lies in a repository of the hub."""
    return card.replace(f'Arbiter.load("{_HERE}")', f'Arbiter.load("{repo_id}")')


def with_metadata(card: str, further: dict[str, Any]) -> str:
    """The card with further fields in its metadata, e.g. `license`; an empty one has only these.

    Raises:
        RunError: the card's own metadata cannot be read, or the further ones not be written.
    """
    try:
        parsed = ModelCard(card)
        for key, value in further.items():
            setattr(parsed.data, key, value)
        return str(parsed)
    # TypeError: of keys that are no names, and of tags that are no list.
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise RunError(f"README.md: its metadata are not a model's ({first_line(error)})") from None


def _metadata(summary: dict, modalities: Sequence[str]) -> ModelCardData:
    """What the hub reads: tags, data sets, and the results that it lists."""
    sources = summary["sources"].items()
    repositories = sorted({repo for _, source in sources for repo in source["repositories"]})
    task = "visual-question-answering" if "image" in modalities else "question-answering"
    results = [
        EvalResult(
            task_type=task,
            dataset_type=(*summary["sources"][name]["repositories"], name)[0],
            dataset_name=name,
            dataset_split="test",
            metric_type=metric,
            metric_name=label,
            metric_value=round(part[metric], 4),
        )
        for name, part in summary["test"].items()
        for metric, label in (("accuracy", "Accuracy"), ("ece", "Expected calibration error"))
    ]
    return ModelCardData(
        library_name="arbiter",
        tags=["decision-model", "mixture-of-experts", *modalities],
        datasets=repositories or None,
        pipeline_tag=task,
        model_name=_NAME,
        eval_results=results or None,
    )


def _about(summary: dict, modalities: Sequence[str]) -> Iterator[str]:
    encoder = summary["encoder"]
    yield f"# {_NAME}"
    yield ""
    yield "Chooses among candidate answers to a question, and says how far to trust the choice."
    yield f"Reads {', '.join(modalities) or 'text only'}, beside question and candidates."
    yield (
        f"{summary['parameters']['trainable']:,} trained parameters, "
        f"{summary['parameters']['active_per_token']:,} of them used per token, over features of "
        f"the frozen encoder {encoder.get('model', encoder['name'])}."
    )
    if encoder["random_weights"]:
        yield ""
        yield "**The encoder has random weights, as asked for: it perceives nothing.**"
    yield ""
    yield "```python"
    yield "from arbiter import Arbiter"
    yield ""
    yield f'arbiter = Arbiter.load("{_HERE}")'
    given = ', image="x.png"' if "image" in modalities else ""
    yield f'decision = arbiter.decide("what is it?", ["one", "other"]{given})'
    yield "decision.choice, decision.probabilities, decision.prediction_set, decision.escalate"
    yield "```"


def _sources(summary: dict) -> Iterator[str]:
    yield "## Data"
    yield ""
    yield "| source | samples | trained on | licence |"
    yield "|---|---|---|---|"
    for name, source in summary["sources"].items():
        places = ", ".join(source["repositories"])
        yield (
            f"| {name}{f' ({places})' if places else ''} | {source['kept']:,} "
            f"| {source['splits'].get('train', 0):,} | {source['licence'] or 'unknown'} |"
        )
    carved = [
        f"{name} has no training split: what was trained on is carved from {source['carved_from']}."
        for name, source in summary["sources"].items()
        if source["carved_from"]
    ]
    yield from ["", *carved] if carved else ()
    yield ""
    yield "The licence of a source may bind what is trained on it; this card grants none."


def _measured(summary: dict) -> Iterator[str]:
    yield "## Measured"
    yield ""
    if not summary["test"]:
        yield "No test samples were held out."
    else:
        columns = ("test set", "n", "accuracy (95% interval)", "question only", "majority")
        yield f"| {' | '.join((*columns, 'random', 'NLL', 'ECE'))} |"
        yield "|---|---|---|---|---|---|---|---|"
    for source, part in summary["test"].items():
        low, high = part["accuracy_interval"]
        yield (
            f"| {source} | {part['n']:,} | {part['accuracy']:.2%} ({low:.2%} to {high:.2%}) "
            f"| {part['question_only_accuracy']:.2%} | {part['majority_accuracy']:.2%} "
            f"| {part['random_accuracy']:.2%} | {part['nll']:.4f} | {part['ece']:.4f} |"
        )
    yield ""
    yield (
        f"Selected on validation: accuracy {summary['validation']['accuracy']:.2%}, "
        f"epoch {summary['best_epoch']}."
    )


def _trust(summary: dict, test: dict | None) -> Iterator[str]:
    yield "## Calibration"
    yield ""
    fit = summary["calibration"]
    if fit is None:
        yield "Not calibrated: there were too few samples. Probabilities are scores as they come,"
        yield "there are no prediction sets, and every decision asks to be escalated."
        return
    yield (
        f"Temperature {fit['temperature']:.3f} was fitted on {fit['fit_samples']:,} samples, "
        f"prediction sets on {fit['set_samples']:,} others; none was trained or selected on."
    )
    for note in fit["notes"]:
        yield f"{note[0].upper()}{note[1:]}."
    gate = fit["gate"]
    yield f"Early exit: the gate is {'open' if gate['gate'] else 'shut'}; {gate['reason']}."
    if test is not None:
        yield from _trust_measured(test)


def _trust_measured(test: dict) -> Iterator[str]:
    """What calibration came to on the test set."""
    sets = [part for part in test["conformal"] if part["method"] == "lac"]
    if sets:
        yield ""
        yield "| sets (LAC) at level | coverage on the test set (95% interval) | mean size |"
        yield "|---|---|---|"
    for part in sets:
        low, high = part["coverage_interval"]
        level = f"{100 * (1 - part['alpha']):.12g}%"
        yield (
            f"| {level} | {part['coverage']:.2%} ({low:.2%} to {high:.2%}) "
            f"| {part['mean_set_size']:.2f} |"
        )
    yield "" if sets else "There are no prediction sets."
    found = test["exit"]
    if found is not None and found["agreement"] is not None:
        yield (
            f"On the test set {found['rate']:.1%} exit early and {found['agreement']:.2%} of them "
            f"agree with the full model; accuracy {found['accuracy_with']:.2%} with, "
            f"{found['accuracy_without']:.2%} without."
        )
    found = test["certified"]
    if found is not None:
        kinds = " and ".join(
            f"{found[f'{kind}_accuracy']:.2%} of {found[f'{kind}_n']:,} {kind}"
            for kind in ("certified", "uncertified")
            if found[f"{kind}_n"]
        )
        yield f"Deliberating (stability from {found['stability_from']:.2f}), right: {kinds}."
        if found["collisions"] is None:
            yield "No foils travel with it: it was trained without, so stability means passes only."


def _limits(summary: dict) -> Iterator[str]:
    yield "## Limits"
    yield ""
    yield "Probabilities and prediction sets hold for questions like those it was calibrated on. It"
    yield "has seen the sources above only; elsewhere, measure before you trust it."
    if summary["encoder"]["name"] == "raw":
        yield "The encoder `raw` knows neither language nor objects: it suits small closed worlds."
    yield ""
    yield (
        f"Code {summary['git_revision'] or 'unversioned'}, torch {summary['versions']['torch']}, "
        f"seed {summary['seed']}."
    )
