"""Answer questions with a trained model, one or a file of them; --help shows how."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from arbiter.config import instantiate
from arbiter.console import say
from arbiter.decision import Decision
from arbiter.engine import Arbiter
from experiments.app import quote_free_text, quote_text_lists, run_app
from experiments.decide_lines import decide_lines
from experiments.schema import DecideConfig

FREE_TEXT = (
    "run", "revision", "input", "output", "question", "context", "image", "video", "audio",
)  # fmt: skip


def main(composed: DictConfig) -> None:
    """Load, decide, print."""
    config: DecideConfig = instantiate(composed)
    arbiter = Arbiter.load(config.run, config.device, revision=config.revision)
    if config.target_risk is not None:
        arbiter.set_target_risk(config.target_risk)
    names = ("alpha", "method", "per_source", "early_exit", "deliberate")
    options = {name: getattr(config, name) for name in names}
    options["escalation"] = config.escalation.given()
    if config.input is not None:
        print(decide_lines(arbiter, config, options), file=sys.stderr)
        return
    decision = arbiter.decide(
        config.question,
        config.candidates,
        context=config.context,
        image=config.image,
        images=config.images,
        video=config.frames if config.video is None else config.video,
        audio=config.audio,
        source=config.source,
        **options,
    )
    for line in lines(decision, config.candidates):
        say(line)


def lines(decision: Decision, candidates: list[str]) -> list[str]:
    """A decision for a person to read."""
    ranked = sorted(zip(decision.probabilities, candidates, strict=True), reverse=True)
    width = max(map(len, candidates))
    chosen = "none: the model is not calibrated"
    if decision.prediction_set is not None:
        level = f"{100 * decision.level:.12g}%"
        chosen = f"{{{', '.join(decision.prediction_set)}}} at {level} coverage"
    reasons = "; ".join(reason.text for reason in decision.reasons)
    printed = [
        f"choice          {decision.choice}",
        *(f"  {name:<{width}}  {p:7.2%}" for p, name in ranked),
        f"prediction set  {chosen}",
        f"escalate        {'yes: ' + reasons if decision.escalate else 'no'}",
        f"entropy         {decision.entropy:.4f} nats",
        f"early exit      {'yes: the draft head answered' if decision.early_exit else 'no'}",
    ]
    if decision.stability is not None:
        mark = "certified" if decision.certified else "not certified"
        printed.append(f"stability       {decision.stability:.2f}, {mark}")
    printed += [f"note            {note}" for note in decision.notes]
    return [
        *printed,
        f"read            {', '.join(decision.modalities) or 'text only'}",
        f"time            {decision.timings.seconds * 1000:.0f} ms",
    ]


if __name__ == "__main__":
    sys.argv[1:] = quote_text_lists(
        quote_free_text(sys.argv[1:], FREE_TEXT), ("candidates", "images", "frames")
    )
    run_app(main, "decide")
