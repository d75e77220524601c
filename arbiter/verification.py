"""A finished model seen from outside: loaded again, it decides a few questions for a person.

Two are scenarios in words, unlike what it was trained on: what matters there is that it does not
claim to be sure. The others are held-out samples with known answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from arbiter.decision import Decision
from arbiter.encoders.base import Encoder
from arbiter.engine import Arbiter
from arbiter.errors import ArbiterError, first_line
from arbiter.features.deployed_store import DeployedStore
from arbiter.features.store import FeatureStore
from arbiter.model.files import load_model, to_device
from arbiter.sample import Sample

_ALPHA = 0.05
_HELD_OUT = 2
_SCENARIOS = (
    Sample(
        question="What should the robot do next?",
        candidates=("stop and wait", "drive on", "put the load down"),
        context="A person steps into the aisle in front of the loaded robot.",
        id="scenario 1",
    ),
    Sample(
        question="Which step comes first?",
        candidates=("open the valve", "check the pressure", "start the pump", "call the operator"),
        context="The pump is off. The manual asks for a pressure check before any valve is moved.",
        id="scenario 2",
    ),
)


def verify(
    directory: Path,
    encoder: Encoder,
    features: Path,
    device: torch.device,
    held_out: Sequence[Sample],
) -> Iterator[str]:
    """Load a model again, and decide two scenarios and two samples with deliberation: log lines.

    Args:
        directory: of the saved model.
        encoder: the one that the model was trained with, which is used again.
        features: the feature store's folder; what it holds is not encoded again.
        device: where the model runs.
        held_out: samples that the model has not seen.
    """
    loaded = load_model(directory, encoder=encoder)
    store = DeployedStore(FeatureStore(features, encoder), loaded.codecs)
    arbiter = Arbiter(to_device(loaded, device), store)
    knows_context = "context" in loaded.model.inputs
    scenarios = [s if knows_context else dataclasses.replace(s, context=None) for s in _SCENARIOS]
    places = sorted({0, len(held_out) // 2})[: min(_HELD_OUT, len(held_out))]
    yield from _decided(arbiter, scenarios, "scenario, not like its training data")
    yield from _decided(arbiter, [held_out[place] for place in places], "held out")
    if not places:
        yield "verification: there are no held-out samples to decide"


def _decided(arbiter: Arbiter, samples: Sequence[Sample], kind: str) -> Iterator[str]:
    """Eight lines for each sample, or two for one that cannot be decided.

    Training on stored features needs no encoder, but a new text does: its weights may be missing.
    """
    found = arbiter.decide_batch(
        samples, errors="return", alpha=_ALPHA, deliberate=arbiter.can_deliberate
    )
    for sample, decision in zip(samples, found, strict=True):
        name = f"{sample.source} {sample.id}".strip()
        read = ", ".join(sorted(m.value for m in sample.modalities)) or "text only"
        yield f"{name} ({kind}; {read}): {sample.question}"
        if isinstance(decision, ArbiterError):
            yield f"  not decided     {first_line(decision)}"
        else:
            yield from _lines(sample, decision)


def _lines(sample: Sample, decision: Decision) -> Iterator[str]:
    right = ""
    if sample.answer is not None:
        answer = sample.candidates[sample.answer]
        right = " (right)" if answer == decision.choice else f" (wrong: {answer})"
    yield f"  decision        {decision.choice}{right}"
    yield f"  confidence      {max(decision.probabilities):.2%}"
    yield f"  entropy         {decision.entropy:.4f} nats"
    yield f"  early exit      {'yes' if decision.early_exit else 'no'}"
    chosen = "none: the model is not calibrated"
    if decision.prediction_set is not None:
        chosen = f"{{{', '.join(decision.prediction_set)}}}"
    yield f"  {1 - _ALPHA:.0%} set         {chosen}"
    stability = "none: the model was not calibrated for deliberation"
    if decision.stability is not None:
        mark = "certified" if decision.certified else "not certified"
        stability = f"{decision.stability:.2f}, {mark}"
    yield f"  stability       {stability}"
    reasons = "; ".join(reason.text for reason in decision.reasons)
    yield f"  escalation      {'yes: ' + reasons if decision.escalate else 'no'}"
