"""The `openclip` encoder: frozen image and text towers of any model that open_clip loads.

Pooled features and patch tokens come from open_clip's own intermediates; every token is scaled to
a root mean square of 1, the scale that the fusion model's inputs share. Weights are loaded when
something is encoded, never to describe the features.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np
import torch
from PIL import Image

from arbiter.config import option
from arbiter.encoders import audio
from arbiter.encoders.base import Compute, EncoderConfig, FeatureSpec, StreamSpec, Tokens
from arbiter.encoders.openclip_source import (
    RANDOM,
    find_architecture,
    find_weights,
    preprocessing,
    tokenizer_identity,
)
from arbiter.encoders.openclip_towers import (
    Shapes,
    activation_bytes,
    find_shapes,
    image_outputs,
    load_tokenizer,
    load_towers,
    padding_id,
    text_lengths,
    text_outputs,
    text_shape,
    unit_rms,
)
from arbiter.encoders.tiling import (
    VIEWS_OF_A_TILED_IMAGE,
    is_tiled,
    merge_patches,
    patch_positions,
    views,
)
from arbiter.errors import EncoderError
from arbiter.files import file_digest

# Changing how features are made below must change this, so that old ones are not taken for new.
VERSION = 1

_RANDOM_SEED = 0
# A batch of a few images with many views would run in parts too small to fill a device.
_LEAST_VIEWS = 8


@dataclass
class PreprocessConfig:
    """How images were prepared for the weights; null takes what the model's own files say."""

    mean: list[float] | None = option(None, help="Mean per RGB channel, of pixels in [0, 1].")
    std: list[float] | None = option(None, help="Standard deviation per RGB channel.")
    interpolation: str | None = option(
        None, help="Resampling filter.", choices=("bicubic", "bilinear")
    )
    resize_mode: str | None = option(
        None,
        help="shortest crops the longer side, longest pads the shorter, squash keeps neither.",
        choices=("shortest", "longest", "squash"),
    )


@dataclass
class OpenCLIPConfig(EncoderConfig):
    """Options of the `openclip` encoder."""

    _target_: str = field(
        default="arbiter.encoders.openclip.OpenCLIPEncoder", metadata={"help": "class"}
    )
    model_name: str = option(
        "ViT-B-16-SigLIP", help="open_clip's name, hf-hub:<owner/name> or local-dir:<folder>."
    )
    weights: str | None = option(
        "webli",
        help="Tag or .safetensors file; null where the model brings its own; random for none.",
    )
    preprocess: PreprocessConfig = option(
        PreprocessConfig(), help="Required with a file of weights, where nothing else says it."
    )
    text_tokens: bool = option(False, help="Give each text token too, beside the pooled text.")
    tiling: bool = option(True, help="Look at large images whole and in four quadrants.")
    tile_from: int = option(336, help="Longer side in pixels from which an image is large.", low=2)
    max_patches: int = option(
        980, help="Patch tokens kept of an image; it is not tiled where five views exceed them.",
        low=1, high=16384,
    )  # fmt: skip
    patch_merge: bool = option(False, help="Join 2x2 patches to one wider token.")


