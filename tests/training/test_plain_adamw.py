"""AdamW in plain operations, against torch's."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arbiter.training.checkpoint import (
    State,
    load_newest_state,
    optimizer_tensors,
    restore_optimizer,
    save_state,
)
from arbiter.training.muon import MuonConfig, muon
from arbiter.training.optimizers import AdamWConfig, DirectMLAdamWConfig, adamw, directml_adamw


class Net(torch.nn.Module):
    """A matrix, a vector, three experts, and an embedding that gets no gradient."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def random(*shape):
            return torch.nn.Parameter(torch.randn(*shape, generator=generator))

        self.matrix, self.bias, self.row = random(6, 10), random(6), random(1, 6)
        self.experts, self.unused = random(3, 6, 4), random(5, 4)

    def forward(self, x):
        hidden = torch.tanh(x @ self.matrix.T + self.bias)
        return (hidden @ self.experts).square().mean() + (hidden @ self.row.T).sin().mean()


def train(model, optimizer, steps):
    """Optimizer steps on inputs that depend on the step alone."""
    for step in steps:
        x = torch.randn(8, 10, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).backward()
        # Gradients of very different sizes.
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 10.0 ** (step % 5 - 2)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (step + 1) / 50
        optimizer.step()


def test_it_is_torchs_adamw_over_a_hundred_steps():
    models = [Net(), Net()]
    numbers = {"lr": 2e-3, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.3}
    train(models[0], adamw(AdamWConfig(**numbers), models[0]), range(100))
    train(models[1], directml_adamw(DirectMLAdamWConfig(**numbers), models[1]), range(100))
    moved = (models[0].matrix - Net().matrix).abs().min()
    assert moved > 1e-3
    for name, parameter in models[0].named_parameters():
        difference = (parameter - models[1].get_parameter(name)).abs().max()
        assert difference <= 1e-6, (name, difference)


def test_it_uses_no_operation_that_directml_hands_to_the_cpu():
    seen = set()

    class Trace(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            name = function.overloadpacket.__name__
            # The profiler's marks of older torches are no work.
            if not name.startswith("_record_function"):
                seen.add(name)
            return function(*arguments, **(keywords or {}))

    model = Net()
    optimizer = directml_adamw(DirectMLAdamWConfig(), model)
    train(model, optimizer, range(2))
    model(torch.ones(8, 10)).backward()
    with Trace():
        optimizer.step()
    # The step count lives on the host: its item() is no transfer.
    allowed = {"mul_", "add_", "addcmul_", "addcdiv_", "sqrt", "zeros", "zeros_like", "detach"}
    assert seen <= allowed | {"_local_scalar_dense"}, seen - allowed


@pytest.mark.parametrize(
    ("factory", "config"), [(directml_adamw, DirectMLAdamWConfig()), (muon, MuonConfig())]
)
def test_it_comes_back_exactly(factory, config, tmp_path):
    straight, first, second = Net(), Net(), Net()
    train(straight, factory(config, straight), range(20))
    optimizer = factory(config, first)
    train(first, optimizer, range(10))
    tensors = {"model": first.state_dict(), "optimizer": optimizer_tensors(optimizer)}
    save_state(tmp_path, 10, State(tensors, {}))
    state = load_newest_state(tmp_path)
    second.load_state_dict(state.tensors["model"])
    optimizer = factory(config, second)
    restore_optimizer(optimizer, state.tensors["optimizer"])
    train(second, optimizer, range(10, 20))
    for name, parameter in straight.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name
        assert name == "unused" or not torch.equal(parameter, first.get_parameter(name)), name
