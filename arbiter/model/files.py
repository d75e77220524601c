"""A model directory: weights, what is needed to rebuild the model, and its feature codecs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from arbiter.config import build, from_dict, locate
from arbiter.encoders.base import Compute, Encoder
from arbiter.errors import ArbiterError, EncoderError, RunError, first_line
from arbiter.features.batch import media_specs
from arbiter.features.codec import Int8Codec
from arbiter.files import (
    CARD,
    MANIFEST,
    verified_files,
    write_json_atomic,
    write_tensors,
    write_text_atomic,
)
from arbiter.hardware.device import natural_dispatch
from arbiter.model.architecture import CONTEXT, ArchitectureConfig
from arbiter.model.bank import FEATURES, TEXTS, TravellingBank, load_bank, save_bank
from arbiter.model.decision_model import DecisionModel
from arbiter.model.weights import Expected, expected_tensors, read_tensors
from arbiter.strict_json import read_json, read_text

FORMAT_VERSION = 1

CONFIG = "config.json"
WEIGHTS = "model_fp32.safetensors"
CODECS = "feature_codec.safetensors"
CALIBRATION = "calibration.json"
HALF = "model.safetensors"
FILES = (CONFIG, WEIGHTS, HALF, CODECS, CALIBRATION, CARD, TEXTS, FEATURES)
"""What a model directory may hold, beside its manifest."""

_CONFIG_BYTES = 1 << 20
_CARD_BYTES = 1 << 20
_CALIBRATION_BYTES = 1 << 26

Codecs = dict[str, dict[str, Int8Codec]]


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was saved.

    Attributes:
        model: in evaluation mode, on the CPU, float32.
        encoder: a handle; no weights are loaded yet.
        codecs: the feature rounding that the model was trained behind, by kind and stream.
        calibration: contents of calibration.json, or None.
        card: the model card, README.md, or None.
        bank: foils for deliberation, or None.
    """

    model: DecisionModel
    encoder: Encoder
    codecs: Codecs
    calibration: dict | None
    card: str | None = None
    bank: TravellingBank | None = None


def save_model(
    directory: Path,
    model: DecisionModel,
    encoder: Encoder,
    codecs: Codecs,
    bank: TravellingBank | None = None,
) -> None:
    """Write weights (float16 and float32), config.json, codecs and foils into a directory.

    The encoder goes in as its config, and as the fingerprint that another machine's must have.
    """
    weights = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    write_tensors(save_file, weights, directory / WEIGHTS)
    half = {name: tensor.half() for name, tensor in weights.items()}
    write_tensors(save_file, half, directory / HALF)
    flat = {
        f"{k}/{s}": c.channel_scale for k, streams in codecs.items() for s, c in streams.items()
    }
    write_tensors(save_arrays, flat, directory / CODECS)
    if bank is not None:
        save_bank(directory, bank)
    write_json_atomic(
        directory / CONFIG,
        {
            "format_version": FORMAT_VERSION,
            "architecture": dataclasses.asdict(model.config),
            "encoder": dataclasses.asdict(encoder.config),
            "encoder_fingerprint": {kind: _identity(encoder, kind) for kind in sorted(codecs)},
            "inputs": list(model.inputs),
        },
    )


def save_loaded(directory: Path, loaded: LoadedModel) -> None:
    """Write all that `load_model` reads into a directory, but for its manifest."""
    save_model(directory, loaded.model, loaded.encoder, loaded.codecs, loaded.bank)
    if loaded.calibration is not None:
        write_json_atomic(directory / CALIBRATION, loaded.calibration)
    if loaded.card is not None:
        write_text_atomic(directory / CARD, loaded.card)


def load_model(
    directory: Path, compute: Compute | None = None, encoder: Encoder | None = None
) -> LoadedModel:
    """Read a model directory, which may come from a stranger.

    Every checksum, name, shape and type must be right; what does not belong to a model is refused
    before memory is taken for it, and nothing in the files can run code.

    Args:
        directory: as `save_model` wrote it.
        compute: where and how precisely an encoder with weights runs.
        encoder: is used if given, instead of one that is built anew; it must be the model's own.

    Raises:
        RunError: something is missing, damaged or not as it should be, or the encoder is not the
            one trained with.
    """
    if not (directory / CONFIG).is_file():
        raise RunError(f"{directory}: no model there; train one first, or name a finished run")
    try:
        present = verified_files(directory)
    except RunError as error:
        raise RunError(f"{directory}: {error}; copy the model again or train it anew") from None
    try:
        for name in (CONFIG, WEIGHTS, CODECS):
            if name not in present:
                raise RunError(f"{name} is not listed in {MANIFEST}")
        config = _read(directory / CONFIG, _CONFIG_BYTES)
        encoder = _encoder(config, compute, encoder)
        model = _model(config, encoder, directory / WEIGHTS)
        codecs = _codecs(config, encoder, directory / CODECS)
        calibration = card = None
        if CALIBRATION in present:
            calibration = _read(directory / CALIBRATION, _CALIBRATION_BYTES)
        if CARD in present:
            card = _card(directory / CARD)
        bank = None
        if TEXTS in present and FEATURES in present:
            bank = load_bank(directory, encoder.spec["text"]["pooled"].dim)
    except (ArbiterError, ValueError) as error:
        raise RunError(f"{directory}: {first_line(error)}") from None
    return LoadedModel(model, encoder, codecs, calibration, card, bank)


