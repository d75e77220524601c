"""The training loop.

What a step does depends on (seed, step) and on the weights alone; what has been summed up so far is
part of a resume state. A run that is stopped anywhere and gone on with is the same run.
"""

from __future__ import annotations

import json
import logging
import math
import time
from functools import cached_property

import torch

from arbiter.config import build
from arbiter.console import ProgressBar
from arbiter.errors import RunError
from arbiter.features.augment import Augmenter
from arbiter.features.batch import assemble
from arbiter.features.dataset import FeatureDataset
from arbiter.features.prefetch import prefetch
from arbiter.features.sampler import epoch_blocks
from arbiter.hardware.device import autocast, batches_ahead
from arbiter.hardware.distributed import ALONE, Ranks
from arbiter.hardware.memory import OutOfMemory, noticing_out_of_memory, release_cached
from arbiter.model.decision_model import DecisionModel
from arbiter.model.dropout import DropoutAddresses
from arbiter.seeds import derive_seed
from arbiter.training.checkpoint import (
    State,
    keep_states,
    optimizer_tensors,
    restore_optimizer,
)
from arbiter.training.events import epoch_figures, log_epoch, step_figures
from arbiter.training.exchange import sum_step
from arbiter.training.guards import Guard
from arbiter.training.interruption import Interruption
from arbiter.training.modality_dropout import ModalityDropout
from arbiter.training.objective import compute_loss
from arbiter.training.preflight import check_gradients, choose_blocks
from arbiter.training.run_directory import RunDirectory
from arbiter.training.same_data import describe_data, require_same_data
from arbiter.training.saving import Saving
from arbiter.training.schedules import extendable_until, lr_factor
from arbiter.training.selection import Best, Selection
from arbiter.training.settings import Settings
from arbiter.training.steps import MicroBatch, micro_batches, sample_names
from arbiter.training.totals import Totals
from arbiter.training.validation import validate

log = logging.getLogger(__name__)

_PREFLIGHT_BLOCKS = 4


