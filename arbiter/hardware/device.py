"""Choosing a device, and saying plainly why another one cannot be used."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch

from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.hardware.distributed import own_device
from arbiter.hardware.kernels import ATTENTION_KERNELS

AUTO = "auto"
_DEVICES = ("auto", "cpu", "cuda", "mps", "directml")


@dataclass
class HardwareConfig:
    """Speed and memory. Nothing here changes what is learned, beyond rounding."""

    device: str = option(
        "auto", help="Where the model runs; auto takes the first that works.", choices=_DEVICES
    )
    micro_batch_size: int | str = option(
        16,
        help="Blocks per forward pass; gradients accumulate to schedule.batch_size. auto: the "
        "most that fit the budgets by plan, halved when memory runs out.",
    )
    eval_batch_size: int = option(64, help="Blocks per forward pass without gradient.", low=1)
    encoder_device: str | None = option(
        None, help="Where an encoder with weights runs; null: where the model does.",
        choices=_DEVICES,
    )  # fmt: skip
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
        None, help="CPU threads for arithmetic; null leaves torch's choice.", low=1
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
        """A micro-batch has blocks, or is found."""
        size = self.micro_batch_size
        if size != AUTO and (isinstance(size, str) or size < 1):
            raise ConfigError("micro_batch_size", size, f"must be an integer >= 1, or {AUTO}")


def batches_ahead(config: HardwareConfig, device: torch.device) -> int:
    """How many batches to prepare ahead of a device."""
    if config.prefetch_batches is not None:
        return config.prefetch_batches
    # A thread that prepares batches takes the cores that compute: on two of them, a step with it
    # was a third slower than one after the other.
    return 0 if device.type == "cpu" else 4


def _problem(name: str) -> str | None:
    """Why a device cannot be used, or None."""
    if name == "cuda" and not torch.cuda.is_available():
        return "this torch sees no CUDA or ROCm GPU"
    if name == "mps" and not torch.backends.mps.is_available():
        return "this torch sees no Apple GPU"
    if name == "directml":
        try:
            importlib.import_module("torch_directml")
        except ImportError:
            return (
                "torch-directml is not installed; pip install -e '.[directml]', in an environment "
                "of its own"
            )
        except OSError as error:
            # Outside Windows and WSL2 the wheel installs, but its import finds no driver library.
            return f"no DirectX 12 driver ({error}); DirectML needs Windows or WSL2"
    return None


def resolve_device(name: str, key: str = "hardware.device") -> torch.device:
    """The torch device for `hardware.device`, or for another `key` of that kind.

    Of several processes on a machine with GPUs, each gets one of its own.

    Raises:
        ConfigError: a device was named that cannot be used; there is no silent fall-back.
    """
    if name not in _DEVICES:
        raise ConfigError(key, name, f"must be one of {', '.join(_DEVICES)}")
    if name == "auto":
        name = next(d for d in ("cuda", "mps", "directml", "cpu") if _problem(d) is None)
    problem = _problem(name)
    if problem:
        raise ConfigError(key, name, f"{problem}; use {key}=auto or cpu")
    if name == "directml":
        return own_device(importlib.import_module("torch_directml").device(), key)
    return own_device(torch.device(name), key)


def device_kind(name: str) -> str:
    """'cpu', 'cuda', 'mps' or 'directml' for `hardware.device`; a named one need not be here."""
    if name != AUTO:
        return name
    found = resolve_device(AUTO).type
    return found if found in _DEVICES else "directml"


def device_problem(name: str) -> str | None:
    """Why a kind of device cannot be used on this machine, or None."""
    return _problem(name)
