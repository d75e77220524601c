"""The memory of a run over time: every phase of training, replayed on recorded allocations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import torch

from arbiter.hardware.allocation import Exact, Heap, Memory
from arbiter.hardware.device import batches_ahead, device_kind
from arbiter.planning.workload import Job, Recording

_FLOAT = 4
LIBRARIES = "Python and libraries"
_KEY_BYTES = 250
"""Of a content in a table's index: its key, its row and their places in a dictionary."""

_PAGES_BYTES = 290e6
"""Mapped features that stay resident at most (docs/notebook.md)."""

_IMAGE_BYTES = 100e3
"""Of a picture that the hub gives and that is held as a file in memory."""

_LIBRARY_BYTES = 40e6
"""Buffers of MKL and oneDNN, thread stacks, and what is imported after planning."""


@dataclass(frozen=True)
class Peak:
    """The highest level of one memory.

    Attributes:
        place: 'RAM' or 'VRAM'.
        mb: in 10^6 bytes.
        parts: category -> MB, the largest first; they add up to `mb`.
        phase: when.
    """

    place: str
    mb: float
    parts: dict[str, float]
    phase: str


def storage_bytes(job: Job) -> float:
    """Features on disk: one byte (int8) or two (float16) a value, with scales and positions."""
    spec, shape = job.encoder.spec, job.shape
    width = 1 if job.encoder.config.cache_dtype == "int8" else 2
    scale = 4 if width == 1 else 0
    block = job.typical_block

    def tokens(dim: int, axes: int) -> float:
        return dim * width + scale + 2 * axes

    total = shape.texts * tokens(spec["text"]["pooled"].dim, 0)
    if block.text_tokens:
        total += shape.texts * block.text_tokens * tokens(spec["text"]["tokens"].dim, 1)
    if "image" in spec and shape.images:
        pooled = spec["image"]["pooled"]
        total += shape.images * tokens(pooled.dim, 0)
        if "patches" in block.tokens:
            patches = spec["image"]["patches"]
            per_image = block.tokens["patches"] / max(1, block.tokens["image"])
            total += shape.images * per_image * tokens(patches.dim, len(patches.grid))
    if "audio" in block.tokens:
        blocks = (shape.samples + shape.evaluated) / shape.mean_questions
        total += blocks * block.tokens["audio"] * tokens(spec["audio"]["frames"].dim, 1)
    return total


