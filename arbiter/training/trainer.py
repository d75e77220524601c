"""The training loop.

What a step does depends on (seed, step) and on the weights alone; what has been summed up so far is
part of a resume state. A run that is stopped anywhere and gone on with is the same run.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from arbiter.config import build
from arbiter.console import ProgressBar
from arbiter.errors import RunError, RunInterrupted
from arbiter.features.augment import Augmenter
from arbiter.features.batch import assemble
from arbiter.features.dataset import FeatureDataset
from arbiter.features.prefetch import prefetch
from arbiter.features.sampler import epoch_blocks
from arbiter.hardware.device import HardwareConfig, autocast, batches_ahead
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import predict
from arbiter.seeds import derive_seed
from arbiter.training.averaging import WeightAverage
from arbiter.training.checkpoint import (
    CheckpointConfig,
    State,
    StateWriter,
    host_copy,
    optimizer_tensors,
    restore_optimizer,
)
from arbiter.training.events import epoch_figures, step_figures, validation_figures
from arbiter.training.guards import Guard, GuardsConfig
from arbiter.training.interruption import Interruption
from arbiter.training.modality_dropout import ModalityDropout
from arbiter.training.objective import ObjectiveConfig, compute_loss
from arbiter.training.preflight import check_gradients
from arbiter.training.run_directory import RunDirectory
from arbiter.training.schedules import ScheduleConfig, lr_factor
from arbiter.training.steps import MicroBatch, micro_batches
from arbiter.training.totals import Totals

log = logging.getLogger(__name__)

_PREFLIGHT_BLOCKS = 4


@dataclass(frozen=True)
class Settings:
    """The configs that training reads, and the run's seed."""

    seed: int
    objective: ObjectiveConfig
    optimizer: object
    schedule: ScheduleConfig
    hardware: HardwareConfig
    checkpoint: CheckpointConfig
    guards: GuardsConfig
    every_steps: int


@dataclass(frozen=True)
class Best:
    """The best weights so far, by validation accuracy, then validation loss.

    Attributes:
        epoch: whose end they are from; for averaged weights, the last one.
        kind: 'last', 'best' (of an earlier epoch) or 'averaged'.
    """

    epoch: int
    accuracy: float
    loss: float
    weights: dict[str, torch.Tensor]
    kind: str = "last"

    def beaten_by(self, accuracy: float, loss: float) -> bool:
        """Whether weights with these figures are better."""
        return (accuracy, -loss) > (self.accuracy, -self.loss)


