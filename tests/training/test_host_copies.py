"""Whatever is saved leaves a device one tensor at a time: DirectML dies of more."""

import torch
from safetensors.torch import load_file
from torch import nn

from arbiter.encoders.raw import RawEncoder
from arbiter.model.files import save_model
from arbiter.training.averaging import WeightAverage
from arbiter.training.checkpoint import State, StateWriter, host_copy
from tests.conftest import make_model
from tests.hardware.simulated_device import DEVICE, SimulatedTensor


def on_device(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: SimulatedTensor(tensor.detach()) for name, tensor in tensors.items()}


def moves(calls: list[str]) -> list[str]:
    """What was called on the device, but for looking at it."""
    return [name for name in calls if name not in ("aten::detach", "aten::alias")]


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(3, 4) for name in "abcde"}


def test_a_host_copy_is_one_move_for_each_tensor():
    tensors = weights()
    SimulatedTensor.calls.clear()
    copies = host_copy(on_device(tensors))
    assert moves(SimulatedTensor.calls) == ["aten::_to_copy"] * len(tensors)
    for name, tensor in tensors.items():
        assert copies[name].device.type == "cpu"
        assert torch.equal(copies[name], tensor)


def test_a_state_is_one_move_for_each_tensor(tmp_path):
    model, moments = weights(), weights()
    writer = StateWriter(tmp_path)
    SimulatedTensor.calls.clear()
    writer.submit(7, State({"model": on_device(model), "optimizer": on_device(moments)}, {}))
    writer.close()
    assert moves(SimulatedTensor.calls) == ["aten::_to_copy"] * 10
    saved = load_file(tmp_path / "state-00000007" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.items())


def test_an_average_is_one_move_for_each_tensor():
    average, tensors = WeightAverage(), weights()
    SimulatedTensor.calls.clear()
    for _ in range(2):
        average.add(on_device(tensors))
    assert moves(SimulatedTensor.calls) == ["aten::_to_copy"] * 10
    assert torch.equal(average.mean["a"], tensors["a"])


class OnDevice(nn.Module):
    """A model whose state is on the device."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.config, self.inputs = model.config, model.inputs
        self._tensors = on_device(model.state_dict())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._tensors


def test_a_model_is_one_move_for_each_tensor(tmp_path, dataset, encoder: RawEncoder):
    model = make_model(dataset, encoder)
    away = OnDevice(model)
    assert all(tensor.device == DEVICE for tensor in away.state_dict().values())
    SimulatedTensor.calls.clear()
    save_model(tmp_path, away, encoder, {})
    assert moves(SimulatedTensor.calls) == ["aten::_to_copy"] * len(model.state_dict())
    saved = load_file(tmp_path / "model_fp32.safetensors")
    assert all(torch.equal(saved[name], t) for name, t in model.state_dict().items())
