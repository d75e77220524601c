"""What machine this is, and how much of it is in use. Figures that nobody gives are None.

The one place that asks; nothing here fails a run.
"""

from __future__ import annotations

import importlib
import platform
from contextlib import suppress
from pathlib import Path

import psutil
import torch

# Linux names of the sensors that sit on a processor.
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "acpitz")
_DRIVERS = ("nvidia", "amdgpu")


def rss_mb() -> float:
    """Resident memory of this process in MB (10^6 bytes)."""
    return psutil.Process().memory_info().rss / 1e6


def vram_mb(device: torch.device) -> float | None:
    """Peak device memory since the last reset, in MB; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if device.type == "mps":
        return torch.mps.driver_allocated_memory() / 1e6
    return None


def temperature_c(device: torch.device) -> float | None:
    """The device's temperature in degrees Celsius, or None.

    A GPU's needs its vendor's bindings (`pip install -e '.[nvml]'` for NVIDIA's).
    """
    if device.type == "cuda":
        return _gpu_temperature(device)
    if device.type == "cpu":
        return _cpu_temperature()
    return None


def temperature_figures(device: torch.device) -> dict[str, float]:
    """`temperature_c`, where there is such a figure."""
    found = temperature_c(device)
    return {} if found is None else {"temperature_c": found}


def describe(device: torch.device) -> dict:
    """Device, driver, memory (MB, 10^6 bytes), threads and temperature, for logs and summaries."""
    memory = psutil.virtual_memory()
    vram_free, vram_total = _vram(device)
    return {
        "device": str(device),
        "name": _name(device),
        "driver": _driver(device),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "cpus": psutil.cpu_count(),
        "memory_mb": round(memory.total / 1e6),
        "memory_free_mb": round(memory.available / 1e6),
        "rss_mb": round(rss_mb()),
        "vram_total_mb": vram_total,
        "vram_free_mb": vram_free,
        "temperature_c": temperature_c(device),
    }


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was given, so that a clock may be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "privateuseone":
        return importlib.import_module("torch_directml").device_name(device.index or 0)
    return _processor()


def _processor() -> str:
    """The processor's name; on Linux `platform` knows its architecture only."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _driver(device: torch.device) -> str | None:
    """Versions of what drives a GPU: the runtime of this torch, and the system's module."""
    if device.type != "cuda":
        return None
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    versions = [_read(Path("/sys/module") / name / "version").strip() for name in _DRIVERS]
    return ", ".join([runtime, *filter(None, versions)])


def _vram(device: torch.device) -> tuple[int | None, int | None]:
    """Free and total device memory in MB."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return round(free / 1e6), round(total / 1e6)
    if device.type == "mps":
        # Missing from torch 2.4.1.
        limit = getattr(torch.mps, "recommended_max_memory", None)
        if limit is not None:
            total, used = limit(), torch.mps.driver_allocated_memory()
            return round((total - used) / 1e6), round(total / 1e6)
    return None, None


def _cpu_temperature() -> float | None:
    """The hottest of the processor's sensors; virtual machines have none."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = {}
    with suppress(OSError):
        sensors = psutil.sensors_temperatures()
    for name in _CPU_SENSORS:
        if sensors.get(name):
            return max(reading.current for reading in sensors[name])
    return None


def _gpu_temperature(device: torch.device) -> float | None:
    nvml_error = RuntimeError
    with suppress(ImportError):
        nvml_error = importlib.import_module("pynvml").NVMLError
    # Without bindings, with a driver that gives no such figure, or for a slice of a card.
    with suppress(ImportError, RuntimeError, OSError, AttributeError, nvml_error):
        return float(torch.cuda.temperature(device))
    return None


def _read(path: Path) -> str:
    """A small file's text, empty where it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
