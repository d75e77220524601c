"""What a run will do, recorded without data: its model, a step, a validation batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from arbiter.config import build
from arbiter.datasets.shapes import SampleShape
from arbiter.encoders.base import Encoder
from arbiter.features.batch import DecisionBatch
from arbiter.hardware.device import HardwareConfig
from arbiter.hardware.recorder import Recorder, Segment, recording
from arbiter.model.architecture import ArchitectureConfig, inputs_of
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import questions_per_block
from arbiter.planning.blocks import BlockShape, block_shape, empty_addresses, empty_batch
from arbiter.training.objective import ObjectiveConfig, compute_loss
from arbiter.training.schedules import ScheduleConfig

_META = torch.device("meta")
_aten = torch.ops.aten


@dataclass(frozen=True)
class Job:
    """Everything that a run's size depends on.

    Attributes:
        encoder: a handle; no weights are loaded.
        shape: the samples.
        device: the kind of device that the model runs on: 'cpu', 'cuda', 'mps' or 'directml'.
    """

    architecture: ArchitectureConfig
    objective: ObjectiveConfig
    optimizer: Any
    schedule: ScheduleConfig
    hardware: HardwareConfig
    encoder: Encoder
    shape: SampleShape
    device: str

    @classmethod
    def of(cls, config: Any, encoder: Encoder, shape: SampleShape, device: str) -> Job:
        """The job of a run's configuration, which has a group for each of these."""
        return cls(
            architecture=config.architecture,
            objective=config.objective,
            optimizer=config.optimizer,
            schedule=config.schedule,
            hardware=config.hardware,
            encoder=encoder,
            shape=shape,
            device=device,
        )

    def with_hardware(self, **changes: object) -> Job:
        """The same job with other settings of its profile."""
        return replace(self, hardware=replace(self.hardware, **changes))

    @property
    def micro_batch_size(self) -> int:
        """Blocks per forward pass; there may be fewer in the whole training split."""
        questions = min(self.shape.mean_questions, self.schedule.questions_per_block)
        blocks = max(1, ceil(self.shape.samples / questions))
        return min(self.hardware.micro_batch_size, self.schedule.batch_size, blocks)

    @property
    def eval_batch_size(self) -> int:
        """Blocks of a validation batch; there may be fewer than asked for."""
        blocks = -(
            -self.shape.evaluated
            // min(round(self.shape.mean_questions) or 1, questions_per_block(self.architecture))
        )
        return max(1, min(self.hardware.eval_batch_size, blocks))

    @property
    def foils(self) -> int:
        """Foils per question."""
        return self.objective.foils.count if self.objective.foils.weight else 0

    @cached_property
    def training_block(self) -> BlockShape:
        """The largest block of training."""
        questions = min(self.shape.questions, self.schedule.questions_per_block)
        return block_shape(self.shape, self.encoder, questions, self.foils, largest=True)

    @cached_property
    def typical_block(self) -> BlockShape:
        """A block of average size."""
        questions = min(self.shape.mean_questions, self.schedule.questions_per_block)
        return block_shape(self.shape, self.encoder, questions, self.foils, largest=False)

    @property
    def evaluation_block(self) -> BlockShape:
        """The largest block of validation; there are no foils."""
        questions = min(self.shape.questions, questions_per_block(self.architecture))
        return block_shape(self.shape, self.encoder, questions, 0, largest=True)

    def model(self, device: torch.device = _META) -> DecisionModel:
        """The run's model."""
        with device:
            return DecisionModel(
                self.architecture,
                self.encoder.spec,
                inputs_of(self.shape.modalities, self.encoder.spec),
                self.hardware.moe_dispatch,
            )


@dataclass(frozen=True)
class Recording:
    """What was recorded of a job.

    Attributes:
        first_step: it leaves the optimizer's state behind.
        step: any later one; it leaves nothing behind.
        validation: one batch.
        weights, moments: bytes of each tensor.
        batch: bytes of a training batch.
    """

    first_step: Segment
    step: Segment
    validation: Segment
    weights: list[int]
    moments: list[int]
    batch: int


