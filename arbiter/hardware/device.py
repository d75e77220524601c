"""Choosing a device, and saying plainly why another one cannot be used."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.hardware.distributed import own_device
from arbiter.hardware.kernels import ATTENTION_KERNELS

AUTO = "auto"

log = logging.getLogger(__name__)

_WSL_GPU = Path("/dev/dxg")

_KINDS = ("auto", "cpu", "cuda", "mps", "directml")
_ALLOWED = f"must be one of {', '.join(_KINDS)}; a number chooses a GPU, as in cuda:1"


@dataclass
class HardwareConfig:
    """Speed and memory. Nothing here changes what is learned, beyond rounding."""

    device: str = option(
        "auto",
        help="Where the model runs: auto, cpu, cuda, mps or directml; auto takes the first that "
        "works, cuda:1 the second GPU.",
    )
    micro_batch_size: int | str = option(
        16,
        help="Blocks per forward pass; gradients accumulate to schedule.batch_size. auto: the "
        "most that fit the budgets by plan, halved when memory runs out.",
    )
    eval_batch_size: int = option(64, help="Blocks per forward pass without gradient.", low=1)
    encoder_device: str | None = option(
        None, help="Where an encoder with weights runs, named alike; null: where the model does."
    )
    encoder_precision: str = option(
        "float32",
        help="Arithmetic of an encoder with weights; features of each are stored apart.",
        choices=("float32", "bfloat16", "float16"),
    )
    encoder_batch_size: int = option(64, help="Contents per call of the encoder.", low=1)
    decode_threads: int = option(
        2, help="Threads that decode and prepare media ahead of the encoder; 0 for none.", low=0
    )
    moe_dispatch: str = option(
        "grouped",
        help="grouped sorts tokens by expert; dense runs all experts, with fixed shapes.",
        choices=("grouped", "dense"),
    )
    precision: str = option(
        "float32", help="Arithmetic of the forward pass.", choices=("float32", "bfloat16")
    )
    prefetch_batches: int | None = option(
        None,
        help="Batches prepared ahead in a thread; null takes 4, and none where the CPU computes.",
        low=0,
    )
    preflight: bool = option(
        True, help="Check the gradients of a tiny batch against the CPU's; nothing on the CPU."
    )
    num_threads: int | None = option(
        None,
        help="CPU threads for arithmetic; null leaves torch's choice.",
        low=1,
        high=1024,
    )
    attention_kernel: str = option(
        "auto",
        help="How attention is computed: auto leaves torch's choice; math is plain products.",
        choices=("auto", *ATTENTION_KERNELS),
    )
    compile: bool = option(
        False, help="Compile the fusion layers (torch.compile); a minute once, then faster steps."
    )
    vram_budget_mb: int | None = option(
        None, help="Device memory a run may take, in MB; null: what this device has free.", low=1
    )
    ram_budget_mb: int | None = option(
        None, help="Host memory a run may take, in MB; null: what this machine has free.", low=1
    )
    enforce_budget: bool = option(
        True, help="Refuse to start a run that is planned to exceed a budget."
    )

    def check(self) -> None:
        """A micro-batch has blocks, devices have names, and DirectML computes in float32 only."""
        size = self.micro_batch_size
        if size != AUTO and (isinstance(size, str) or size < 1):
            raise ConfigError("micro_batch_size", size, f"must be an integer >= 1, or {AUTO}")
        for key in ("device", "encoder_device"):
            if getattr(self, key) is not None:
                _parse(getattr(self, key), key)
        if self.device.startswith("directml") and self.precision != "float32":
            raise ConfigError(
                "precision", self.precision, "DirectML trains in float32; use precision=float32"
            )


def encoder_device(config: HardwareConfig, device: torch.device) -> torch.device:
    """Where the encoder runs: beside the model on `device`, unless the profile says otherwise.

    Raises:
        ConfigError: a device was named that cannot be used.
    """
    if config.encoder_device is None:
        return device
    return resolve_device(config.encoder_device, "hardware.encoder_device")


def natural_dispatch(device: torch.device) -> str:
    """How experts are computed where no profile says so.

    'grouped' sorts tokens with operators that DirectML hands to the CPU, and that gain nothing on
    Apple's devices.
    """
    return "grouped" if device.type in ("cpu", "cuda") else "dense"


def batches_ahead(config: HardwareConfig, device: torch.device) -> int:
    """How many batches to prepare ahead of a device."""
    if config.prefetch_batches is not None:
        return config.prefetch_batches
    # A thread that prepares batches takes the cores that compute: on two of them, a step with it
    # was a third slower than one after the other.
    return 0 if device.type == "cpu" else 4


def _parse(name: str, key: str) -> tuple[str, int | None]:
    """The kind of a device, and its number if one is given: 'cuda:1' is ('cuda', 1)."""
    kind, colon, number = name.partition(":")
    if kind not in _KINDS or (colon and kind not in ("cuda", "directml")):
        raise ConfigError(key, name, _ALLOWED)
    if colon and not number.isdecimal():
        raise ConfigError(key, name, _ALLOWED)
    return kind, int(number) if colon else None


def _cuda() -> tuple[list[str], str]:
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], ""
    built = torch.version.cuda or torch.version.hip
    return [], "this torch sees no CUDA or ROCm GPU" + ("" if built else ", it is a build for CPUs")


def _mps() -> tuple[list[str], str]:
    return (["Apple GPU"], "") if torch.backends.mps.is_available() else ([], "no Apple GPU here")


def _directml() -> tuple[list[str], str]:
    needs = "DirectML needs Windows or WSL2 with a DirectX 12 driver"
    if importlib.util.find_spec("torch_directml") is None:
        return [], (
            "torch-directml is not installed; pip install -e '.[directml]', in an environment of "
            "its own"
        )
    # Loaded without a device, the plugin reads stray memory when devices are counted, which
    # autograd does before its first backward pass as well: the process crashes.
    if sys.platform == "linux" and not _WSL_GPU.exists():
        return [], f"no driver ({_WSL_GPU} is missing); {needs}"
    try:
        directml = importlib.import_module("torch_directml")
        return [directml.device_name(i) for i in range(directml.device_count())], f"no GPU; {needs}"
    except OSError as error:
        # Outside Windows and WSL2 the wheel installs, but its import finds no driver library.
        return [], f"no driver ({error}); {needs}"
    except RuntimeError as error:
        return [], f"its driver fails ({error}); {needs}"


_LOOK = {"cpu": lambda: (["cpu"], ""), "cuda": _cuda, "mps": _mps, "directml": _directml}
"""By kind of device: the names of those that can be used, and why there are none."""


def _existing() -> str:
    """What this machine has, for messages."""
    found = {kind: look()[0] for kind, look in _LOOK.items()}
    return ", ".join(
        kind if kind in ("cpu", "mps") else f"{kind}:{number} ({name})"
        for kind, names in found.items()
        for number, name in enumerate(names)
    )


def resolve_device(name: str, key: str = "hardware.device") -> torch.device:
    """The torch device for `hardware.device`, or for another `key` of that kind.

    Of several processes on a machine with GPUs, each gets one of its own.

    Raises:
        ConfigError: a device was named that cannot be used; there is no silent fall-back.
    """
    kind, number = _parse(name, key)
    if kind == "auto":
        kind = next(k for k in ("cuda", "mps", "directml", "cpu") if _LOOK[k]()[0])
        if kind == "cpu" and importlib.util.find_spec("torch_directml"):
            log.info("DirectML is installed, but: %s", _directml()[1])
    names, problem = _LOOK[kind]()
    if not names:
        raise ConfigError(key, name, f"{problem}; this machine has {_existing()}")
    if number is not None and number >= len(names):
        raise ConfigError(key, name, f"no such GPU; this machine has {_existing()}")
    if kind == "directml":
        return own_device(importlib.import_module("torch_directml").device(number), key)
    return own_device(torch.device(kind) if number is None else torch.device(kind, number), key)


def directml_loaded() -> bool:
    """Whether DirectML's runtime is in this process."""
    return "torch_directml" in sys.modules


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """A context for computing in a precision: 'float32' (which changes nothing), or a lower one."""
    # Where nothing is to change, a device's own context may not even exist (DirectML).
    kind = "cpu" if precision == "float32" else device.type
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(kind, dtype, enabled=precision != "float32")


def device_kind(name: str) -> str:
    """'cpu', 'cuda', 'mps' or 'directml' for `hardware.device`; a named one need not be here."""
    if name != AUTO:
        return name.partition(":")[0]
    found = resolve_device(AUTO).type
    return found if found in _KINDS else "directml"


def device_problem(name: str) -> str | None:
    """Why a kind of device cannot be used on this machine, or None."""
    names, problem = _LOOK[name.partition(":")[0]]()
    return None if names else problem
