"""Train one decision model: python -m experiments.train [overrides].

Samples -> features -> model -> training -> calibration -> test -> run directory, in that order.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from arbiter.calibration.calibration import calibrate
from arbiter.config import build, instantiate
from arbiter.console import console
from arbiter.datasets.mix import Mix, load_mix
from arbiter.datasets.shapes import measure
from arbiter.encoders.base import Compute, Encoder
from arbiter.features.augment import Augmenter
from arbiter.features.dataset import index_samples
from arbiter.features.progress import BuildProgress
from arbiter.features.store import FeatureStore
from arbiter.files import new_directory, write_json_atomic, write_text_atomic
from arbiter.foils import attach_foils, bank_texts
from arbiter.hardware.device import AUTO, batches_ahead, device_kind, resolve_device
from arbiter.hardware.distributed import ranks
from arbiter.hardware.kernels import attention_kernel, compile_layers
from arbiter.hardware.telemetry import describe
from arbiter.model.card import model_card
from arbiter.model.decision_model import DecisionModel, count_parameters, inputs_for
from arbiter.model.files import save_model
from arbiter.model.predict import predict, softmax
from arbiter.planning.plan import plan_run, require_fit
from arbiter.planning.table import short_lines
from arbiter.planning.workload import Job
from arbiter.provenance import git_revision, versions
from arbiter.report import choose_gallery, write_report
from arbiter.seeds import derive_seed
from arbiter.training.checkpoint import State
from arbiter.training.evaluation import MajorityBaseline, evaluate_by_source, table
from arbiter.training.interruption import Interruption
from arbiter.training.resume import find_state, settled_values
from arbiter.training.run_directory import Onlooker, RunDirectory
from arbiter.training.tensorboard import TensorBoard
from arbiter.training.trainer import Settings, Trainer
from experiments.app import quote_free_text
from experiments.processes import lead, run_train_app
from experiments.resume import overridden_keys
from experiments.schema import TrainConfig

log = logging.getLogger(__name__)


def main(composed: DictConfig) -> float:
    """One run; returns the best validation accuracy, which sweepers maximise."""
    with RunDirectory(Path(HydraConfig.get().runtime.output_dir)) as run:
        if composed.resume == "auto" and run.finished:
            console.print(f"already finished: {run.path}", markup=False, soft_wrap=True)
            return run.read_summary()["validation"]["accuracy"]
        config: TrainConfig = instantiate(composed)
        state = find_state(run, config.resume)
        if state is not None:
            for key, value in settled_values(state, asdict(config), overridden_keys()).items():
                OmegaConf.update(composed, key, value)
            config = instantiate(composed)
        if config.logging.tensorboard:
            run.listeners.append(TensorBoard(run.path / "tensorboard"))
        run.begin()
        lead(config, state)
        with Interruption(config.checkpoint.max_minutes) as interruption:
            best = train(config, run, state, interruption)
    console.print(f"run directory: {run.path}", markup=False, soft_wrap=True)
    return best


def train(
    config: TrainConfig,
    run: RunDirectory | Onlooker,
    state: State | None,
    interruption: Interruption,
) -> float:
    """The whole chain, from samples to a calibrated model in `run`, going on from `state`.

    Of several processes, all do what comes before the calibration, and the first one the rest.
    """
    device = resolve_device(config.hardware.device)
    kernel = attention_kernel(config.hardware.attention_kernel, device)
    # Even to the same number: only when told one does torch forbid MKL to take fewer threads as it
    # sees fit, and another number of threads is another rounding.
    torch.set_num_threads(config.hardware.num_threads or torch.get_num_threads())
    machine = describe(device)
    log.info("device %s (%s), %d threads", device, machine["name"], machine["threads"])

    # Samples
    samples = load_mix(config.dataset, config.seed)
    sizes = {split: len(part) for split, part in samples.items()}
    log.info("samples: %s", ", ".join(f"{n} {split}" for split, n in sizes.items()))

    # Features
    encoder_device = device
    if config.hardware.encoder_device is not None:
        encoder_device = resolve_device(config.hardware.encoder_device, "hardware.encoder_device")
    compute = Compute(encoder_device, config.hardware.encoder_precision)
    encoder = build(config.encoder, compute=compute)
    perception = encoder.describe()
    if perception["random_weights"]:
        log.warning("encoder: RANDOM WEIGHTS, as asked for; the features carry no knowledge")
    config.hardware.micro_batch_size = fit_memory(config, samples, encoder, device, state)
    hardware, foils = config.hardware, config.objective.foils
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
    kinds = sorted(data["train"].tables)
    fingerprint = store.fingerprint(kinds)

    # Model
    torch.manual_seed(derive_seed(config.seed, "weights"))
    inputs = inputs_for(samples["train"], encoder.spec)
    dispatch = config.hardware.moe_dispatch
    model = DecisionModel(config.architecture, encoder.spec, inputs, dispatch).to(device)
    if hardware.compile:
        compile_layers(model.layers, device)
    parameters = {**count_parameters(model), "frozen": encoder.num_parameters}
    log.info("model: %s trainable parameters, reads %s", f"{parameters['trainable']:,}", inputs)

    # Training
    augment = config.dataset.augment
    augmenter = Augmenter(augment.horizontal_flip, augment.shift_patches, encoder.spec)
    settings = Settings(
        config.seed, config.objective, config.optimizer, config.schedule, config.hardware,
        config.checkpoint, config.guards, config.logging.every_steps,
    )  # fmt: skip
    trainer = Trainer(
        model, data["train"], data["val"], augmenter, settings, asdict(config), ranks()
    )
    identity = {
        "seed": config.seed,
        "git_revision": git_revision(),
        "versions": versions(),
        "machine": machine,
        "encoder": perception,
        "feature_fingerprint": fingerprint,
        "parameters": parameters,
        "samples": sizes,
        "sources": {name: part.to_dict() for name, part in samples.statistics.items()},
    }
    if state is None:
        run.rewind_metrics(0)
        run.log("run", **identity)
    else:
        trainer.restore(state, run)
        log.info("going on from step %d of %d", trainer.step, trainer.total_steps)
    with kernel:
        best = trainer.fit(run, interruption)
    ranks().close()
    if not ranks().first:
        return best.accuracy

    # Calibration, then the official test once, both through the path that `decide` takes
    def scores(split: str, with_media: bool = True):
        size, ahead = config.hardware.eval_batch_size, batches_ahead(config.hardware, device)
        return predict(model, data[split], size, device, ahead, with_media)

    gallery = []
    calibration = calibrate(scores("calibration"), samples["calibration"])
    test = {}
    if samples["test"]:
        seen, blind = scores("test"), scores("test", with_media=False)
        probabilities = softmax(seen.logits, seen.mask, calibration.temperature)
        gallery = choose_gallery(samples["test"], probabilities)
        test = evaluate_by_source(
            samples["test"],
            probabilities,
            softmax(blind.logits, blind.mask, calibration.temperature),
            MajorityBaseline(samples["train"]),
        )
        for line in table(test):
            log.info("%s", line)

    # Run directory
    summary = {
        "status": "finished",
        **identity,
        "train_seconds": trainer.seconds,
        "best_epoch": best.epoch,
        "weights": best.kind,
        "validation": {"accuracy": best.accuracy, "loss": best.loss},
        "calibration": {"samples": calibration.samples, "temperature": calibration.temperature},
        "test": test,
    }
    with new_directory(run.model) as directory:
        codecs = {kind: store.codecs(kind) for kind in kinds}
        save_model(directory, model, encoder, codecs)
        write_json_atomic(directory / "calibration.json", calibration.to_dict())
        write_text_atomic(directory / "README.md", model_card(summary, inputs))
    run.write_summary(summary)
    run.log("final", **summary)
    write_report(run.path, gallery)
    return best.accuracy


def fit_memory(
    config: TrainConfig, samples: Mix, encoder: Encoder, device: torch.device, state: State | None
) -> int:
    """Plan the run's memory before anything takes long; the micro-batch size to train with.

    Raises:
        PlanError: the run would not fit, and budgets are enforced.
    """
    kind = device_kind(config.hardware.device)
    job = Job.of(config, encoder, measure(samples), kind)
    if config.hardware.micro_batch_size == AUTO and state is not None:
        # Another size is another rounding; the run goes on with the one it had.
        job = job.with_hardware(micro_batch_size=state.values["micro_batch_size"])
    plan = plan_run(job, device, ranks().size)
    for line in short_lines(plan):
        log.info("%s", line)
    if config.hardware.enforce_budget:
        require_fit(plan)
    return ranks().share(plan.job.micro_batch_size)


if __name__ == "__main__":
    sys.argv[1:] = quote_free_text(sys.argv[1:], ("resume",))
    run_train_app(main, train)
