"""Answer one question with a trained model; --help shows how."""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from arbiter.clips import load_audio, load_video
from arbiter.config import instantiate
from arbiter.console import console
from arbiter.engine import Arbiter, Decision
from experiments.app import quote_free_text, quote_text_lists, run_app
from experiments.schema import DecideConfig

FREE_TEXT = ("run", "question", "context", "image", "video", "audio")


def main(composed: DictConfig) -> None:
    """Load, decide, print."""
    config: DecideConfig = instantiate(composed)
    arbiter = Arbiter.load(config.run, config.device)
    video = config.frames
    if config.video is not None:
        video = load_video(Path(config.video), arbiter.max_frames)
    decision = arbiter.decide(
        config.question,
        config.candidates,
        context=config.context,
        image=config.image,
        images=config.images,
        video=video,
        audio=None if config.audio is None else load_audio(Path(config.audio)),
        alpha=config.alpha,
    )
    for line in lines(decision, config.candidates):
        console.print(line, markup=False, soft_wrap=True)


def lines(decision: Decision, candidates: list[str]) -> list[str]:
    """A decision for a person to read."""
    ranked = sorted(zip(decision.probabilities, candidates, strict=True), reverse=True)
    width = max(map(len, candidates))
    chosen = "none: the model is not calibrated"
    if decision.prediction_set is not None:
        chosen = f"{{{', '.join(decision.prediction_set)}}} at {decision.coverage:.0%} coverage"
    return [
        f"choice          {decision.choice}",
        *(f"  {name:<{width}}  {p:7.2%}" for p, name in ranked),
        f"prediction set  {chosen}",
        f"escalate        {'yes: ' + '; '.join(decision.reasons) if decision.escalate else 'no'}",
        f"entropy         {decision.entropy:.4f} nats",
        f"read            {', '.join(decision.modalities) or 'text only'}",
        f"time            {decision.seconds * 1000:.0f} ms",
    ]


if __name__ == "__main__":
    sys.argv[1:] = quote_text_lists(
        quote_free_text(sys.argv[1:], FREE_TEXT), ("candidates", "images", "frames")
    )
    run_app(main, "decide")