class Trainer:
    """Trains a model on one dataset and selects weights on another.

    Args:
        model: on its device.
        train, val: datasets.
        augmenter: changes training batches.
        settings: configs and seed.
        config: the run's whole configuration as JSON, kept in resume states.
    """

    def __init__(
        self,
        model: DecisionModel,
        train: FeatureDataset,
        val: FeatureDataset,
        augmenter: Augmenter,
        settings: Settings,
        config: dict,
    ):
        self.model, self.train, self.val = model, train, val
        self.augmenter, self.settings, self.config = augmenter, settings, config
        self.schedule, self.hardware, self.seed = (
            settings.schedule,
            settings.hardware,
            settings.seed,
        )
        self.device = next(model.parameters()).device
        self.modality_dropout = ModalityDropout(settings.objective.modality_dropout)
        self.optimizer = build(settings.optimizer, model=model)
        blocks = len(epoch_blocks(train, self.schedule.questions_per_block, self.seed, 1))
        self.steps_per_epoch = math.ceil(blocks / self.schedule.batch_size)
        self.total_steps = self.steps_per_epoch * self.schedule.epochs
        self.step = 0
        self.best: Best | None = None
        self.average = WeightAverage()
        self._epoch_totals, self._window = Totals(), Totals()
        self.guard = Guard(settings.guards)
        self._last_state = self._started = time.monotonic()

    @property
    def _foils_digest(self) -> str | None:
        return None if self.train.foils is None else self.train.foils.digest

    @property
    def seconds(self) -> float:
        """Wall-clock time of training, in this process and earlier ones."""
        return time.monotonic() - self._started

    # ------------------------------------------------------------ the run

    def fit(self, run: RunDirectory, interruption: Interruption) -> Best:
        """Train what is left of all epochs; the model ends with the selected weights.

        Raises:
            RunError: the gradient stays not finite, or the device computes a wrong one.
            RunInterrupted: the run was asked to stop; a state has been written.
        """
        self._preflight()
        writer = StateWriter(run.resume)
        title = f"training, {self.schedule.epochs} epochs"
        interruption.defer(True)
        try:
            with ProgressBar(title, self.total_steps) as bar:
                while self.step < self.total_steps:
                    self._train_epoch(run, writer, interruption, bar)
        finally:
            interruption.defer(False)
            writer.close()
        self._consider_average()
        if self.best.kind == "last" and self.best.epoch < self.schedule.epochs:
            self.best = replace(self.best, kind="best")
        self.model.load_state_dict(self.best.weights)
        return self.best

    def _preflight(self) -> None:
        """Check a device's gradients before the first step that this process does on it."""
        if self.hardware.preflight and self.device.type != "cpu" and self.step < self.total_steps:
            blocks = epoch_blocks(self.train, 2, self.seed, 1)[:_PREFLIGHT_BLOCKS]
            batch = assemble(self.train, blocks)
            check_gradients(self.model, batch, self.settings.objective, self.device)

    def restore(self, state: State, run: RunDirectory) -> None:
        """Go on from a state.

        Raises:
            RunError: the run had other foils.
        """
        values = state.values
        if values.get("foils") != self._foils_digest:
            raise RunError(
                "resume: the foils are not those that the run began with; restore the samples and "
                "objective.foils.vocabulary, or start a new run"
            )
        self.model.load_state_dict(state.tensors["model"])
        restore_optimizer(self.optimizer, state.tensors["optimizer"])
        self.step = values["step"]
        self._started = time.monotonic() - values["seconds"]
        if "best" in state.tensors:
            self.best = Best(weights=state.tensors["best"], **values["best"])
        self.average = WeightAverage(state.tensors.get("average"), values["snapshots"])
        self._epoch_totals = Totals(values["epoch_totals"])
        self._window = Totals(values["window"])
        self.guard = Guard(self.settings.guards, values["bad_steps"], values["running_loss"])
        run.rewind_metrics(values["metrics_bytes"])

    def _state(self, run: RunDirectory) -> State:
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer),
        }
        values = {
            "config": self.config,
            "step": self.step,
            "steps_per_epoch": self.steps_per_epoch,
            "seconds": self.seconds,
            "snapshots": self.average.snapshots,
            "epoch_totals": self._epoch_totals.to_dict(),
            "window": self._window.to_dict(),
            "bad_steps": self.guard.bad_steps,
            "running_loss": self.guard.running_loss,
            "metrics_bytes": run.metrics_size(),
            "foils": self._foils_digest,
        }
        if self.best is not None:
            tensors["best"] = self.best.weights
            values["best"] = {k: v for k, v in vars(self.best).items() if k != "weights"}
        if self.average.snapshots:
            tensors["average"] = self.average.mean
        return State(tensors, values)

    def _save(self, run: RunDirectory, writer: StateWriter) -> None:
        writer.submit(self.step, self._state(run))
        self._last_state = time.monotonic()

    # ------------------------------------------------------------ an epoch

    def _train_epoch(
        self, run: RunDirectory, writer: StateWriter, interruption: Interruption, bar: ProgressBar
    ) -> None:
        """The rest of the epoch that the next step belongs to."""
        self.model.train()
        epoch = self.step // self.steps_per_epoch + 1
        epoch_ends = epoch * self.steps_per_epoch
        waiting_since = time.perf_counter()
        loss = 0.0
        work = micro_batches(
            self.train, self.augmenter, self.schedule, self.seed, epoch,
            epoch_ends - self.steps_per_epoch, self.step, self.hardware.micro_batch_size,
            self.modality_dropout,
        )  # fmt: skip
        for micro in prefetch(work, batches_ahead(self.hardware, self.device)):
            waited = time.perf_counter() - waiting_since
            terms, questions, correct = self._backward(micro)
            loss += terms["cross_entropy"]
            for totals in (self._epoch_totals, self._window):
                totals.add(terms, questions, correct, waited)
            if micro.last:
                lr, grad_norm = self._update(micro, loss)
                loss = 0.0
                self._show(bar)
                if self.step % self.settings.every_steps == 0 or self.step == self.total_steps:
                    run.log(
                        "step",
                        step=self.step,
                        epoch=epoch,
                        lr=lr,
                        grad_norm=grad_norm,
                        **step_figures(self._window, self.model, self.device),
                    )
                    self._window = Totals()
                if self.step < epoch_ends:
                    self._save_if_due(run, writer, interruption)
            waiting_since = time.perf_counter()
        self._finish_epoch(epoch, run)
        self._save(run, writer)
        self._stop_if_asked(writer, interruption)

    def _save_if_due(
        self, run: RunDirectory, writer: StateWriter, interruption: Interruption
    ) -> None:
        checkpoint = self.settings.checkpoint
        minutes = (time.monotonic() - self._last_state) / 60
        by_step = checkpoint.every_steps and self.step % checkpoint.every_steps == 0
        stop = interruption.reason is not None
        if stop or by_step or minutes >= checkpoint.every_minutes:
            self._save(run, writer)
        if stop:
            self._stop_if_asked(writer, interruption)

    def _stop_if_asked(self, writer: StateWriter, interruption: Interruption) -> None:
        if interruption.reason is not None and self.step < self.total_steps:
            writer.wait()
            raise RunInterrupted(f"interrupted at step {self.step}: {interruption.reason}")

    # ------------------------------------------------------------ a step

    def _backward(self, micro: MicroBatch) -> tuple[dict[str, float], int, int]:
        """Accumulate one micro-batch's gradient; its loss terms, questions and right answers."""
        # Dropout is addressed by step, so that a resumed run draws the same numbers.
        torch.manual_seed(derive_seed(self.seed, "dropout", micro.step, micro.index))
        batch = micro.batch.to(self.device)
        with autocast(self.device, self.hardware.precision):
            output = self.model(batch)
        loss = compute_loss(self.settings.objective, output, batch, micro.step_questions)
        loss.total.backward()
        right = (output.logits.argmax(-1) == batch.answer) & batch.question_mask
        # One transfer for all figures: each would be a device synchronisation of its own.
        figures = torch.stack(
            [*loss.terms.values(), right.sum(), batch.question_mask.sum()]
        ).tolist()
        terms = dict(zip(loss.terms, figures, strict=False))
        return terms, int(figures[-1]), int(figures[-2])

    def _update(self, micro: MicroBatch, loss: float) -> tuple[float, float | None]:
        """One optimizer step; the learning rate and the gradient's norm before clipping.

        A gradient that is not finite is dropped, and the step with it.
        """
        config = self.settings.optimizer
        lr = config.lr * lr_factor(self.schedule, micro.step, self.steps_per_epoch)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.guard.allows(micro.step, loss, norm, self._sample_names(micro)):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.finish_step()
        self.step = micro.step + 1
        self._epoch_totals.steps += 1
        self._window.steps += 1
        return lr, norm if math.isfinite(norm) else None

    def _sample_names(self, micro: MicroBatch) -> str:
        """The first samples of a micro-batch, for messages."""
        chosen = micro.batch.sample[micro.batch.sample >= 0][:4].tolist()
        samples = [self.train.samples[i] for i in chosen]
        return ", ".join(f"{s.source} {s.id}" for s in samples) + ", ..."

    # ------------------------------------------------------------ figures

    def _show(self, bar: ProgressBar) -> None:
        window = self._window
        loss = window.mean("cross_entropy")
        bar.update(
            self.step,
            f"loss {loss:.3f} acc {window.accuracy:.3f} {window.samples_per_sec:.0f} samples/s",
        )

    def _validate(self) -> dict:
        """Figures of the model, as it is, on the validation split."""
        predictions = predict(
            self.model, self.val, self.hardware.eval_batch_size, self.device,
            batches_ahead(self.hardware, self.device),
        )  # fmt: skip
        if not np.isfinite(predictions.logits).all():
            raise RunError(
                f"training: the model's scores are not finite after step {self.step}; lower "
                f"optimizer.lr (now {self.settings.optimizer.lr:g}) or raise schedule.warmup_steps"
            )
        return validation_figures(predictions, self.val)

    def _finish_epoch(self, epoch: int, run: RunDirectory) -> None:
        """Validate, keep the best weights, take a snapshot if averaging has begun, and log."""
        totals, self._epoch_totals = self._epoch_totals, Totals()
        train_seconds = totals.seconds
        started = time.perf_counter()
        figures = self._validate()
        eval_seconds = time.perf_counter() - started
        accuracy, loss = figures["val_acc"], figures["val_loss"]
        if self.best is None or self.best.beaten_by(accuracy, loss):
            self.best = Best(epoch, accuracy, loss, host_copy(self.model.state_dict()))
        start = self.schedule.swa.start_epoch
        if start is not None and epoch >= start:
            self.average.add(self.model.state_dict())
        event = {
            "epoch": epoch,
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            **figures,
            **epoch_figures(totals, train_seconds, self.device),
            "eval_seconds": eval_seconds,
            "seconds_left": (train_seconds + eval_seconds) * (self.schedule.epochs - epoch),
            "best_epoch": self.best.epoch,
            "swa_snapshots": self.average.snapshots,
        }
        run.log("epoch", **event)
        log.info(
            "epoch %d/%d  train loss %.4f acc %.4f  val loss %.4f acc %.4f  draft %.4f  "
            "%.0f samples/s",
            epoch, self.schedule.epochs, totals.mean("cross_entropy"), totals.accuracy, loss,
            accuracy, figures["draft_acc"], event["samples_per_sec"],
        )  # fmt: skip

    def _consider_average(self) -> None:
        """Evaluate the averaged weights; they win if they are at least as good on validation."""
        if not self.average.snapshots:
            return
        self.model.load_state_dict(self.average.mean)
        figures = self._validate()
        accuracy, loss = figures["val_acc"], figures["val_loss"]
        log.info(
            "average of %d snapshots  val loss %.4f acc %.4f",
            self.average.snapshots, loss, accuracy,
        )  # fmt: skip
        if (accuracy, -loss) >= (self.best.accuracy, -self.best.loss):
            self.best = Best(self.schedule.epochs, accuracy, loss, self.average.mean, "averaged")
