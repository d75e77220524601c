"""Naming a device: what works, and one line for what does not."""

import logging
import sys
import types

import pytest
import torch

from arbiter.config import validate
from arbiter.errors import ConfigError
from arbiter.hardware import device
from arbiter.hardware.device import (
    HardwareConfig,
    autocast,
    directml_loaded,
    natural_dispatch,
    resolve_device,
)
from tests.hardware.simulated_device import SimulatedTensor

GPUS = ["First GPU", "Second GPU"]


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: GPUS[number])


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """Puts a module in the place of torch_directml, on a system with or without a GPU's device."""

    def install(driver: bool = True, **functions) -> None:
        monkeypatch.setattr(device, "_WSL_GPU", tmp_path if driver else tmp_path / "dxg")
        monkeypatch.setattr(sys, "platform", "linux")
        module = types.ModuleType("torch_directml")
        vars(module).update(functions)
        module.__spec__ = types.SimpleNamespace(name="torch_directml")
        monkeypatch.setitem(sys.modules, "torch_directml", module)

    return install


def failing_driver() -> int:
    # As the real plugin does, which promises never to.
    raise RuntimeError("Unknown error -140177936")


def not_to_be_called() -> int:
    raise AssertionError("the plugin crashed the process here")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def problem(name: str, key: str = "hardware.device") -> str:
    with pytest.raises(ConfigError) as raised:
        resolve_device(name, key)
    line = str(raised.value)
    assert line.startswith(f"{key}={name}: ") and "\n" not in line
    return line


@pytest.mark.parametrize(
    "name", ["gpu", "cpu:0", "mps:0", "cuda:", "cuda:-1", "cuda:x", "", "auto:1"]
)
def test_a_name_that_is_none(name):
    assert "must be one of auto, cpu, cuda, mps, directml" in problem(name)
    for key in ("device", "encoder_device"):
        with pytest.raises(ConfigError, match="must be one of") as raised:
            validate(HardwareConfig(**{key: name}))
        assert raised.value.key == key


@pytest.mark.parametrize("name", ["auto", "cpu", "mps", "cuda", "cuda:0", "cuda:11", "directml:1"])
def test_names_that_a_configuration_may_hold(name):
    validate(HardwareConfig(device=name, encoder_device=name))


def test_gpus_by_number(two_gpus):
    assert resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("auto") == torch.device("cuda")
    line = problem("cuda:7", "device")
    assert "this machine has cpu, cuda:0 (First GPU), cuda:1 (Second GPU)" in line


def test_no_cuda_is_an_error_that_names_what_there_is(no_gpu):
    for name in ("cuda", "cuda:7"):
        line = problem(name)
        assert "no CUDA or ROCm GPU" in line and line.endswith("this machine has cpu")
    assert "no Apple GPU" in problem("mps")


def test_directml_without_a_driver(no_gpu, plugin):
    plugin(driver=False, device_count=not_to_be_called)
    for name in ("directml", "directml:3"):
        assert "dxg is missing); DirectML needs Windows or WSL2" in problem(name)
    plugin(device_count=failing_driver)
    assert "its driver fails (Unknown error -140177936)" in problem("directml")
    plugin(device_count=lambda: 0)
    assert "no GPU; DirectML needs Windows or WSL2" in problem("directml")


def test_auto_says_why_not_directml(no_gpu, plugin, caplog):
    plugin(driver=False, device_count=not_to_be_called)
    with caplog.at_level(logging.INFO):
        assert resolve_device("auto") == torch.device("cpu")
    assert "DirectML is installed, but: no driver" in caplog.text


def test_auto_without_directml_is_silent(no_gpu, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch_directml", None)
    with caplog.at_level(logging.INFO):
        assert resolve_device("auto") == torch.device("cpu")
    assert "directml" not in caplog.text.lower()
    assert "pip install -e '.[directml]'" in problem("directml")


def test_directml_by_number(no_gpu, plugin):
    plugin(
        device_count=lambda: 2,
        device_name=lambda number: GPUS[number],
        device=lambda number: torch.device("privateuseone", number or 0),
    )
    assert resolve_device("directml") == torch.device("privateuseone", 0)
    assert resolve_device("directml:1") == torch.device("privateuseone", 1)
    assert "directml:0 (First GPU), directml:1 (Second GPU)" in problem("directml:2")
    assert directml_loaded()


def test_directml_computes_in_float32():
    with pytest.raises(ConfigError, match="precision=float32"):
        validate(HardwareConfig(device="directml:0", precision="bfloat16"))


def test_float32_needs_no_autocast_of_the_device():
    """DirectML has none; torch would refuse the context itself."""
    with autocast(torch.device("privateuseone", 0), "float32"), torch.no_grad():
        assert (SimulatedTensor(torch.ones(2)) + 1).dtype == torch.float32
    with autocast(torch.device("cpu"), "bfloat16"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_experts_are_sorted_where_the_device_can():
    names = ("cpu", "cuda:1", "mps", "privateuseone:0")
    found = [natural_dispatch(torch.device(name)) for name in names]
    assert found == ["grouped", "grouped", "dense", "dense"]
