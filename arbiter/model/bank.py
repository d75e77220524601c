"""The foil bank that travels with a model, so that deliberation has near wrong answers to try."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from arbiter import media
from arbiter.config import from_dict
from arbiter.features.table import FeatureTable
from arbiter.files import write_json_atomic, write_tensors
from arbiter.foils import FoilBank, FoilsConfig

TEXTS, FEATURES = "foils.json", "foils.safetensors"


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
        count=config.count,
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


def load_bank(directory: Path, dim: int) -> FoilBank | None:
    """What `save_bank` wrote; None where there is none.

    Args:
        dim: of text features.

    Raises:
        ValueError, KeyError, ConfigError: the files are not of this form.
    """
    if not (directory / TEXTS).is_file():
        return None
    values = json.loads((directory / TEXTS).read_text(encoding="utf-8"))
    texts = values.pop("texts")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{TEXTS}: texts must be a list of texts")
    features = load_file(directory / FEATURES)["features"]
    if features.shape != (len(texts), dim) or features.dtype != torch.float16:
        raise ValueError(f"{FEATURES}: features must be float16 [{len(texts)}, {dim}]")
    if not texts or not bool(features.isfinite().all()):
        raise ValueError(f"{FEATURES}: features must be finite, and of at least one text")
    return FoilBank.of(from_dict(FoilsConfig, values), texts, features)
