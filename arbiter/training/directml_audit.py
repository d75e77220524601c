"""An audit of a configuration: which operators of its training step leave DirectML for the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from arbiter.encoders.base import FeatureSpec
from arbiter.features.augment import Augmenter
from arbiter.features.batch import assemble
from arbiter.features.sampler import epoch_blocks
from arbiter.features.synthetic import synthetic_dataset
from arbiter.hardware.directml import Operator, OperatorTrace
from arbiter.model.architecture import ArchitectureConfig, inputs_for
from arbiter.model.decision_model import DecisionModel
from arbiter.training.optimizers import AdamWConfig, DirectMLAdamWConfig
from arbiter.training.settings import Settings
from arbiter.training.steps import micro_batches
from arbiter.training.trainer import Trainer

# Two micro-batches of two blocks of two questions: accumulation and every kind of padding.
_BLOCKS = 4


@dataclass(frozen=True)
class Audit:
    """Operators by name.

    Attributes:
        step: of one optimizer step: forward, losses, backward, clipping, optimizer.
        decision: of one forward pass for a decision.
    """

    step: list[Operator]
    decision: list[Operator]

    def falling_back(self, runs: str = "cpu_fallback") -> dict[str, list[Operator]]:
        """Those that `runs` applies to, by part; parts without any are left out."""
        parts = {"step": self.step, "decision": self.decision}
        found = {part: [o for o in ops if o.runs == runs] for part, ops in parts.items()}
        return {part: operators for part, operators in found.items() if operators}


def audit(architecture: ArchitectureConfig, spec: FeatureSpec, settings: Settings) -> Audit:
    """Trace one step and one decision of a configuration, on the CPU and on synthetic features.

    The model reads every modality that the features have. What a batch holds does not matter to
    which operators are called; of a profile, precision and dispatch do.
    """
    hardware = replace(settings.hardware, micro_batch_size=_BLOCKS // 2, prefetch_batches=0)
    schedule = replace(settings.schedule, batch_size=_BLOCKS, questions_per_block=2, epochs=1)
    optimizer = settings.optimizer
    if type(optimizer) is AdamWConfig:
        # What the recipe makes on such a device; on the CPU, where this is traced, it is another.
        numbers = {k: v for k, v in vars(optimizer).items() if k != "_target_"}
        optimizer = DirectMLAdamWConfig(**numbers)
    settings = replace(settings, hardware=hardware, schedule=schedule, optimizer=optimizer)
    foils = settings.objective.foils.count if settings.objective.foils.weight else 0
    data = synthetic_dataset(spec, _BLOCKS, foils=foils)
    inputs = inputs_for(data.samples, spec)
    with torch.random.fork_rng(devices=[]):
        model = DecisionModel(architecture, spec, inputs, hardware.moe_dispatch)
        trainer = Trainer(model, data, data, Augmenter(False, 0, spec), settings, {})
        return Audit(_trace_step(trainer), _trace_decision(trainer))


def _trace_step(trainer: Trainer) -> list[Operator]:
    """What the trainer does on the device between two batches, optimizer step included."""
    settings = trainer.settings
    work = micro_batches(
        trainer.train, trainer.augmenter, settings.schedule, settings.seed, 1, 0, 0,
        settings.hardware.micro_batch_size, trainer.modality_dropout,
    )  # fmt: skip
    trainer.model.train()
    trace = OperatorTrace()
    for micro in work:
        with trace:
            terms, _, _ = trainer._backward(micro)
            if micro.last:
                trainer._update(micro, terms, [])
    return trace.operators()


@torch.no_grad()
def _trace_decision(trainer: Trainer) -> list[Operator]:
    """What `predict` does on the device for a question."""
    batch = assemble(trainer.train, epoch_blocks(trainer.train, 1, 0, 1)[:1])
    trainer.model.eval()
    trace = OperatorTrace()
    with trace:
        output = trainer.model(batch.to(trainer.device))
        for logits in (output.logits, output.draft_logits):
            logits.float().cpu()
    return trace.operators()