def record(job: Job) -> Recording:
    """Run two training steps and a validation batch without data."""
    model = job.model().train()
    optimizer = build(job.optimizer, model=model)
    recorder = Recorder()
    narrow = job.hardware.precision == "bfloat16"
    kept = list(model.state_dict(keep_vars=True).values())
    fused = job.device in ("cpu", "cuda") and job.hardware.attention_kernel != "math"
    segments = []
    for _ in range(2):
        with recording(recorder, [*kept, *_state_tensors(optimizer)], fused, narrow):
            _step(job, model, optimizer, recorder)
        segments.append(recorder.take())
    model.eval()
    with recording(recorder, kept, fused, False), torch.no_grad():
        batch = empty_batch(job.evaluation_block, job.eval_batch_size, job.encoder, _META)
        model(batch)
        del batch
    batch = empty_batch(job.training_block, job.micro_batch_size, job.encoder, _META)
    return Recording(
        *segments,
        recorder.take(),
        _sizes(kept),
        _sizes(_state_tensors(optimizer)),
        sum(_sizes(_tensors(batch))),
    )


def _step(job: Job, model: DecisionModel, optimizer: torch.optim.Optimizer, recorder: Recorder):
    """An optimizer step, as the trainer does it; two micro-batches stand for any number."""
    parts = 2 if job.schedule.batch_size > job.micro_batch_size else 1
    for _ in range(parts):
        _backward(job, model, recorder)
    recorder.label((p.grad for p in model.parameters()), "gradients")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    recorder.label(_state_tensors(optimizer), "moments")
    optimizer.zero_grad(set_to_none=True)
    model.finish_step()


def _backward(job: Job, model: DecisionModel, recorder: Recorder) -> None:
    batch = empty_batch(job.training_block, job.micro_batch_size, job.encoder, _META)
    recorder.label(_tensors(batch), "batch")
    output = model(batch, empty_addresses(batch))
    compute_loss(job.objective, output, batch, 1).total.backward()


def flops_per_sample(job: Job) -> float:
    """Floating point operations of training on a question of average size, forward and backward."""
    return flops_per_block(job, job.typical_block) / job.typical_block.questions


def flops_per_block(job: Job, block: BlockShape) -> int:
    """Of training on a block, forward and backward.

    A multiplication and an addition count as two; only matrix products are counted.
    """
    model = job.model().train()
    counter = FlopCounterMode(display=False, custom_mapping=_PRODUCTS)
    # Attention in plain products, which the counter knows.
    with recording(Recorder(), fused_attention=False), counter:
        batch = empty_batch(block, 1, job.encoder, _META)
        output = model(batch, empty_addresses(batch))
        compute_loss(job.objective, output, batch, 1).total.backward()
    return counter.get_total_flops()


def _grouped_mm_flops(a: torch.Size, b: torch.Size, *_: object, **__: object) -> int:
    """Of rows in groups [N, C] by a matrix each [E, C, D], or [C, N] by [N, D] group by group."""
    return 2 * a[0] * a[1] * b[-1]


_PRODUCTS = {_aten._grouped_mm: _grouped_mm_flops} if hasattr(_aten, "_grouped_mm") else {}


def _tensors(batch: DecisionBatch) -> list[torch.Tensor]:
    """All tensors of a batch."""
    values = [
        *vars(batch).values(),
        *(v for m in batch.media.values() for v in vars(m).values()),
        *(v for t in batch.text_tokens.values() for v in (t.index, t.present)),
        *(v for t in batch.text_tokens.values() for v in vars(t.tokens).values()),
    ]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What an optimizer keeps on the device."""
    entries = (value for state in optimizer.state.values() for value in state.values())
    # Its counts of steps stay on the host.
    return [e for e in entries if isinstance(e, torch.Tensor) and e.device == _META]


def _sizes(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [tensor.untyped_storage().nbytes() for tensor in tensors]
