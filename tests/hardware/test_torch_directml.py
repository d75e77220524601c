"""The real plugin, where it can be loaded (`make test-directml`): what the table says of it.

In a process of its own: without a driver, the plugin makes any backward pass crash.
"""

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

from arbiter.errors import ConfigError
from arbiter.hardware.device import resolve_device
from arbiter.hardware.directml import is_table_of_this_torch, kernel_table

pytestmark = pytest.mark.skipif(
    "LOAD_DIRECTML" not in os.environ, reason="the plugin is loaded by make test-directml only"
)


@pytest.fixture(scope="module", autouse=True)
def plugin():
    return importlib.import_module("torch_directml")


def has_kernel(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")


def test_the_dispatcher_agrees_with_the_table():
    """Asked for each operator, as the table was made."""
    assert is_table_of_this_torch()
    for name, entry in kernel_table()["kernels"].items():
        if entry["runs"] == "directml":
            assert has_kernel(entry.get("via", name)), name
        if entry["runs"] == "cpu_fallback":
            assert not has_kernel(name), name


@pytest.mark.skipif(sys.platform != "linux", reason="Windows has a DirectX 12 driver")
@pytest.mark.skipif(Path("/dev/dxg").exists(), reason="there may be a DirectX 12 GPU")
def test_without_a_driver_a_device_is_refused():
    for name in ("directml", "directml:3"):
        with pytest.raises(ConfigError, match=r"no driver .*; this machine has cpu"):
            resolve_device(name)


def test_the_seed_holds_beside_the_plugin():
    """Seeds are spread to every device that is registered, with or without a driver."""
    torch.manual_seed(3)
    first = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), first)
