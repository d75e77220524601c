"""The table of DirectML's kernels, and the rules for what it does not show."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from arbiter.hardware.directml import OperatorTrace, kernel_table, resolve
from tests.hardware.simulated_device import SimulatedTensor

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        # As measured with torch_directml loaded (the table's own entries).
        ("aten::topk", "directml"),
        ("aten::addcmul_", "directml"),
        ("aten::lerp_.Scalar", "cpu_fallback"),
        ("aten::_fused_adamw_", "cpu_fallback"),
        ("aten::index_add", "cpu_fallback"),
        # Composites, by what they end in.
        ("aten::stack", "directml"),
        ("aten::_foreach_mul_.Scalar", "directml"),
        ("aten::_foreach_lerp_.Scalar", "cpu_fallback"),
        ("aten::_foreach_lerp_.List", "cpu_fallback"),
        ("aten::_foreach_sqrt", "directml"),
        # Nobody knows: a composite without a rule, and no operator of that torch.
        ("aten::logcumsumexp.dimname", "unknown"),
        ("aten::no_such_operator", "unknown"),
    ],
)
def test_where_an_operator_runs(name, runs):
    assert resolve(name).runs == runs


def base(name: str) -> str:
    return name.split(".")[0]


X = torch.randn(3, 4)
COMPOSITES = {
    "aten::detach": lambda: aten.detach(X),
    "aten::expand": lambda: aten.expand(X, [2, 3, 4]),
    "aten::permute": lambda: aten.permute(X, [1, 0]),
    "aten::select.int": lambda: aten.select.int(X, 0, 1),
    "aten::slice.Tensor": lambda: aten.slice.Tensor(X, 0, 1),
    "aten::squeeze.dim": lambda: aten.squeeze.dim(X[:1], 0),
    "aten::t": lambda: aten.t(X),
    "aten::unsqueeze": lambda: aten.unsqueeze(X, 0),
    "aten::empty_like": lambda: aten.empty_like(X),
    "aten::scalar_tensor": lambda: aten.scalar_tensor(2.0),
    "aten::zeros": lambda: aten.zeros([3]),
    "aten::zeros_like": lambda: aten.zeros_like(X),
    "aten::new_zeros": lambda: aten.new_zeros(X, [3]),
    "aten::_to_copy": lambda: aten._to_copy(X, dtype=torch.float64),
    "aten::clone": lambda: aten.clone(X),
    "aten::sum": lambda: aten.sum(X),
    "aten::mean": lambda: aten.mean(X),
    "aten::mul.Scalar": lambda: aten.mul.Scalar(X, 2.0),
    "aten::div_.Scalar": lambda: aten.div_.Scalar(X.clone(), 2.0),
    "aten::index_put_": lambda: aten.index_put_(X.clone(), [torch.tensor([1])], X[0]),
    "aten::select_backward": lambda: aten.select_backward(X[0], [3, 4], 0, 1),
    "aten::slice_backward": lambda: aten.slice_backward(X[:1], [3, 4], 0, 0, 1, 1),
}


def directly_called(name: str, function: Callable[[], torch.Tensor]) -> set[str]:
    """The operators that the outermost call of `name` calls itself, without overloads."""
    with torch.autograd.profiler.profile() as profile:
        function()
    # Not profile.function_events, which drop a call inside one of the same name.
    events = profile.kineto_results.events()
    spans = sorted((e.start_ns(), -e.duration_ns(), e.name()) for e in events)
    spans = [span for span in spans if span[2].startswith("aten::")]
    start, length, _ = next(span for span in spans if span[2] == name)
    called, inside_until = set(), 0
    for begin, duration, inner in spans[spans.index((start, length, name)) + 1 :]:
        if begin < start - length and begin >= inside_until:
            called.add(inner)
            inside_until = begin - duration
    return called


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_rule_names_what_the_composite_really_calls(name):
    """The profiler sees inside a composite, where a trace does not."""
    called = directly_called(base(name), COMPOSITES[name])
    named = {base(part) for part in resolve(name).through}
    # A rule is of torch 2.4.1; a later torch may do with less, and with views of views.
    views = {"aten::select", "aten::slice", "aten::expand", "aten::transpose", "aten::narrow"}
    allowed = named | {base(p) for part in named for p in resolve(part).through}
    assert called - views <= allowed | {"aten::empty", "aten::zeros", "aten::empty_like"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: F.scaled_dot_product_attention(x, x, x, attn_mask=mask),
        lambda x, mask: F.normalize(x, dim=-1),
        lambda x, mask: F.gelu(F.layer_norm(x, (8,))),
        lambda x, mask: F.linear(mask, mask.flatten(0, 2)),
        lambda x, mask: (x @ x.transpose(-1, -2)).softmax(-1),
    ],
    ids=["attention", "normalize", "layer_norm", "linear", "matmul"],
)
def test_a_trace_on_the_cpu_goes_the_way_of_the_device(function):
    """The operators chosen for a tensor that is on a DirectML device, against those traced."""
    inputs = torch.randn(2, 3, 4, 8), torch.zeros(2, 1, 1, 4)
    SimulatedTensor.calls.clear()
    with torch.no_grad():
        function(*map(SimulatedTensor, inputs))
        with OperatorTrace() as trace:
            function(*inputs)
    assert sorted(set(SimulatedTensor.calls)) == sorted(trace.calls)


def test_a_trace_counts_backward_passes_and_steps():
    weight = torch.randn(4, 4, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], foreach=True)
    with OperatorTrace() as trace:
        (weight @ weight).sum().backward()
        optimizer.step()
    runs = {operator.name: operator for operator in trace.operators()}
    assert runs["aten::mm"].calls == 3
    assert runs["aten::_foreach_lerp_.Scalar"].runs == "cpu_fallback"
    assert runs["aten::_foreach_lerp_.Scalar"].through == ("aten::lerp_.Scalar",)


def test_the_table_is_whole():
    table = kernel_table()
    assert table["torch"].startswith("2.4.1")
    assert len(table["kernels"]) == 3127