def _read(path: Path, max_bytes: int) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RunError: it is none; with the file's name.
    """
    try:
        value = read_json(path, max_bytes)
    except ValueError as error:
        raise RunError(f"{path.name}: {error}") from None
    if not isinstance(value, dict):
        raise RunError(f"{path.name}: not a JSON object")
    return value


def _card(path: Path) -> str:
    """The text of a card, which nothing vouches for.

    Raises:
        RunError: it is none; with the file's name.
    """
    try:
        return read_text(path, _CARD_BYTES)
    except ValueError as error:
        raise RunError(f"{path.name}: {error}; put a shorter UTF-8 text there, or none") from None


_KEYS = {
    "format_version": int,
    "architecture": dict,
    "encoder": dict,
    "encoder_fingerprint": dict,
    "inputs": list,
}


def _encoder(config: dict[str, Any], compute: Compute | None, given: Encoder | None) -> Encoder:
    """The encoder that config.json names, which is the one that the model was trained with.

    Args:
        given: is taken if it is that one.

    Raises:
        RunError: config.json is not one of this version.
        EncoderError, ConfigError: there is no such encoder.
    """
    version = config.get("format_version")
    if version != FORMAT_VERSION:
        raise RunError(
            f"format {str(version)[:20]} is not known to this version; use the version of Arbiter "
            "that wrote it"
        )
    for key, kind in _KEYS.items():
        if not isinstance(config.get(key), kind):
            raise RunError(f"{CONFIG}: {key} is missing or of another type")
    encoder_class = locate(str(config["encoder"].get("_target_")))
    if not hasattr(encoder_class, "Config"):
        raise RunError(f"{CONFIG}: {encoder_class.__name__} is no encoder")
    saved = from_dict(encoder_class.Config, config["encoder"])
    if given is not None and given.config != saved:
        raise RunError(f"{CONFIG}: the encoder given has another configuration than the model's")
    encoder = build(saved, compute=compute) if given is None else given
    kinds = config["encoder_fingerprint"]
    unknown = sorted(kinds.keys() - encoder.spec.streams.keys())
    if unknown or "text" not in kinds:
        raise RunError(f"{CONFIG}: encoder_fingerprint has {', '.join(unknown) or 'no text'}")
    _check_encoder(encoder, kinds)
    return encoder


def _model(config: dict[str, Any], encoder: Encoder, weights: Path) -> DecisionModel:
    """The model that config.json describes, with the weights in a file; in evaluation mode.

    Raises:
        RunError, ConfigError: they do not fit, or there is no such model.
    """
    architecture = from_dict(ArchitectureConfig, config["architecture"])
    inputs, media = config["inputs"], media_specs(encoder.spec)
    for name in inputs:
        if name not in (CONTEXT, *media):
            raise RunError(
                f"{CONFIG}: inputs has {name!r}; there are {CONTEXT}, {', '.join(media)}"
            )
        if inputs.count(name) > 1:
            raise RunError(f"{CONFIG}: inputs has {name!r} more than once")
    try:
        with torch.device("meta"):
            expected = expected_tensors(DecisionModel(architecture, encoder.spec, inputs))
    except RuntimeError as error:
        raise RunError(f"{CONFIG}: no such model can be ({first_line(error)})") from None
    tensors = read_tensors(weights, expected)
    model = DecisionModel(architecture, encoder.spec, inputs)
    model.load_state_dict(tensors)
    return model.eval()


def _codecs(config: dict[str, Any], encoder: Encoder, path: Path) -> Codecs:
    """The feature rounding of every stream that the model was trained behind.

    Raises:
        RunError: one is missing, too many, or not a scale.
    """
    expected = {}
    if encoder.config.cache_dtype == "int8":
        expected = {
            f"{kind}/{stream}": Expected((spec.dim,))
            for kind in config["encoder_fingerprint"]
            for stream, spec in encoder.spec[kind].items()
        }
    codecs: Codecs = {}
    for name, scale in read_tensors(path, expected).items():
        if not bool((scale > 0).all()):
            raise RunError(f"{path.name}: {name} is not a scale, as it is not positive")
        kind, stream = name.split("/")
        codecs.setdefault(kind, {})[stream] = Int8Codec(scale.numpy())
    return codecs


def _identity(encoder: Encoder, kind: str) -> dict:
    """The fingerprint without its rounding, which may differ where a model is used."""
    return {k: v for k, v in encoder.fingerprint(kind).items() if k != "arithmetic"}


def _check_encoder(encoder: Encoder, saved: dict[str, Any]) -> None:
    """A model reads the features of the very encoder that it was trained on, and no other's.

    Raises:
        EncoderError: the encoder found here differs, or cannot be found.
    """
    for kind, expected in saved.items():
        if not isinstance(expected, dict):
            raise RunError(f"{CONFIG}: encoder_fingerprint.{kind} is of another type")
        # Through JSON, where tuples are lists.
        found = json.loads(json.dumps(_identity(encoder, kind)))
        for key in sorted(expected.keys() | found.keys()):
            if expected.get(key) != found.get(key):
                raise EncoderError(
                    f"the {kind} encoder found here has another {key} than the model was trained "
                    f"with ({found.get(key)}, not {expected.get(key)}); give it the same files"
                )


def to_device(
    loaded: LoadedModel, device: torch.device, dispatch: str | None = None
) -> LoadedModel:
    """The same, with its model on a device.

    Args:
        dispatch: of experts, 'grouped' or 'dense'; None takes what suits the device.
    """
    loaded.model.use_dispatch(dispatch or natural_dispatch(device))
    return dataclasses.replace(loaded, model=loaded.model.to(device))