class Trainer:
    """Trains a model on one dataset and selects weights on another.

    Args:
        model: on its device.
        train, val: datasets.
        augmenter: changes training batches.
        settings: configs and seed.
        config: the run's whole configuration as JSON, kept in resume states.
        ranks: the processes that train together, each with such a trainer.
        features: the fingerprint of the datasets' features.
    """

    def __init__(
        self,
        model: DecisionModel,
        train: FeatureDataset,
        val: FeatureDataset,
        augmenter: Augmenter,
        settings: Settings,
        config: dict,
        ranks: Ranks = ALONE,
        features: str | None = None,
    ):
        self.model, self.train, self.val = model, train, val
        self.augmenter, self.settings, self.config = augmenter, settings, config
        self.schedule, self.hardware = settings.schedule, settings.hardware
        self.seed, self.ranks = settings.seed, ranks
        self._features = features
        self.device = next(model.parameters()).device
        self.modality_dropout = ModalityDropout(settings.objective.modality_dropout)
        self.optimizer = build(settings.optimizer, model=model)
        blocks = len(epoch_blocks(train, self.schedule.questions_per_block, self.seed, 1))
        self.steps_per_epoch = math.ceil(blocks / self.schedule.batch_size)
        self.total_steps = self.steps_per_epoch * self.schedule.epochs
        self.step = 0
        self._micro_batch_size = self._smallest(self.hardware.micro_batch_size)
        self.selection = Selection(self.schedule.swa.start_epoch)
        self._epoch_totals, self._window = Totals(), Totals()
        self.guard = Guard(settings.guards)
        self._started = time.monotonic()

    @cached_property
    def _data(self) -> dict:
        return describe_data(self.train, self.val, self._features, self.steps_per_epoch)

    @property
    def _extendable_until(self) -> int:
        return extendable_until(self.schedule, self.steps_per_epoch)

    @property
    def seconds(self) -> float:
        """Wall-clock time of training, in this process and earlier ones."""
        return time.monotonic() - self._started

    # ------------------------------------------------------------ the run

    def _smallest(self, micro_batch_size: int) -> int:
        """Blocks of a forward pass: no more than leave every process something to do."""
        return min(micro_batch_size, math.ceil(self.schedule.batch_size / self.ranks.size))

    @property
    def _epoch_is_open(self) -> bool:
        """Whether an epoch's steps are done, and its end is still to come."""
        totals = self._epoch_totals
        return totals.steps + totals.skipped > 0 and self.step % self.steps_per_epoch == 0

    def fit(self, run: RunDirectory, interruption: Interruption) -> Best:
        """Train what is left of all epochs; the model ends with the selected weights.

        Raises:
            RunError: the gradient stays not finite, or the device computes a wrong one.
            RunInterrupted: the run was asked to stop; a state has been written.
        """
        self.ranks.share_(list(self.model.state_dict().values()))
        self._preflight()
        title = f"training, {self.schedule.epochs} epochs"
        saving = Saving(
            self.settings.checkpoint, run.resume, interruption, self.ranks,
            lambda: (self.step, self._state(run)),
        )  # fmt: skip
        with saving, ProgressBar(title, self.total_steps) as bar:
            while self.step < self.total_steps or self._epoch_is_open:
                try:
                    self._train_epoch(run, saving, bar)
                except OutOfMemory as error:
                    problem = str(error)
                else:
                    continue
                # Outside, because the error holds on to everything that the step had in memory.
                self._halve(problem)
        if self.selection.average.snapshots:
            self.model.load_state_dict(self.selection.average.mean)
            self.selection.consider_average(self.schedule.epochs, self._validate())
        best = self.selection.settle(self.schedule.epochs)
        self.model.load_state_dict(best.weights)
        return best

    def _halve(self, problem: str) -> None:
        """Have the step that ran out of memory done again, in smaller parts.

        Raises:
            RunError: there is nothing smaller, or other processes count on this size.
        """
        smaller = -(-self._micro_batch_size // 2)
        if self._micro_batch_size == 1 or self.ranks.size > 1:
            raise RunError(
                f"training: out of memory at step {self.step + 1} with micro-batches of "
                f"{self._micro_batch_size} ({problem}); lower hardware.micro_batch_size, or take "
                "a smaller model"
            )
        log.warning(
            "out of memory at step %d with micro-batches of %d; going on with %d (%s)",
            self.step + 1, self._micro_batch_size, smaller, problem,
        )  # fmt: skip
        self._micro_batch_size = smaller
        self.optimizer.zero_grad(set_to_none=True)
        for layer in self.model.layers:
            layer.moe.choices.zero_()
        release_cached(self.device)

    def _preflight(self) -> None:
        """Check a device's gradients before the first step that this process does on it."""
        if self.hardware.preflight and self.device.type != "cpu" and self.step < self.total_steps:
            # No larger than a micro-batch, which is what memory was planned for.
            questions = min(2, self.schedule.questions_per_block)
            count = min(_PREFLIGHT_BLOCKS, self._micro_batch_size)
            batch = assemble(self.train, choose_blocks(self.train, questions, count, self.seed))
            check_gradients(self.model, batch, self.settings.objective, self.device)

    def restore(self, state: State, run: RunDirectory) -> None:
        """Go on from a state.

        Raises:
            RunError: the run had other data.
        """
        values = state.values
        # States of earlier versions do not say what they were trained on.
        require_same_data(values.get("data", self._data), self._data)
        self.model.load_state_dict(state.tensors["model"])
        restore_optimizer(self.optimizer, state.tensors["optimizer"])
        self.step = values["step"]
        self._started = time.monotonic() - values["seconds"]
        self.selection.restore(state)
        self._epoch_totals = Totals(values["epoch_totals"])
        self._window = Totals(values["window"])
        self.guard = Guard(
            self.settings.guards, values["bad_steps"], values["running_loss"],
            values.get("skipped_steps", 0),
        )  # fmt: skip
        if self.ranks.first:
            keep_states(run.resume, self.step, self._extendable_until)
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
            "extendable_until": self._extendable_until,
            "seconds": self.seconds,
            "epoch_totals": self._epoch_totals.to_dict(),
            "window": self._window.to_dict(),
            "bad_steps": self.guard.bad_steps,
            "skipped_steps": self.guard.skipped_steps,
            "running_loss": self.guard.running_loss,
            "metrics_bytes": run.metrics_size(),
            "data": self._data,
            "micro_batch_size": self._micro_batch_size,
        }
        state = State(tensors, values)
        self.selection.save(state)
        return state

    # ------------------------------------------------------------ an epoch

    def _train_epoch(self, run: RunDirectory, saving: Saving, bar: ProgressBar) -> None:
        """The rest of the epoch that the next step belongs to."""
        self.model.train()
        epoch = self.step // self.steps_per_epoch + (not self._epoch_is_open)
        epoch_ends = epoch * self.steps_per_epoch
        step_since = waiting_since = time.perf_counter()
        figures, suspects = Totals(), []
        work = micro_batches(
            self.train, self.augmenter, self.schedule, self.seed, epoch,
            epoch_ends - self.steps_per_epoch, self.step, self._micro_batch_size,
            self.modality_dropout, self.ranks,
        )  # fmt: skip
        for micro in prefetch(work, batches_ahead(self.hardware, self.device)):
            waited = time.perf_counter() - waiting_since
            if micro.batch is not None:
                with noticing_out_of_memory():
                    added = self._backward(micro)
                figures.add(*added, waited)
                if not all(map(math.isfinite, added[0].values())):
                    suspects += micro.samples
            if micro.last:
                sum_step(self.model, figures, self.ranks)
                lr, grad_norm, taken = self._update(micro, figures.terms, suspects)
                figures.seconds = time.perf_counter() - step_since
                for totals in (self._epoch_totals, self._window):
                    totals.add_step(figures, taken)
                figures, suspects = Totals(), []
                self._show(bar)
                if self.step % self.settings.every_steps == 0 or self.step == self.total_steps:
                    run.log(
                        "step",
                        step=self.step,
                        epoch=epoch,
                        lr=lr,
                        grad_norm=grad_norm,
                        skipped_steps=self.guard.skipped_steps,
                        **step_figures(self._window, self.model, self.device),
                    )
                    self._window = Totals()
                saving.end_step(self.step)
                step_since = time.perf_counter()
            waiting_since = time.perf_counter()
        self._finish_epoch(epoch, run)
        saving.end_epoch(self.step)

    # ------------------------------------------------------------ a step

    def _backward(self, micro: MicroBatch) -> tuple[dict[str, float], int, int]:
        """Accumulate one micro-batch's gradient; its loss terms, questions and right answers."""
        # Addressed by step and sample: neither a resume nor another micro-batch draws others.
        dropout = DropoutAddresses.of(micro.batch, derive_seed(self.seed, "dropout", micro.step))
        dropout, batch = dropout.to(self.device), micro.batch.to(self.device)
        with autocast(self.device, self.hardware.precision):
            output = self.model(batch, dropout)
        loss = compute_loss(self.settings.objective, output, batch, micro.step_questions)
        loss.total.backward()
        right = (output.logits.argmax(-1) == batch.answer) & batch.question_mask
        # One transfer for all figures: each would be a device synchronisation of its own.
        figures = torch.stack(
            [*loss.terms.values(), right.sum(), batch.question_mask.sum()]
        ).tolist()
        terms = dict(zip(loss.terms, figures, strict=False))
        return terms, int(figures[-1]), int(figures[-2])

    def _lr(self, step: int) -> float:
        """The learning rate of a step."""
        return self.settings.optimizer.lr * lr_factor(self.schedule, step, self.steps_per_epoch)

    def _update(
        self, micro: MicroBatch, terms: dict[str, float], suspects: list[int]
    ) -> tuple[float, float | None, bool]:
        """One optimizer step: learning rate, the gradient's norm before clipping, whether taken.

        A loss or gradient that is not finite is dropped, and the step with it.

        Args:
            terms: the step's loss terms.
            suspects: samples of this process's micro-batches that had no finite loss.
        """
        config = self.settings.optimizer
        lr = self._lr(micro.step)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        taken = self.guard.allows(
            micro.step + 1, terms, norm, lambda: self._to_blame(micro, suspects)
        )
        if taken:
            self._step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.finish_step()
        self.step = micro.step + 1
        return lr, norm if math.isfinite(norm) else None, taken

    def _step(self) -> None:
        """Let the optimizer change the weights.

        Raises:
            RunError: memory ran out for it. Some weights may be new, so it cannot be done again.
        """
        try:
            with noticing_out_of_memory():
                self.optimizer.step()
        except OutOfMemory as error:
            raise RunError(
                f"training: out of memory in the optimizer at step {self.step + 1} ({error}); "
                "lower hardware.micro_batch_size, or take a smaller model"
            ) from None

    def _to_blame(self, micro: MicroBatch, suspects: list[int]) -> str:
        """Names the suspects of all processes, or the whole step's samples if there are none.

        Every process must ask; they do, because all judge a step by the same numbers.
        """
        parts = self.ranks.all_bytes(json.dumps(suspects).encode())
        found = [row for part in parts for row in json.loads(part)]
        return sample_names(self.train, found or micro.step_samples.tolist())

    # ------------------------------------------------------------ figures

    def _show(self, bar: ProgressBar) -> None:
        window, text = self._window, "step skipped"
        if window.steps:
            text = (
                f"loss {window.mean('cross_entropy'):.3f} acc {window.accuracy:.3f} "
                f"{window.samples_per_sec:.0f} samples/s"
            )
        bar.update(self.step, text)

    def _validate(self) -> dict:
        """Figures of the model, as it is, on the validation split."""
        return validate(
            self.model, self.val, self.hardware, self.device,
            f"after step {self.step}; lower optimizer.lr (now {self.settings.optimizer.lr:g}) or "
            "raise schedule.warmup_steps",
            self.ranks,
        )  # fmt: skip

    def _finish_epoch(self, epoch: int, run: RunDirectory) -> None:
        """Validate, keep the best weights, take a snapshot if averaging has begun, and log."""
        totals = self._epoch_totals
        started = time.perf_counter()
        figures = self._validate()
        eval_seconds = time.perf_counter() - started
        self.selection.end_epoch(epoch, figures, self.model.state_dict())
        self._epoch_totals = Totals()
        event = {
            "epoch": epoch,
            "step": self.step,
            "lr": self._lr(self.step - 1),
            "skipped_steps": self.guard.skipped_steps,
            **figures,
            **epoch_figures(totals, self.device),
            "eval_seconds": eval_seconds,
            "seconds_left": (totals.seconds + eval_seconds) * (self.schedule.epochs - epoch),
            "best_epoch": self.selection.best.epoch,
            "swa_snapshots": self.selection.average.snapshots,
        }
        run.log("epoch", **event)
        log_epoch(event, self.schedule.epochs)
