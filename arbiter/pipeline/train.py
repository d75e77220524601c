"""The whole chain: samples -> features -> model -> training -> calibration -> test -> files."""

from __future__ import annotations

import logging
from dataclasses import asdict

import torch

from arbiter.features.augment import Augmenter
from arbiter.hardware.device import resolve_device
from arbiter.hardware.distributed import ranks
from arbiter.hardware.kernels import attention_kernel
from arbiter.hardware.telemetry import describe
from arbiter.model.decision_model import count_parameters
from arbiter.pipeline.completion import complete
from arbiter.pipeline.config import TrainConfig
from arbiter.pipeline.preparation import make_model, prepare
from arbiter.provenance import git_revision, versions
from arbiter.training.checkpoint import State
from arbiter.training.interruption import Interruption
from arbiter.training.run_directory import Onlooker, RunDirectory
from arbiter.training.trainer import Settings, Trainer

log = logging.getLogger(__name__)


def train(
    config: TrainConfig,
    run: RunDirectory | Onlooker,
    state: State | None,
    interruption: Interruption,
    default: dict | None = None,
) -> float:
    """Train, calibrate and test a model in `run`, going on from `state`.

    Of several processes, all do what comes before the calibration, and the first one the rest.

    Args:
        default: the configuration that the report compares with.

    Returns:
        The best accuracy on validation.
    """
    device = resolve_device(config.hardware.device)
    # Even to the same number: only when told one does torch forbid MKL to take fewer threads as it
    # sees fit, and another number of threads is another rounding.
    torch.set_num_threads(config.hardware.num_threads or torch.get_num_threads())
    machine = describe(device)
    log.info("device %s (%s), %d threads", device, machine["name"], machine["threads"])

    prepared = prepare(config, device, state)
    model = make_model(config, prepared, device)
    encoder = prepared.encoder
    parameters = {**count_parameters(model), "frozen": encoder.num_parameters}
    log.info(
        "model: %s trainable parameters, reads %s",
        f"{parameters['trainable']:,}",
        ", ".join(model.modalities) or "text only",
    )
    identity = {
        "seed": config.seed,
        "git_revision": git_revision(),
        "versions": versions(),
        "machine": machine,
        "encoder": encoder.describe(),
        "feature_fingerprint": prepared.store.fingerprint(prepared.kinds),
        "parameters": parameters,
        "samples": {split: len(part) for split, part in prepared.samples.items()},
        "sources": {n: part.to_dict() for n, part in prepared.samples.statistics.items()},
    }

    augment = config.dataset.augment
    augmenter = Augmenter(augment.horizontal_flip, augment.shift_patches, encoder.spec)
    settings = Settings(
        config.seed, config.objective, config.optimizer, config.schedule, config.hardware,
        config.checkpoint, config.guards, config.logging.every_steps,
    )  # fmt: skip
    data = prepared.data
    trainer = Trainer(
        model, data["train"], data["val"], augmenter, settings, asdict(config), ranks(),
        identity["feature_fingerprint"],
    )  # fmt: skip
    if state is None:
        run.rewind_metrics(0)
        run.log("run", **identity)
    else:
        trainer.restore(state, run)
        log.info("going on from step %d of %d", trainer.step, trainer.total_steps)
        if trainer.step == trainer.total_steps:
            interruption.lift_limit()
    with attention_kernel(config.hardware.attention_kernel, device):
        best = trainer.fit(run, interruption)
    ranks().close()
    if ranks().first:
        trained = {
            **identity,
            "train_seconds": trainer.seconds,
            "best_epoch": best.epoch,
            "weights": best.kind,
            "validation": {"accuracy": best.accuracy, "loss": best.loss},
        }
        complete(config, prepared, model, trained, run, interruption, default)
    return best.accuracy
