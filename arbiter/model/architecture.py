"""What a decision model is: its size and kind, and what it reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arbiter.config import option
from arbiter.encoders.base import FeatureSpec
from arbiter.errors import ConfigError
from arbiter.features.batch import media_specs
from arbiter.model.moe import MoEConfig
from arbiter.sample import Modality, Sample

CONTEXT = "context"
PATCHES = "patches"
MODALITY_OF = {
    "image": Modality.IMAGE,
    PATCHES: Modality.IMAGE,
    "video": Modality.VIDEO,
    "audio": Modality.AUDIO,
}


@dataclass
class ArchitectureConfig:
    """Size and kind of the fusion model."""

    hidden_dim: int = option(128, help="Width of every token.", low=8, high=65536)
    num_heads: int = option(4, help="Attention heads; must divide hidden_dim.", low=1)
    num_layers: int = option(3, help="Fusion layers.", low=1, high=512)
    attention: str = option(
        "prefix",
        help="prefix: questions about one image share its tokens; full: all tokens see all tokens; "
        "perceiver: as prefix, but questions see num_latents latents in the media's place.",
        choices=("prefix", "full", "perceiver"),
    )
    num_latents: int = option(32, help="Latents that read the media; for perceiver only.", low=1)
    dropout: float = option(0.0, help="Dropout of residual branches and heads.", low=0, below=1)
    scoring_dim: int = option(128, help="Width of the decision head.", low=8, high=65536)
    draft_dim: int = option(64, help="Width of the draft head.", low=8, high=65536)
    moe: MoEConfig = option(MoEConfig(), help="Mixture of experts.")

    def check(self) -> None:
        """Heads share the width evenly."""
        if self.hidden_dim % self.num_heads:
            divisors = [n for n in range(1, 33) if self.hidden_dim % n == 0]
            raise ConfigError(
                "num_heads",
                self.num_heads,
                f"must divide hidden_dim {self.hidden_dim}, as {', '.join(map(str, divisors))} do",
            )


def inputs_for(samples: Iterable[Sample], spec: FeatureSpec) -> tuple[str, ...]:
    """The inputs that a model of these samples needs, in the model's order."""
    return inputs_of(frozenset().union(*(sample.modalities for sample in samples)), spec)


def inputs_of(present: frozenset[Modality], spec: FeatureSpec) -> tuple[str, ...]:
    """The inputs that a model of these modalities needs, in the model's order."""
    kinds = [kind for kind in media_specs(spec) if MODALITY_OF[kind] in present]
    return (*([CONTEXT] if Modality.CONTEXT in present else []), *kinds)
