"""Writes small data sets to disk in the layouts that the hub has, with real parquet files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

_TEXT = datasets.Value("string")
_INT = datasets.Value("int64")
_IMAGE = datasets.Image()

SCIENCEQA = datasets.Features(
    {
        "image": _IMAGE,
        "question": _TEXT,
        "choices": datasets.Sequence(_TEXT),
        "answer": datasets.Value("int8"),
        "hint": _TEXT,
        "task": _TEXT,
        "grade": _TEXT,
        "subject": _TEXT,
        "topic": _TEXT,
        "category": _TEXT,
        "skill": _TEXT,
        "lecture": _TEXT,
        "solution": _TEXT,
    }
)
AI2D = datasets.Features(
    {"question": _TEXT, "options": datasets.Sequence(_TEXT), "answer": _TEXT, "image": _IMAGE}
)
CAULDRON = datasets.Features(
    {
        "images": datasets.Sequence(_IMAGE),
        "texts": [{"user": _TEXT, "assistant": _TEXT, "source": _TEXT}],
    }
)
GQA_INSTRUCTIONS = datasets.Features(
    {
        "id": _TEXT,
        "imageId": _TEXT,
        "question": _TEXT,
        "answer": _TEXT,
        "fullAnswer": _TEXT,
        "isBalanced": datasets.Value("bool"),
        "types": {"structural": _TEXT, "semantic": _TEXT, "detailed": _TEXT},
    }
)
GQA_IMAGES = datasets.Features({"id": _TEXT, "image": _IMAGE})
SEED = datasets.Features(
    {
        "answer": _TEXT,
        "choice_a": _TEXT,
        "choice_b": _TEXT,
        "choice_c": _TEXT,
        "choice_d": _TEXT,
        "data_type": _TEXT,
        "question_id": _TEXT,
        "question_type_id": _INT,
        "question": _TEXT,
        "image": datasets.Sequence(_IMAGE),
    }
)


def picture(number: int, size: int = 24, format: str = "PNG") -> bytes:
    """An encoded picture of noise; the same number gives the same pixels."""
    pixels = np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, format)
    return encoded.getvalue()


def cell(content: bytes) -> dict:
    """A cell of an image column."""
    return {"bytes": content, "path": None}


def write_split(
    root: Path,
    split: str,
    features: datasets.Features,
    rows: Sequence[dict],
    *,
    config: str = "default",
    files: int = 1,
) -> None:
    """Add a split to the repository copy at `root`: parquet files, and its entry in README.md."""
    folder = root / ("data" if config == "default" else config)
    folder.mkdir(parents=True, exist_ok=True)
    for index, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        chosen = [rows[i] for i in part]
        columns = {name: [row.get(name) for row in chosen] for name in features}
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(folder / f"{split}-{index:05d}-of-{files:05d}.parquet")
    _write_card(root, config, split, folder.name)


def _write_card(root: Path, config: str, split: str, folder: str) -> None:
    card = root / "README.md"
    entry = f"  - split: {split}\n    path: {folder}/{split}-*\n"
    head = f"- config_name: {config}\n  data_files:\n"
    text = card.read_text() if card.exists() else "---\nconfigs:\n---\n"
    if head in text:
        text = text.replace(head, head + entry)
    else:
        text = text.removesuffix("---\n") + head + entry + "---\n"
    card.write_text(text)
