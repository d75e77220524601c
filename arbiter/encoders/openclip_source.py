"""Finding an OpenCLIP model: architecture, preprocessing, weights and tokenizer, each on its own.

Nothing here loads weights. Whatever is missing is an `EncoderError` that says what was looked for,
where, and how to name a local copy. Weights are safetensors only: other formats are pickles.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from arbiter.errors import EncoderError
from arbiter.files import file_digest

RANDOM = "random"

_WEIGHT_NAMES = ("open_clip_model.safetensors", "model.safetensors")
_CONFIG_NAME = "open_clip_config.json"
# Files that decide how a tokenizer in a local directory splits text.
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.json", "vocab.txt",
    "merges.txt",
)  # fmt: skip

_LOCAL_COPY = (
    "set encoder.model_name=local-dir:<folder> to a folder with open_clip_config.json, "
    "open_clip_model.safetensors and the tokenizer's files"
)


@dataclass(frozen=True)
class Architecture:
    """What a model name stands for.

    Attributes:
        build_name: a name by which open_clip builds it without asking the hub.
        model_cfg: open_clip's 'embed_dim', 'vision_cfg', 'text_cfg', ...
        preprocess_cfg: what the model's own files say about preprocessing, maybe nothing.
        directory: of a `local-dir:` model.
        repo: of an `hf-hub:` model.
    """

    build_name: str
    model_cfg: dict
    preprocess_cfg: dict
    directory: Path | None = None
    repo: str | None = None


def find_architecture(model_name: str) -> Architecture:
    """Read a model's configuration, from open_clip's own list, a folder or the hub.

    Raises:
        EncoderError: there is none, or it is not one.
    """
    import open_clip

    if model_name.startswith("local-dir:"):
        directory = Path(model_name.removeprefix("local-dir:"))
        path = directory / _CONFIG_NAME
        if not path.is_file():
            raise EncoderError(f"encoder.model_name={model_name}: {path} not found; {_LOCAL_COPY}")
        return Architecture(model_name, *_read_config(path), directory=directory)
    if model_name.startswith("hf-hub:"):
        repo = model_name.removeprefix("hf-hub:")
        path = hub_file(repo, _CONFIG_NAME)
        return Architecture(f"local-dir:{path.parent}", *_read_config(path), repo=repo)
    model_cfg = open_clip.get_model_config(model_name)
    if model_cfg is None:
        close = difflib.get_close_matches(model_name, open_clip.list_models(), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "open_clip.list_models() has all"
        raise EncoderError(f"encoder.model_name={model_name}: open_clip has no such model; {hint}")
    return Architecture(model_name, model_cfg, {})


def _read_config(path: Path) -> tuple[dict, dict]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return config["model_cfg"], config.get("preprocess_cfg") or {}
    except (ValueError, KeyError, TypeError):
        raise EncoderError(
            f"{path}: not an open_clip configuration; it needs 'model_cfg'"
        ) from None


def find_weights(model_name: str, weights: str | None, architecture: Architecture) -> Path | None:
    """The file of weights, from the folder, the hub's local cache or the hub; None for `random`.

    Raises:
        EncoderError: no such file or tag, not safetensors, or a tag that needs another activation.
    """
    if weights == RANDOM:
        return None
    if architecture.directory is not None or architecture.repo is not None:
        if weights is not None:
            raise EncoderError(
                f"encoder.weights={weights}: {model_name} brings its own; set encoder.weights=null "
                f"(or {RANDOM})"
            )
        if architecture.directory is None:
            return hub_file(architecture.repo, _WEIGHT_NAMES[0])
        return _weights_in(architecture.directory)
    if weights is None:
        raise EncoderError(f"encoder.weights=null: {model_name} needs {_tags_or_file(model_name)}")
    tag = tag_config(model_name, weights)
    if tag is None:
        return _weights_file(model_name, Path(weights))
    if bool(tag.get("quick_gelu")) != bool(architecture.model_cfg.get("quick_gelu")):
        other = f"{model_name}-quickgelu" if tag.get("quick_gelu") else "the one without -quickgelu"
        raise EncoderError(
            f"encoder.weights={weights}: trained with another activation than {model_name} has; "
            f"set encoder.model_name to {other}"
        )
    repo, _, file = tag.get("hf_hub", "").rpartition("/")
    if not repo:
        raise EncoderError(
            f"encoder.weights={weights}: open_clip knows no safetensors of it on the hub; "
            f"{_LOCAL_COPY}"
        )
    name = f"{Path(file).stem}.safetensors" if file else _WEIGHT_NAMES[0]
    return hub_file(repo, name)


def tag_config(model_name: str, weights: str | None) -> dict | None:
    """open_clip's entry for a tag of pretrained weights, with its preprocessing; None if no tag."""
    import open_clip

    return open_clip.get_pretrained_cfg(model_name, weights) or None if weights else None


