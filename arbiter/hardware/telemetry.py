"""What machine this is, and how much of it is in use."""

from __future__ import annotations

import platform

import psutil
import torch

from arbiter.hardware.distributed import ranks


def rss_mb() -> float:
    """Resident memory of this process in MB (10^6 bytes)."""
    return psutil.Process().memory_info().rss / 1e6


def vram_mb(device: torch.device) -> float | None:
    """Peak device memory since the last reset, in MB; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return None


def describe(device: torch.device) -> dict:
    """Device, threads, processes of the run and memory, for logs and summaries."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "device": str(device),
        "name": name,
        "threads": torch.get_num_threads(),
        "processes": ranks().size,
        "cpus": psutil.cpu_count(),
        "memory_mb": round(psutil.virtual_memory().total / 1e6),
    }
