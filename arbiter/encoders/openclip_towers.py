"""OpenCLIP's towers: their shapes without weights, and the towers themselves with them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from arbiter.errors import EncoderError
from arbiter.hardware.allocation import Exact, Memory
from arbiter.hardware.recorder import Recorder, recording


@dataclass(frozen=True)
class Shapes:
    """What the towers give.

    Attributes:
        image_dim: width of the pooled image.
        patch_dim, rows, columns: width and grid of the patches of one view.
        patch_format: open_clip's name for the layout that the image tower can return.
        parameters: of both towers.
    """

    image_dim: int
    patch_dim: int
    rows: int
    columns: int
    patch_format: str
    parameters: int


def find_shapes(build_name: str, size: Sequence[int]) -> Shapes:
    """Run the image tower on torch's meta device: shapes without weights or arithmetic.

    Args:
        size: height and width of a view, in pixels.

    Raises:
        EncoderError: the image tower gives no patches.
    """
    with torch.device("meta"), torch.no_grad():
        model = _build(build_name, torch.device("meta"))
        blank = torch.empty(1, 3, *size)
        # Convolutional towers have no NLC form.
        for patch_format in ("NLC", "NCHW"):
            try:
                output = image_outputs(model, blank, patch_format)
                break
            except AssertionError:
                continue
        else:
            raise EncoderError(
                f"{build_name}: its image tower gives no patch tokens; "
                "choose a ViT, ResNet or ConvNeXt model"
            )
        grid = image_outputs(model, blank, "NCHW")["image_intermediates"][-1].shape
    return Shapes(
        image_dim=output["image_features"].shape[-1],
        patch_dim=grid[1],
        rows=grid[2],
        columns=grid[3],
        patch_format=patch_format,
        parameters=sum(p.numel() for p in model.parameters()),
    )


def activation_bytes(build_name: str, size: Sequence[int], views: int) -> int:
    """Bytes in use at once, beside the weights, while the image tower sees `views` views."""
    recorder, memory = Recorder(), Memory(Exact())
    with torch.device("meta"):
        model = _build(build_name, torch.device("meta"))
        with torch.no_grad(), recording(recorder, weights=model.state_dict().values()):
            image_outputs(model, torch.empty(1, 3, *size), "NLC")
    memory.play(recorder.take())
    return views * memory.peak


def load_towers(
    build_name: str, weights: Path | None, device: torch.device, random_seed: int
) -> torch.nn.Module:
    """Both towers on `device` in evaluation mode, with a file's weights, or random ones for None.

    Raises:
        EncoderError: the file does not fit the architecture.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed)
        model = _build(build_name, torch.device("cpu"))
    if weights is not None:
        _load_weights(model, build_name, weights)
    return model.eval().to(device)


def image_outputs(model: torch.nn.Module, pixels: torch.Tensor, patch_format: str) -> dict:
    """open_clip's 'image_features' [N, D] and normalised last 'image_intermediates'."""
    return model.forward_intermediates(
        image=pixels,
        image_indices=1,
        normalize=False,
        normalize_intermediates=True,
        image_output_fmt=patch_format,
    )


def text_outputs(model: torch.nn.Module, ids: torch.Tensor) -> dict:
    """open_clip's 'text_features' [N, D] and normalised last 'text_intermediates' [N, length, W].

    Towers of transformers' own give features only.
    """
    if hasattr(model, "text") and not hasattr(model.text, "forward_intermediates"):
        return {"text_features": model.encode_text(ids)}
    return model.forward_intermediates(
        text=ids, text_indices=1, normalize=False, normalize_intermediates=True,
        text_output_fmt="NLC",
    )  # fmt: skip


def text_shape(model_cfg: dict) -> tuple[int, tuple[int]]:
    """Width of a text token, and the most that a text has.

    Raises:
        EncoderError: the text tower gives pooled features only.
    """
    from open_clip.model import CLIPTextCfg

    text_cfg = {**asdict(CLIPTextCfg()), **model_cfg["text_cfg"]}
    if text_cfg["hf_model_name"]:
        raise EncoderError(
            f"encoder.text_tokens=true: the text tower {text_cfg['hf_model_name']} gives pooled "
            "features only; set encoder.text_tokens=false or choose a CLIP or SigLIP model"
        )
    return text_cfg["width"], (text_cfg["context_length"],)


def padding_id(tokenizer: Callable) -> int:
    """The id with which a tokenizer fills a text up; open_clip's own uses 0."""
    inner = getattr(tokenizer, "tokenizer", None)
    return 0 if inner is None or inner.pad_token_id is None else inner.pad_token_id


def text_lengths(ids: torch.Tensor, padding: int) -> np.ndarray:
    """Tokens of each text, int64 [N], at least 1: all but the padding at its end."""
    real = (ids != padding).numpy()
    from_end = np.argmax(real[:, ::-1], axis=1)
    lengths = np.where(real.any(axis=1), ids.shape[1] - from_end, 1)
    return lengths.astype(np.int64)


def unit_rms(values: torch.Tensor) -> np.ndarray:
    """Tokens [..., D] scaled to a root mean square of 1, as float32 on the host."""
    values = values.float()
    scale = values.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-12)
    return (values / scale).cpu().numpy()


def _build(build_name: str, device: torch.device) -> torch.nn.Module:
    import open_clip

    with _quiet():
        return open_clip.create_model(
            build_name, load_weights=False, pretrained_text=False, device=device
        )


def _load_weights(model: torch.nn.Module, model_name: str, path: Path) -> None:
    import open_clip

    try:
        open_clip.load_checkpoint(model, str(path), strict=True)
    except (RuntimeError, SafetensorError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EncoderError(
            f"{path}: not the weights of {model_name} ({reason}); set encoder.model_name to the "
            "architecture that they were trained with"
        ) from None


def load_tokenizer(model_name: str) -> Callable[[list[str]], torch.Tensor]:
    """The tokenizer that belongs to a model: texts to ids [N, length].

    Raises:
        EncoderError: it cannot be found, or needs a package that is not installed.
    """
    import huggingface_hub
    import open_clip

    try:
        with _quiet():
            # By the model's name: a tokenizer's own name would lose the model's text length.
            return open_clip.get_tokenizer(model_name)
    except ImportError as error:
        raise EncoderError(
            f"encoder.model_name={model_name}: its tokenizer needs a package that is missing "
            f"({error}); pip install transformers sentencepiece"
        ) from None
    # What transformers raises for files that are missing, unreachable or not a tokenizer.
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise EncoderError(
            f"encoder.model_name={model_name}: no tokenizer in {_tokenizer_place(model_name)} nor "
            f"in the hub cache {huggingface_hub.constants.HF_HUB_CACHE} ({reason}); put its "
            "tokenizer.json and tokenizer_config.json into a folder with open_clip_config.json "
            "and weights, and set encoder.model_name=local-dir:<folder>"
        ) from None


def _tokenizer_place(model_name: str) -> str:
    import open_clip

    if model_name.startswith("local-dir:"):
        return model_name.removeprefix("local-dir:")
    config = open_clip.get_model_config(model_name) or {}
    return f"repository {config.get('text_cfg', {}).get('hf_tokenizer_name', model_name)}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep out what open_clip logs while building: it warns of random weights before ours load."""
    package = f"{os.sep}open_clip{os.sep}"

    def foreign(record: logging.LogRecord) -> bool:
        return package not in record.pathname

    root = logging.getLogger()
    root.addFilter(foreign)
    try:
        yield
    finally:
        root.removeFilter(foreign)