class _Timeline:
    """Replays a run. On the CPU device and host are one memory.

    Args:
        base: bytes of the process before anything of the run is in memory.
    """

    def __init__(self, job: Job, recording: Recording, base: float):
        self.job, self.recording = job, recording
        self._names = count()
        self.host = Memory(Heap())
        self.device = self.host if job.device == "cpu" else Memory(Exact())
        self.hold(self.host, LIBRARIES, [base])
        self.hold(self.host, LIBRARIES, [_LIBRARY_BYTES])

    def phase(self, name: str) -> None:
        self.host.phase = self.device.phase = name

    def hold(self, memory: Memory, category: str, sizes: Iterable[float]) -> list[tuple]:
        """Take tensors; what `drop` gives back."""
        taken = []
        for size in sizes:
            key = ("held", next(self._names))
            memory.allocate(key, category, int(size))
            taken.append((memory, key))
        return taken

    def drop(self, taken: list[tuple]) -> None:
        for memory, key in taken:
            memory.free(key)

    def run(self) -> None:
        """All phases, in the order of a run."""
        self._features()
        self._data()
        self._preflight()
        self.phase("training")
        recorded, job = self.recording, self.job
        self.hold(self.device, "weights", recorded.weights)
        self._steps(recorded.first_step, recorded.step)
        best = average = None
        last, start = job.schedule.epochs, job.schedule.swa.start_epoch
        first_average = last + 1 if start is None else start
        # An epoch meets what the ones before have kept; between these nothing new comes.
        for epoch in sorted({1, 2, first_average, first_average + 1} & set(range(1, last + 1))):
            self.phase("validation")
            self.device.play(recorded.validation)
            better = self.hold(self.host, "best weights", recorded.weights)
            self.drop(best or [])
            best = better
            if epoch >= first_average:
                average = average or self.hold(self.host, "averages", recorded.weights)
                # Tensor by tensor: the new mean takes the place of the old one.
                largest = max(recorded.weights)
                self.drop(self.hold(self.host, "averages", [largest, largest]))
            self.phase("writing a resume state")
            state = self._state(average)
            if epoch < last:
                self.phase("training, while a resume state is written")
                self._steps(recorded.step)
            self.drop(state)
        self.phase("saving the model")
        self.drop(self.hold(self.host, "model files", (w / 2 for w in recorded.weights)))

    def _features(self) -> None:
        """The encoder at work, before there is a model."""
        self.phase("encoding features")
        encoder = self.job.encoder
        if not encoder.num_parameters:
            return
        named = self.job.hardware.encoder_device
        on_host = (device_kind(named) if named else self.job.device) == "cpu"
        place = self.host if on_host else self.device
        weights = [_FLOAT * encoder.num_parameters]
        loading = self.hold(self.host, "encoder", weights)
        towers = self.hold(place, "encoder", weights)
        self.drop(loading)
        batch = encoder.encoding_bytes(self.job.hardware.encoder_batch_size)
        self.drop([*self.hold(place, "encoder's batch", [batch]), *towers])

    def _data(self) -> None:
        shape = self.job.shape
        rows = shape.texts + shape.images
        self.hold(self.host, "index of the features", [_KEY_BYTES * rows])
        if self.job.foils:
            self.hold(self.host, "foils", [_FLOAT * self.job.foils * shape.answers])
        self.hold(self.host, "cache pages", [min(storage_bytes(self.job), _PAGES_BYTES)])
        if not shape.exact:
            self.hold(self.host, "samples", [_IMAGE_BYTES * shape.images])

    def _preflight(self) -> None:
        """On a device: a twin of the model on the host, and the gradients of one term twice."""
        if self.device is self.host:
            return
        self.phase("preparing the model")
        recorded = self.recording
        made = self.hold(self.host, "weights", recorded.weights)
        if self.job.hardware.preflight:
            self.phase("preflight")
            self.device.play(recorded.step)
            for _ in range(2):
                made += self.hold(self.host, "gradients", recorded.weights)
        self.drop(made)

    def _steps(self, *segments) -> None:
        """Optimizer steps with the batches that they need."""
        on_cpu = self.device is self.host
        ahead = batches_ahead(self.job.hardware, torch.device("cpu" if on_cpu else "meta"))
        on_host = [self.recording.batch] * (ahead + (not on_cpu))
        for segment in segments:
            waiting = self.hold(self.host, "batch", on_host)
            # Gathered, brought to float32, and padded.
            self.drop(self.hold(self.host, "batch", [self.recording.batch] * 2))
            self.device.play(segment)
            self.drop(waiting)

    def _state(self, average: list | None) -> list:
        """The copy of everything that a resume state holds, while a thread writes it."""
        recorded = self.recording
        sizes = [*recorded.weights, *recorded.moments, *recorded.weights]
        if average is not None:
            sizes += recorded.weights
        return self.hold(self.host, "resume state", sizes)


def predict_peaks(job: Job, recording: Recording, base: float) -> list[Peak]:
    """The highest level of every memory that a run uses: RAM, and VRAM where there is some."""
    timeline = _Timeline(job, recording, base)
    timeline.run()
    places = {"RAM": timeline.host}
    if timeline.device is not timeline.host:
        places = {"VRAM": timeline.device, **places}
    return [_peak(place, memory) for place, memory in places.items()]


def _peak(place: str, memory: Memory) -> Peak:
    parts = {name: size / 1e6 for name, size in memory.peak_use.items()}
    parts["kept by the allocator"] = memory.peak / 1e6 - sum(parts.values())
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return Peak(place, memory.peak / 1e6, dict(ordered), memory.peak_phase)
