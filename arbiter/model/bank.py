"""The foil bank that travels with a model, so that deliberation has near wrong answers to try."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from arbiter import media
from arbiter.config import from_dict
from arbiter.errors import RunError
from arbiter.features.table import FeatureTable
from arbiter.files import write_json_atomic, write_tensors
from arbiter.foils import FoilBank, FoilsConfig
from arbiter.model.weights import Expected, read_tensors
from arbiter.strict_json import read_json

TEXTS, FEATURES = "foils.json", "foils.safetensors"

_TEXTS_BYTES = 1 << 24


def travelling_bank(
    config: FoilsConfig, texts: Sequence[str], table: FeatureTable, capacity: int
) -> FoilBank | None:
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
    return FoilBank.of(carried, kept, features.half())


def save_bank(directory: Path, bank: FoilBank) -> None:
    """Write texts and band as JSON, and features float16 [N, D] as safetensors."""
    band = {
        name: value
        for name, value in dataclasses.asdict(bank.config).items()
        if name in ("count", "min_similarity", "max_similarity")
    }
    write_json_atomic(directory / TEXTS, {**band, "texts": bank.texts})
    features = bank.features(torch.arange(len(bank))).half()
    write_tensors(save_file, {"features": features}, directory / FEATURES)


def load_bank(directory: Path, dim: int) -> FoilBank:
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
    return FoilBank.of(config, texts, features)
