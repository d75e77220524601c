"""The replayed heap, against malloc's documented rules, and recorded allocations, against torch."""

import pytest
import torch
from torch import nn

from arbiter.hardware.allocation import Exact, Heap, Memory
from arbiter.hardware.recorder import Recorder, recording

MB = 2**20


def test_large_blocks_go_back_to_the_system():
    heap = Heap()
    handle = heap.allocate(64 * MB)
    assert heap.size == 64 * MB
    heap.free(handle)
    assert heap.size == 0


def test_small_blocks_leave_holes_that_are_used_again():
    heap = Heap()
    handles = [heap.allocate(MB) for _ in range(8)]
    for handle in handles:
        heap.free(handle)
    assert heap.size == 8 * MB
    again = [heap.allocate(MB // 2) for _ in range(16)]
    assert heap.size == 8 * MB
    heap.free(again[0])
    heap.allocate(2 * MB)  # larger than any hole
    assert heap.size == 10 * MB


def test_the_threshold_follows_the_largest_mapping_that_was_freed():
    heap = Heap()
    heap.free(heap.allocate(30 * MB))
    assert heap.size == 0
    heap.free(heap.allocate(29 * MB))
    assert heap.size == 29 * MB  # from the heap now, which keeps it


def test_the_exact_allocator_counts_in_units_of_512_bytes():
    exact = Exact()
    handle = exact.allocate(513)
    assert exact.size == 1024
    exact.free(handle)
    assert exact.size == 0


def test_the_peak_is_told_by_category_and_phase():
    memory = Memory(Exact())
    memory.phase = "one"
    memory.allocate("a", "weights", 1024)
    memory.phase = "two"
    memory.allocate("b", "activations", 2048)
    memory.free("b")
    memory.phase = "three"
    memory.allocate("c", "activations", 512)
    assert (memory.peak, memory.peak_phase) == (3072, "two")
    assert memory.peak_use == {"weights": 1024, "activations": 2048}


def test_a_recording_knows_what_is_alive_and_when():
    """A two-layer network by hand: hidden and its activation stay for the backward pass."""
    with torch.device("meta"):
        first, second = nn.Linear(256, 512, bias=False), nn.Linear(512, 256, bias=False)
        x = torch.empty(128, 256)
    recorder, memory = Recorder(), Memory(Exact())
    with recording(recorder, [x, first.weight, second.weight]):
        hidden = first(x)
        out = second(torch.relu(hidden))
        del hidden
        loss = out.sum()
    memory.play(recorder.take())
    # Before hidden goes: relu saves its own result and does not need it.
    assert memory.peak == (128 * 512 + 128 * 512 + 128 * 256) * 4
    with recording(recorder, [x, first.weight, second.weight]):
        loss.backward()
        recorder.label((p.grad for p in (first.weight, second.weight)), "gradients")
    memory.play(recorder.take())
    assert memory._use["gradients"] == 2 * 256 * 512 * 4


@pytest.mark.parametrize("tokens", [7, 40])
def test_every_token_counts_where_the_number_depends_on_data(tokens):
    with torch.device("meta"):
        mask = torch.ones(tokens, 1, dtype=torch.bool)
    with recording(Recorder()):
        assert mask.nonzero().shape == (tokens, 2)
        rows = torch.empty(10, 4, device="meta")
        parts = rows.split(torch.empty(3, dtype=torch.int64, device="meta").tolist())
    assert [len(part) for part in parts] == [3, 3, 4]


def test_bfloat16_is_recorded_as_autocast_computes_it():
    """Products narrow, with weights copied once; norms wide."""
    with torch.device("meta"):
        layer, norm = nn.Linear(64, 64), nn.LayerNorm(64)
        x = torch.empty(48, 64)
    recorder = Recorder()
    with recording(recorder, [x, *layer.parameters(), *norm.parameters()], narrow=True):
        out = layer(x)
        again = layer(norm(out))
    with torch.autocast("cpu", torch.bfloat16):
        real = nn.Linear(64, 64)(torch.zeros(48, 64))
    assert out.dtype == again.dtype == real.dtype == torch.bfloat16
    sizes = [size for _, size in recorder.take().events if size]
    assert sizes.count(64 * 64 * 2) == 1  # one copy of the weight for two uses
    assert 48 * 64 * 4 in sizes  # the norm's float32
