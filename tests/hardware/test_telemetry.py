"""Figures about the machine, held against the system's own; none that is not there."""

import json
import os
from types import SimpleNamespace

import psutil
import pytest
import torch

from arbiter.hardware import telemetry

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


def test_the_machine_as_the_system_sees_it():
    machine = telemetry.describe(CPU)
    assert json.loads(json.dumps(machine)) == machine
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    if page:
        assert machine["memory_mb"] == round(page * os.sysconf("SC_PHYS_PAGES") / 1e6)
    assert 0 < machine["rss_mb"] < machine["memory_mb"]
    assert 0 < machine["memory_free_mb"] <= machine["memory_mb"]
    assert machine["threads"] == torch.get_num_threads()
    assert machine["cpus"] == os.cpu_count()
    assert machine["name"]
    assert machine["driver"] is machine["vram_total_mb"] is machine["vram_free_mb"] is None


def test_the_hottest_sensor_of_the_processor(monkeypatch):
    def sensors(**named):
        found = {k: [SimpleNamespace(current=t) for t in v] for k, v in named.items()}
        monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found, raising=False)
        return telemetry.temperature_figures(CPU)

    assert sensors(nvme=[30.0], coretemp=[51.0, 63.0]) == {"temperature_c": 63.0}
    assert sensors(nvme=[30.0]) == {}
    assert sensors(k10temp=[]) == {}


def test_a_system_without_sensors(monkeypatch):
    def broken():
        raise OSError("no sensors in this container")

    monkeypatch.setattr(psutil, "sensors_temperatures", broken, raising=False)
    assert telemetry.temperature_figures(CPU) == {}
    monkeypatch.delattr(psutil, "sensors_temperatures")
    assert telemetry.temperature_figures(CPU) == {}


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("no bindings"), RuntimeError("no driver"), AttributeError("cuda")]
)
def test_a_gpu_that_gives_no_temperature(monkeypatch, error):
    def refuse(device):
        raise error

    monkeypatch.setattr(torch.cuda, "temperature", refuse)
    assert telemetry.temperature_figures(CUDA) == {}
    monkeypatch.setattr(torch.cuda, "temperature", lambda device: 41)
    assert telemetry.temperature_figures(CUDA) == {"temperature_c": 41.0}
