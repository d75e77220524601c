"""A model directory: weights, what is needed to rebuild the model, and its feature codecs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from arbiter.config import build, from_dict, locate
from arbiter.encoders.base import Compute, Encoder
from arbiter.errors import ArbiterError, EncoderError, RunError
from arbiter.features.codec import Int8Codec
from arbiter.files import manifest_problem, write_json_atomic, write_tensors
from arbiter.foils import FoilBank
from arbiter.model.bank import load_bank, save_bank
from arbiter.model.decision_model import ArchitectureConfig, DecisionModel

FORMAT_VERSION = 1

Codecs = dict[str, dict[str, Int8Codec]]


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was saved.

    Attributes:
        model: in evaluation mode, on the CPU, float32.
        encoder: a handle; no weights are loaded yet.
        codecs: the feature rounding that the model was trained behind, by kind and stream.
        calibration: contents of calibration.json, or None.
        bank: foils for deliberation, or None.
    """

    model: DecisionModel
    encoder: Encoder
    codecs: Codecs
    calibration: dict | None
    bank: FoilBank | None = None


def save_model(
    directory: Path,
    model: DecisionModel,
    encoder: Encoder,
    codecs: Codecs,
    bank: FoilBank | None = None,
) -> None:
    """Write weights (float16 and float32), config.json, codecs and foils into a directory.

    The encoder goes in as its config, and as the fingerprint that another machine's must have.
    """
    weights = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    write_tensors(save_file, weights, directory / "model_fp32.safetensors")
    half = {name: tensor.half() for name, tensor in weights.items()}
    write_tensors(save_file, half, directory / "model.safetensors")
    flat = {
        f"{k}/{s}": c.channel_scale for k, streams in codecs.items() for s, c in streams.items()
    }
    write_tensors(save_arrays, flat, directory / "feature_codec.safetensors")
    if bank is not None:
        save_bank(directory, bank)
    write_json_atomic(
        directory / "config.json",
        {
            "format_version": FORMAT_VERSION,
            "architecture": dataclasses.asdict(model.config),
            "encoder": dataclasses.asdict(encoder.config),
            "encoder_fingerprint": {kind: _identity(encoder, kind) for kind in sorted(codecs)},
            "inputs": list(model.inputs),
        },
    )


def load_model(directory: Path, compute: Compute | None = None) -> LoadedModel:
    """Read a model directory; every checksum, shape and name must be right.

    Args:
        directory: as `save_model` wrote it.
        compute: where and how precisely an encoder with weights runs.

    Raises:
        RunError: something is missing or damaged, or the encoder is not the one trained with.
    """
    if not (directory / "config.json").is_file():
        raise RunError(f"{directory}: no model there; train one first, or name a finished run")
    problem = manifest_problem(directory)
    if problem:
        raise RunError(f"{directory}: {problem}; copy the model again or train it anew")
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        if config["format_version"] != FORMAT_VERSION:
            raise RunError(
                f"{directory}: format {config['format_version']} is not known to this version; "
                "use the version of Arbiter that wrote it"
            )
        encoder_class = locate(config["encoder"]["_target_"])
        encoder = build(from_dict(encoder_class.Config, config["encoder"]), compute=compute)
        _check_encoder(encoder, config["encoder_fingerprint"])
        architecture = from_dict(ArchitectureConfig, config["architecture"])
        model = DecisionModel(architecture, encoder.spec, config["inputs"])
        model.load_state_dict(load_file(directory / "model_fp32.safetensors"))
        codecs: Codecs = {}
        for name, scale in load_arrays(directory / "feature_codec.safetensors").items():
            kind, stream = name.split("/")
            codecs.setdefault(kind, {})[stream] = Int8Codec(scale)
        bank = load_bank(directory, encoder.spec["text"]["pooled"].dim)
        calibration = None
        if (directory / "calibration.json").is_file():
            calibration = json.loads((directory / "calibration.json").read_text(encoding="utf-8"))
    except ArbiterError as error:
        raise RunError(f"{directory}: {error}") from None
    # What a file with other contents than ours makes of the calls above.
    except (
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        AttributeError,
        SafetensorError,
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"{directory}: not a model of this version ({reason})") from None
    return LoadedModel(model.eval(), encoder, codecs, calibration, bank)


def _identity(encoder: Encoder, kind: str) -> dict:
    """The fingerprint without its rounding, which may differ where a model is used."""
    return {k: v for k, v in encoder.fingerprint(kind).items() if k != "arithmetic"}


def _check_encoder(encoder: Encoder, saved: dict[str, dict]) -> None:
    """A model reads the features of the very encoder that it was trained on, and no other's.

    Raises:
        EncoderError: the encoder found here differs, or cannot be found.
    """
    for kind, expected in saved.items():
        # Through JSON, where tuples are lists.
        found = json.loads(json.dumps(_identity(encoder, kind)))
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                raise EncoderError(
                    f"the {kind} encoder found here has another {key} than the model was trained "
                    f"with ({found.get(key)}, not {expected.get(key)}); give it the same files"
                )


def to_device(loaded: LoadedModel, device: torch.device) -> LoadedModel:
    """The same, with its model on a device."""
    return dataclasses.replace(loaded, model=loaded.model.to(device))