def _tags_or_file(model_name: str) -> str:
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(model_name)
    return f"one of the tags {', '.join(tags) or '(none)'}, or the path of a .safetensors file"


def _weights_file(model_name: str, path: Path) -> Path:
    if not path.is_file():
        raise EncoderError(
            f"encoder.weights={path}: neither a file nor a tag of {model_name}; "
            f"give {_tags_or_file(model_name)}"
        )
    if path.suffix != ".safetensors":
        raise EncoderError(
            f"encoder.weights={path}: only .safetensors is read, as other formats can run code; "
            "convert it with safetensors.torch.save_file"
        )
    return path


def _weights_in(directory: Path) -> Path:
    named = [directory / name for name in _WEIGHT_NAMES if (directory / name).is_file()]
    found = named or sorted(directory.glob("*.safetensors"))
    if not named and len(found) != 1:
        problem = f"holds {len(found)} .safetensors files" if found else "holds no .safetensors"
        raise EncoderError(
            f"{directory}: {problem}; name the weights {_WEIGHT_NAMES[0]}, or ask for "
            f"encoder.weights={RANDOM}"
        )
    return found[0]


def hub_file(repo: str, name: str) -> Path:
    """A file of a hub repository: from the local cache, or else downloaded into it.

    Raises:
        EncoderError: it is in neither place.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.hf_hub_download(repo, name, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        raise EncoderError(
            f"hf-hub:{repo}: not a repository name; give hf-hub:owner/name"
        ) from None
    cache = huggingface_hub.constants.HF_HUB_CACHE
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        reason = "HF_HUB_OFFLINE is set"
    else:
        try:
            return Path(huggingface_hub.hf_hub_download(repo, name))
        # OSError: no network, no space, no permission; the others: what the hub answers.
        except (HfHubHTTPError, OSError) as error:
            answer = str(error).splitlines()[0] if str(error) else type(error).__name__
            reason = f"the hub gave none ({type(error).__name__}: {answer})"
    raise EncoderError(
        f"encoder weights: {name} of {repo} is not in the local cache {cache}, and {reason}; "
        f"connect once to download it, or {_LOCAL_COPY}"
    )


def preprocessing(
    model_name: str, weights: str | None, architecture: Architecture, given: dict
) -> dict:
    """How an image becomes pixels, complete: mean, std, interpolation, resize_mode, size, ...

    Args:
        given: the config's own wishes; None leaves the model's.

    Raises:
        EncoderError: nothing says how, and guessing would go wrong silently.
    """
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    given = {key: value for key, value in given.items() if value is not None}
    own = tag_config(model_name, weights) or architecture.preprocess_cfg
    missing = sorted({"mean", "std", "interpolation", "resize_mode"} - given.keys() - own.keys())
    if missing and weights != RANDOM:
        raise EncoderError(
            f"encoder.preprocess: nothing says the {', '.join(missing)} of these weights; give "
            "encoder.preprocess.mean, .std, .interpolation and .resize_mode as they were trained"
        )
    merged = merge_preprocess_dict(merge_preprocess_dict(asdict(PreprocessCfg()), own), given)
    return {**merged, "size": image_size(architecture.model_cfg)}


def image_size(model_cfg: dict) -> list[int]:
    """Height and width that an image tower takes, in pixels."""
    size = model_cfg["vision_cfg"].get("image_size", 224)
    return list(size) if isinstance(size, (list, tuple)) else [size, size]


def tokenizer_identity(model_name: str, architecture: Architecture) -> dict:
    """What the token ids of a text depend on."""
    text_cfg = architecture.model_cfg["text_cfg"]
    identity = {
        "name": text_cfg.get("hf_tokenizer_name"),
        "mode": text_cfg.get("tokenizer_mode"),
        "options": text_cfg.get("tokenizer_kwargs"),
        "context_length": text_cfg.get("context_length", 77),
    }
    if architecture.directory is not None and identity["name"]:
        # A folder's tokenizer is the one inside it, whatever it is called.
        digest = hashlib.sha256()
        for name in _TOKENIZER_FILES:
            path = architecture.directory / name
            if path.is_file():
                digest.update(f"{name}\0{file_digest(path)}\0".encode())
        identity["name"] = f"sha256:{digest.hexdigest()}"
    return identity
