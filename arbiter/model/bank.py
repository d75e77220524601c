"""The foils that travel with a model, so that deliberation has near wrong answers to try."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from arbiter import media
from arbiter.config import from_dict
from arbiter.errors import RunError
from arbiter.features.table import FeatureTable
from arbiter.files import write_json_atomic, write_tensors
from arbiter.foils import FoilsConfig, normalise
from arbiter.model.weights import Expected, read_tensors
from arbiter.strict_json import read_json

TEXTS, FEATURES = "foils.json", "foils.safetensors"

_TEXTS_BYTES = 1 << 24
_DECIMALS = 9


class TravellingBank:
    """N texts with their features, searched exactly; what is found depends on the query alone.

    Args:
        config: band and count.
        texts: distinct after normalisation, the most important first.
        features: pooled text features, float16 [N, D].
    """

    def __init__(self, config: FoilsConfig, texts: Sequence[str], features: torch.Tensor):
        self.config, self.texts, self.half = config, list(texts), features
        self._places = {normalise(text): place for place, text in enumerate(self.texts)}

    def __len__(self) -> int:
        return len(self.texts)

    def features(self, places: torch.Tensor) -> torch.Tensor:
        """The features of some of the texts, float32 [M, D]."""
        return self.half[places].float()

    @cached_property
    def _directions(self) -> torch.Tensor:
        return F.normalize(self.half.double(), dim=-1)

    def near(self, features: torch.Tensor, candidates: Sequence[Sequence[str]]) -> torch.Tensor:
        """The foils of M answers: the most similar texts in the band that are no candidates.

        Args:
            features: float32 [M, D], of the answers.
            candidates: of each decision; the answer is one of them.

        Returns:
            int64 [M, count], places in the bank, the most similar first, ties in the bank's order;
            -1 where there is none.
        """
        similar = F.normalize(features.double(), dim=-1) @ self._directions.T
        # Rounded, since the last digits depend on how many answers are looked up together.
        similar = similar.round(decimals=_DECIMALS)
        low, high = self.config.min_similarity, self.config.max_similarity
        similar.masked_fill_((similar < low) | (similar > high), -torch.inf)
        for row, texts in enumerate(candidates):
            own = {self._places.get(normalise(text), -1) for text in texts} - {-1}
            similar[row, sorted(own)] = -torch.inf
        values, places = similar.sort(dim=-1, descending=True, stable=True)
        count = self.config.count
        return torch.where(values.isfinite(), places, -1)[:, :count]


def travelling_bank(
    config: FoilsConfig, texts: Sequence[str], table: FeatureTable, capacity: int
) -> TravellingBank | None:
    """The first `capacity` texts with float16 features, exactly as they are saved.

    Args:
        texts: the most important first; all in the table.
        table: text features.

    Returns:
        None without texts.
    """
    kept = list(texts[:capacity])
    if not kept:
        return None
    rows = table.index([media.text_key(text) for text in kept])
    features, _ = table.streams["pooled"].gather(rows)
    # What the search needs, and nothing that belongs to the machine, such as the vocabulary's path.
    carried = FoilsConfig(
        count=min(config.count, len(kept)),
        min_similarity=config.min_similarity,
        max_similarity=config.max_similarity,
    )
    return TravellingBank(carried, kept, features.half())


def save_bank(directory: Path, bank: TravellingBank) -> None:
    """Write texts and band as JSON, and features float16 [N, D] as safetensors."""
    config = bank.config
    values = {
        "count": config.count,
        "min_similarity": config.min_similarity,
        "max_similarity": config.max_similarity,
        "texts": bank.texts,
    }
    write_json_atomic(directory / TEXTS, values)
    write_tensors(save_file, {"features": bank.half}, directory / FEATURES)


def load_bank(directory: Path, dim: int) -> TravellingBank:
    """What `save_bank` wrote; the files may come from a stranger.

    Args:
        dim: of text features.

    Raises:
        RunError, ConfigError: the files are not of this form.
    """
    try:
        values = read_json(directory / TEXTS, _TEXTS_BYTES)
    except ValueError as error:
        raise RunError(f"{TEXTS}: {error}") from None
    texts = values.pop("texts", None) if isinstance(values, dict) else None
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise RunError(f"{TEXTS}: texts must be a list of texts")
    expected = {"features": Expected((len(texts), dim), torch.float16)}
    features = read_tensors(directory / FEATURES, expected)["features"]
    config = from_dict(FoilsConfig, values)
    if config.count > len(texts):
        raise RunError(f"{TEXTS}: count is {config.count}, more than its {len(texts)} texts")
    return TravellingBank(config, texts, features)
