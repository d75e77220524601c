"""What a process takes from the system, beside what it has in use.

Shape of the problem: on the CPU, tensors come from malloc. glibc gives large ones back when they
are freed (`mmap`) and keeps the others, up to 32 MiB each, in a heap whose holes are used again but
seldom returned. How large the heap grows depends on the order of allocations, so it is replayed.
"""

from __future__ import annotations

import bisect
from collections import defaultdict

from arbiter.hardware.recorder import Segment

_ALIGNMENT = 64
_PAGE = 4096
_LARGEST_IN_HEAP = 32 * 2**20
_FIRST_THRESHOLD = 20 * 2**20


class Heap:
    """glibc's main arena, replayed (see malloc(3), M_MMAP_THRESHOLD).

    Best fit; a hole may be split, and holes do not join: between two tensors lie small objects
    (their own headers, nodes of the autograd graph) that outlive one of them or the other. The
    heap is never trimmed, for the same reason. The threshold above which memory is mapped grows to
    the size of the largest mapping that was freed, up to 32 MiB; it starts where loading a program
    of this size leaves it.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes taken from the system."""
        self._threshold = _FIRST_THRESHOLD
        self._holes: list[int] = []

    def allocate(self, size: int) -> tuple[bool, int]:
        """Take memory; a handle for `free`."""
        size = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        if size >= self._threshold:
            size = -(-size // _PAGE) * _PAGE
            self.size += size
            return True, size
        place = bisect.bisect_left(self._holes, size)
        if place == len(self._holes):
            self.size += size
        else:
            rest = self._holes.pop(place) - size
            if rest:
                bisect.insort(self._holes, rest)
        return False, size

    def free(self, handle: tuple[bool, int]) -> None:
        """Give memory back, to the system or to the heap."""
        mapped, size = handle
        if not mapped:
            bisect.insort(self._holes, size)
            return
        self.size -= size
        if self._threshold < size <= _LARGEST_IN_HEAP:
            self._threshold = size


class Exact:
    """An allocator that keeps nothing: what `torch.cuda.max_memory_allocated` counts."""

    def __init__(self) -> None:
        self.size = 0

    def allocate(self, size: int) -> int:
        """Take memory, in units of 512 bytes as torch's device allocators do."""
        size = -(-size // 512) * 512
        self.size += size
        return size

    def free(self, handle: int) -> None:
        """Give it back."""
        self.size -= handle


class Memory:
    """One kind of memory over time: what is in use, by category, and the highest level.

    Attributes:
        peak: highest number of bytes taken from the system.
        peak_use: bytes in use by category at that moment; the rest of `peak` is the allocator's.
        peak_phase: what was going on.
    """

    def __init__(self, allocator: Heap | Exact):
        self._allocator = allocator
        self._held: dict[object, tuple[object, str, int]] = {}
        self._use: dict[str, int] = defaultdict(int)
        self.phase = ""
        self.peak, self.peak_use, self.peak_phase = 0, {}, ""

    def allocate(self, key: object, category: str, size: int) -> None:
        """Take `size` bytes under a name."""
        self._held[key] = (self._allocator.allocate(size), category, size)
        self._use[category] += size
        if self._allocator.size > self.peak:
            self.peak, self.peak_phase = self._allocator.size, self.phase
            self.peak_use = {name: used for name, used in self._use.items() if used}

    def play(self, segment: Segment, rename: dict[str, str] | None = None) -> None:
        """Do what was recorded.

        Args:
            rename: category -> another name for it here.
        """
        for name, size in segment.events:
            if size:
                category = segment.category[name]
                self.allocate(name, (rename or {}).get(category, category), size)
            elif name in self._held:
                self.free(name)

    def free(self, key: object) -> None:
        """Give back what was taken under a name."""
        handle, category, size = self._held.pop(key)
        self._allocator.free(handle)
        self._use[category] -= size