class OpenCLIPEncoder:
    """OpenCLIP's towers; see the module's docstring. Safe to share between threads.

    Raises:
        EncoderError: from any member, when what it needs cannot be found: what, where, remedy.
    """

    Config = OpenCLIPConfig

    def __init__(self, config: OpenCLIPConfig, compute: Compute | None = None):
        self.config = config
        self._compute = compute or Compute()
        self._lock = threading.Lock()
        self._towers: torch.nn.Module | None = None

    # ------------------------------------------------------------ description, without weights

    @cached_property
    def _architecture(self):
        return find_architecture(self.config.model_name)

    @cached_property
    def _shapes(self) -> Shapes:
        return find_shapes(self._architecture.build_name, self._preprocess["size"])

    @cached_property
    def _preprocess(self) -> dict:
        config = self.config
        return preprocessing(
            config.model_name, config.weights, self._architecture, asdict(config.preprocess)
        )

    @cached_property
    def _grid(self) -> tuple[int, int, int]:
        """Views, rows and columns of the patch tokens, after merging."""
        rows, columns = self._shapes.rows, self._shapes.columns
        if self.config.patch_merge:
            if rows % 2 or columns % 2:
                raise EncoderError(
                    f"encoder.patch_merge=true: {self.config.model_name} has {rows} x {columns} "
                    "patches, which 2 x 2 squares do not tile; set encoder.patch_merge=false"
                )
            rows, columns = rows // 2, columns // 2
        if rows * columns > self.config.max_patches:
            raise EncoderError(
                f"encoder.max_patches={self.config.max_patches}: one view of "
                f"{self.config.model_name} has {rows * columns}; raise it or set "
                "encoder.patch_merge=true"
            )
        fits = VIEWS_OF_A_TILED_IMAGE * rows * columns <= self.config.max_patches
        return (VIEWS_OF_A_TILED_IMAGE if self.config.tiling and fits else 1), rows, columns

    @cached_property
    def spec(self) -> FeatureSpec:
        """The features' streams: text, image with its patches, and audio."""
        shapes, text_dim = self._shapes, self._architecture.model_cfg["embed_dim"]
        patch_dim = shapes.patch_dim * (4 if self.config.patch_merge else 1)
        text = {"pooled": StreamSpec(text_dim)}
        if self.config.text_tokens:
            text["tokens"] = StreamSpec(*text_shape(self._architecture.model_cfg))
        return FeatureSpec(
            {
                "text": text,
                "image": {
                    "pooled": StreamSpec(shapes.image_dim),
                    "patches": StreamSpec(patch_dim, self._grid),
                },
                "audio": audio.streams(self.config),
            },
            aligned=shapes.image_dim == text_dim,
            max_frames=self.config.max_frames,
        )

    @property
    def num_parameters(self) -> int:
        """Parameters of both towers."""
        return self._shapes.parameters

    @cached_property
    def _weights_path(self):
        return find_weights(self.config.model_name, self.config.weights, self._architecture)

    @cached_property
    def _weights_identity(self) -> str:
        if self._weights_path is not None:
            return f"sha256:{file_digest(self._weights_path)}"
        # Random numbers depend on the libraries that draw them.
        drawn_by = [
            f"{p} {importlib.metadata.version(p)}" for p in ("torch", "open_clip_torch", "timm")
        ]
        return f"{RANDOM}: seed {_RANDOM_SEED}, {', '.join(drawn_by)}"

    def describe(self) -> dict:
        """What perceives, for summaries and reports."""
        return {
            "name": "openclip",
            "model": self.config.model_name,
            "weights": self.config.weights or self.config.model_name,
            "weights_digest": self._weights_identity,
            "random_weights": self._weights_path is None,
        }

    def fingerprint(self, kind: str) -> dict:
        """Architecture, weights, preprocessing, tiling and dtypes, by content where it can be."""
        if kind == "audio":
            return audio.fingerprint(self.config)
        architecture = json.dumps(self._architecture.model_cfg, sort_keys=True)
        common = {
            "encoder": "openclip",
            "version": VERSION,
            "kind": kind,
            "dtype": self.config.cache_dtype,
            "arithmetic": self._compute.precision,
            "architecture": hashlib.sha256(architecture.encode()).hexdigest(),
            "weights": self._weights_identity,
        }
        if kind == "text":
            identity = tokenizer_identity(self.config.model_name, self._architecture)
            return {**common, "tokenizer": identity, "text_tokens": self.config.text_tokens}
        return {
            **common,
            "preprocess": self._preprocess,
            "tile_from": self._tile_from,
            "patch_merge": self.config.patch_merge,
        }

    @property
    def _tile_from(self) -> int | None:
        return self.config.tile_from if self._grid[0] > 1 else None

    def count_patches(self, size: tuple[int, int] | None) -> int:
        """The patches of all views of an image."""
        most, rows, columns = self._grid
        tiled = size is None or is_tiled(size, self._tile_from)
        return (most if tiled else 1) * rows * columns

    def encoding_bytes(self, images: int) -> int:
        """Bytes in use at once, beside the weights, to encode so many images together."""
        views = max(images, _LEAST_VIEWS)
        return activation_bytes(self._architecture.build_name, self._preprocess["size"], views)

    # ------------------------------------------------------------ encoding

    def release(self) -> None:
        """Drop the towers."""
        with self._lock:
            self._towers = None

    def prepare(self, kind: str, content: object) -> object:
        """The part of the work that one content needs alone: images to views [V, 3, H, W]."""
        if kind != "image":
            return content
        return torch.stack([self._transform(view) for view in views(content, self._tile_from)])

    @cached_property
    def _transform(self) -> Callable[[Image.Image], torch.Tensor]:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        return image_transform_v2(PreprocessCfg(**self._preprocess), is_train=False)

    @torch.no_grad()
    def encode_text(self, texts: Sequence[str]) -> dict[str, Tokens]:
        """One pooled token per text and, with `text_tokens`, one per token of the tokenizer."""
        # First, because a missing one shows at once where the towers take seconds.
        ids = self._tokenizer(list(texts))
        model = self._load()
        with self._compute.autocast():
            output = text_outputs(model, ids.to(self._compute.device))
        streams = {
            "pooled": Tokens(unit_rms(output["text_features"]), np.ones(len(texts), np.int64))
        }
        if self.config.text_tokens:
            counts = text_lengths(ids, padding_id(self._tokenizer))
            kept = np.arange(ids.shape[1]) < counts[:, None]
            positions = kept.nonzero()[1][:, None].astype(np.int16)
            values = unit_rms(output["text_intermediates"][-1])[kept]
            streams["tokens"] = Tokens(values, counts, positions)
        return streams

    @torch.no_grad()
    def encode_image(self, images: Sequence[Image.Image | torch.Tensor]) -> dict[str, Tokens]:
        """The pooled whole image, and the patches of all its views; takes prepared images too."""
        model = self._load()
        prepared = [self.prepare("image", i) if isinstance(i, Image.Image) else i for i in images]
        counts = np.array([len(view) for view in prepared], np.int64)
        pooled, patches = [], []
        # Views, not images, fill the device: a batch of tiled images takes several passes.
        for part in torch.cat(prepared).split(max(len(images), _LEAST_VIEWS)):
            with self._compute.autocast():
                output = image_outputs(
                    model, part.to(self._compute.device), self._shapes.patch_format
                )
            tokens = output["image_intermediates"][-1]
            if self._shapes.patch_format == "NCHW":
                tokens = tokens.flatten(2).transpose(1, 2)
            pooled.append(unit_rms(output["image_features"]))
            patches.append(unit_rms(tokens))
        values, (_, rows, columns) = np.concatenate(patches), self._grid
        if self.config.patch_merge:
            values = merge_patches(values, self._shapes.rows, self._shapes.columns)
        whole = np.cumsum(counts) - counts
        return {
            "pooled": Tokens(np.concatenate(pooled)[whole], np.ones(len(images), np.int64)),
            "patches": Tokens(
                values.reshape(-1, values.shape[-1]),
                counts * rows * columns,
                patch_positions(counts, rows, columns),
            ),
        }

    def encode_audio(self, waveforms: Sequence[np.ndarray]) -> dict[str, Tokens]:
        """Log-mel frames of 0.1 s: no towers are involved."""
        return audio.encode(waveforms, self.config)

    @cached_property
    def _tokenizer(self) -> Callable[[list[str]], torch.Tensor]:
        return load_tokenizer(self.config.model_name)

    def _load(self) -> torch.nn.Module:
        """The towers, loaded by the first call."""
        with self._lock:
            if self._towers is None:
                self._towers = load_towers(
                    self._architecture.build_name,
                    self._weights_path,
                    self._compute.device,
                    _RANDOM_SEED,
                )
            return self._towers
