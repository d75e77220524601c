"""A small open_clip model in a directory of its own, as a person would keep one offline."""

from __future__ import annotations

import json
from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file

IMAGE_SIZE = 32
PATCH = 8
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]


def model_config(image_size=IMAGE_SIZE, embed_dim=24, tokenizer: bool = False, **vision) -> dict:
    """An open_clip configuration of a few thousand parameters."""
    text = {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    if tokenizer:
        text |= {"vocab_size": 16, "hf_tokenizer_name": "made-by-the-test"}
    return {
        "embed_dim": embed_dim,
        "vision_cfg": {
            "image_size": image_size, "layers": 2, "width": 20, "head_width": 10,
            "patch_size": PATCH, **vision,
        },
        "text_cfg": text,
    }  # fmt: skip


def write_model(directory: Path, seed: int = 0, preprocess: bool = True, **config) -> Path:
    """Configuration, weights and, with `tokenizer=True`, a tokenizer; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    model_cfg = model_config(**config)
    whole = {"model_cfg": model_cfg}
    if preprocess:
        whole["preprocess_cfg"] = {
            "mean": MEAN, "std": STD, "interpolation": "bilinear", "resize_mode": "squash",
        }  # fmt: skip
    (directory / "open_clip_config.json").write_text(json.dumps(whole))
    torch.manual_seed(seed)
    model = open_clip.create_model(f"local-dir:{directory}", load_weights=False)
    weights = {n: t.clone().contiguous() for n, t in model.state_dict().items()}
    save_file(weights, directory / "open_clip_model.safetensors")
    if config.get("tokenizer"):
        write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """A word-level tokenizer of a dozen words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "</s>", "a", "red", "blue", "shape", "circle", "square", "yes", "no"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(directory)
