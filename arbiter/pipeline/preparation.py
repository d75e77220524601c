"""What comes before training: samples, features, a model that reads them, and room for it all."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from arbiter.config import build
from arbiter.datasets.mix import Mix, load_mix
from arbiter.datasets.shapes import measure
from arbiter.encoders.base import Compute, Encoder
from arbiter.features.dataset import FeatureDataset, index_samples
from arbiter.features.progress import BuildProgress
from arbiter.features.store import FeatureStore
from arbiter.foils import attach_foils, bank_texts
from arbiter.hardware.device import AUTO, device_kind, encoder_device
from arbiter.hardware.distributed import ranks
from arbiter.hardware.kernels import compile_layers
from arbiter.model.architecture import inputs_for
from arbiter.model.decision_model import DecisionModel
from arbiter.pipeline.config import TrainConfig
from arbiter.planning.plan import plan_run, require_fit
from arbiter.planning.table import plan_lines
from arbiter.planning.workload import Job
from arbiter.seeds import derive_seed
from arbiter.training.checkpoint import State

log = logging.getLogger(__name__)


@dataclass
class Prepared:
    """What a run trains on.

    Attributes:
        samples: by split.
        encoder: released: it describes itself, and holds no weights.
        store: the features.
        data: the splits as rows of the features.
        further_texts: of the foil bank, beside the samples' own; empty without foils.
    """

    samples: Mix
    encoder: Encoder
    store: FeatureStore
    data: dict[str, FeatureDataset]
    further_texts: list[str]

    @property
    def kinds(self) -> list[str]:
        """Kinds of content that there are features of."""
        return sorted(self.data["train"].tables)


def prepare(config: TrainConfig, device: torch.device, state: State | None) -> Prepared:
    """Samples and their features; `config.hardware.micro_batch_size` becomes a number.

    Raises:
        SourceError, EncoderError, StoreError: samples or features cannot be had.
        PlanError: the run would not fit into memory, and budgets are enforced.
    """
    hardware, foils = config.hardware, config.objective.foils
    samples = load_mix(config.dataset, config.seed)
    log.info("samples: %s", ", ".join(f"{len(part)} {name}" for name, part in samples.items()))
    compute = Compute(encoder_device(hardware, device), hardware.encoder_precision)
    encoder = build(config.encoder, compute=compute)
    if encoder.describe()["random_weights"]:
        log.warning("encoder: RANDOM WEIGHTS, as asked for; the features carry no knowledge")
    hardware.micro_batch_size = _fit_memory(config, samples, encoder, device, state)
    further = bank_texts(foils, samples["train"]) if foils.weight else []
    with BuildProgress() as progress:
        store = FeatureStore(
            Path(config.paths.features), encoder, hardware.encoder_batch_size, progress,
            hardware.decode_threads, ranks(),
        )  # fmt: skip
        data = index_samples(samples, store, encoder.spec, further)
    if foils.weight:
        data["train"] = attach_foils(foils, further, data["train"], store)
    encoder.release()
    return Prepared(samples, encoder, store, data, further)


def make_model(config: TrainConfig, prepared: Prepared, device: torch.device) -> DecisionModel:
    """A model with the run's first weights, on its device."""
    spec = prepared.encoder.spec
    torch.manual_seed(derive_seed(config.seed, "weights"))
    inputs = inputs_for(prepared.samples["train"], spec)
    dispatch = config.hardware.moe_dispatch
    model = DecisionModel(config.architecture, spec, inputs, dispatch).to(device)
    if config.hardware.compile:
        compile_layers(model.layers, device)
    return model


def _fit_memory(
    config: TrainConfig, samples: Mix, encoder: Encoder, device: torch.device, state: State | None
) -> int:
    """Plan the run's memory before anything takes long; the micro-batch size to train with."""
    job = Job.of(config, encoder, measure(samples), device_kind(config.hardware.device))
    if config.hardware.micro_batch_size == AUTO and state is not None:
        # Another size is another rounding; the run goes on with the one it had.
        job = job.with_hardware(micro_batch_size=state.values["micro_batch_size"])
    plan = plan_run(job, device, ranks().size)
    for line in plan_lines(plan):
        log.info("%s", line)
    if config.hardware.enforce_budget:
        require_fit(plan)
    return ranks().share(plan.job.micro_batch_size)
