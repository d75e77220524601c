"""The training loop."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from arbiter.calibration.metrics import entropy, summarize
from arbiter.config import build
from arbiter.console import ProgressBar
from arbiter.errors import RunError
from arbiter.features.augment import Augmenter
from arbiter.features.batch import DecisionBatch, assemble
from arbiter.features.dataset import FeatureDataset
from arbiter.features.prefetch import prefetch
from arbiter.features.sampler import epoch_blocks
from arbiter.hardware.device import HardwareConfig
from arbiter.hardware.telemetry import rss_mb, vram_mb
from arbiter.model.decision_model import DecisionModel
from arbiter.model.predict import predict
from arbiter.seeds import derive_seed, generator
from arbiter.training.checkpoint import State, host_copy, optimizer_tensors, save_state
from arbiter.training.objective import ObjectiveConfig, compute_loss
from arbiter.training.run_directory import RunDirectory
from arbiter.training.schedules import ScheduleConfig, lr_factor

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MicroBatch:
    """A part of an optimizer step."""

    batch: DecisionBatch
    step: int
    index: int
    last: bool
    step_questions: int


@dataclass(frozen=True)
class Best:
    """The best epoch so far, by validation accuracy, then validation loss."""

    epoch: int
    accuracy: float
    loss: float
    weights: dict[str, torch.Tensor]

    def beaten_by(self, accuracy: float, loss: float) -> bool:
        """Whether an epoch with these figures is better."""
        return (accuracy, -loss) > (self.accuracy, -self.loss)


class _Totals:
    """Sums over an interval of training."""

    def __init__(self) -> None:
        self.terms: dict[str, float] = defaultdict(float)
        self.steps = self.questions = self.correct = self.draft_correct = 0
        self.wait_seconds = 0.0
        self.started = time.perf_counter()

    def mean(self, term: str) -> float | None:
        """The mean of a loss term over steps; None if it was never computed."""
        return self.terms[term] / self.steps if term in self.terms else None

    @property
    def samples_per_sec(self) -> float:
        """Questions per second of wall-clock time."""
        return self.questions / max(time.perf_counter() - self.started, 1e-9)

    @property
    def accuracy(self) -> float:
        """Share of training questions answered rightly, as they were trained on."""
        return self.correct / max(self.questions, 1)


class Trainer:
    """Trains a model on one dataset and selects an epoch on another.

    Args:
        model: on its device.
        train, val: datasets.
        augmenter: changes training batches.
        objective, optimizer, schedule, hardware: their configs.
        seed: the run's seed.
        every_steps: optimizer steps between 'step' events.
    """

    def __init__(
        self,
        model: DecisionModel,
        train: FeatureDataset,
        val: FeatureDataset,
        augmenter: Augmenter,
        objective: ObjectiveConfig,
        optimizer: object,
        schedule: ScheduleConfig,
        hardware: HardwareConfig,
        seed: int,
        every_steps: int,
    ):
        self.model, self.train, self.val = model, train, val
        self.augmenter, self.objective, self.schedule = augmenter, objective, schedule
        self.hardware, self.seed, self.every_steps = hardware, seed, every_steps
        self.device = next(model.parameters()).device
        self.optimizer = build(optimizer, model=model)
        self._peak_lr, self._max_grad_norm = optimizer.lr, optimizer.max_grad_norm
        blocks = len(epoch_blocks(train, schedule.questions_per_block, seed, 1))
        self.steps_per_epoch = math.ceil(blocks / schedule.batch_size)
        self.total_steps = self.steps_per_epoch * schedule.epochs
        self.step = 0
        self.best: Best | None = None

    def fit(self, run: RunDirectory) -> Best:
        """Train all epochs; the model ends with the best epoch's weights.

        Raises:
            RunError: the loss or the gradient is no longer finite.
        """
        title = f"training, {self.schedule.epochs} epochs"
        with ProgressBar(title, self.total_steps) as bar:
            for epoch in range(1, self.schedule.epochs + 1):
                totals = self._train_epoch(epoch, run, bar)
                train_seconds = time.perf_counter() - totals.started
                self._finish_epoch(epoch, totals, train_seconds, run)
        self.model.load_state_dict(self.best.weights)
        return self.best

    def _train_epoch(self, epoch: int, run: RunDirectory, bar: ProgressBar) -> _Totals:
        self.model.train()
        epoch_totals, window = _Totals(), _Totals()
        waiting_since = time.perf_counter()
        for micro in prefetch(self._micro_batches(epoch), self.hardware.prefetch_batches):
            waited = time.perf_counter() - waiting_since
            terms, correct, draft_correct, questions = self._backward(micro)
            for totals in (epoch_totals, window):
                totals.wait_seconds += waited
                totals.questions += questions
                totals.correct += correct
                totals.draft_correct += draft_correct
                for name, value in terms.items():
                    totals.terms[name] += value
            if micro.last:
                lr, grad_norm = self._update(micro.step)
                epoch_totals.steps += 1
                window.steps += 1
                bar.update(
                    self.step,
                    f"loss {window.mean('cross_entropy'):.3f} acc {window.accuracy:.3f} "
                    f"{window.samples_per_sec:.0f} samples/s",
                )
                if self.step % self.every_steps == 0 or self.step == self.total_steps:
                    run.log("step", **self._step_event(epoch, window, lr, grad_norm))
                    window = _Totals()
            waiting_since = time.perf_counter()
        return epoch_totals

    def _micro_batches(self, epoch: int) -> Iterator[MicroBatch]:
        """The epoch's work in order. What is drawn depends on (seed, step) only."""
        order = epoch_blocks(self.train, self.schedule.questions_per_block, self.seed, epoch)
        first = (epoch - 1) * self.steps_per_epoch
        for step, blocks in enumerate(order.split(self.schedule.batch_size), first):
            draws = self.augmenter.draw(len(blocks), generator(self.seed, "augment", step))
            parts = blocks.split(self.hardware.micro_batch_size)
            for index, part in enumerate(parts):
                start = index * self.hardware.micro_batch_size
                batch = assemble(self.train, part)
                if self.augmenter.active:
                    batch = self.augmenter.apply(batch, draws[start : start + len(part)])
                questions = int((blocks >= 0).sum())
                yield MicroBatch(batch, step, index, index == len(parts) - 1, questions)

    def _backward(self, micro: MicroBatch) -> tuple[dict[str, float], int, int, int]:
        """Accumulate one micro-batch's gradient; its loss terms and counts of right answers."""
        # Dropout is addressed by step, so that a resumed run draws the same numbers.
        torch.manual_seed(derive_seed(self.seed, "dropout", micro.step, micro.index))
        batch = micro.batch.to(self.device)
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.hardware.precision == "bfloat16"
        ):
            output = self.model(batch)
        loss = compute_loss(self.objective, output, batch, micro.step_questions)
        loss.total.backward()
        right = (output.logits.argmax(-1) == batch.answer) & batch.question_mask
        draft_right = (output.draft_logits.argmax(-1) == batch.answer) & batch.question_mask
        figures = torch.stack(
            [*loss.terms.values(), right.sum(), draft_right.sum(), batch.question_mask.sum()]
        ).tolist()
        terms = dict(zip(loss.terms, figures, strict=False))
        return terms, *map(int, figures[-3:])

    def _update(self, step: int) -> tuple[float, float]:
        """One optimizer step; the learning rate and the gradient's norm before clipping."""
        grad_norm = float(
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._max_grad_norm)
        )
        if not math.isfinite(grad_norm):
            raise RunError(
                f"training: the gradient is not finite at step {step}; lower optimizer.lr "
                f"(now {self._peak_lr:g}) or raise schedule.warmup_steps"
            )
        lr = self._peak_lr * lr_factor(self.schedule, step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.finish_step()
        self.step = step + 1
        return lr, grad_norm

    def _step_event(self, epoch: int, window: _Totals, lr: float, grad_norm: float) -> dict:
        loads = torch.stack([layer.moe.load for layer in self.model.layers]).cpu()
        load_entropy = float(-(loads * loads.clamp(min=1e-12).log()).sum(dim=-1).mean())
        elapsed = time.perf_counter() - window.started
        return {
            "step": self.step,
            "epoch": epoch,
            "lr": lr,
            **{name: window.mean(name) for name in window.terms},
            "train_acc": window.accuracy,
            "grad_norm": grad_norm,
            "samples_per_sec": window.samples_per_sec,
            "data_wait_share": window.wait_seconds / elapsed,
            "expert_load_entropy": load_entropy,
            "least_loaded_share": float(loads.min()),
            "rss_mb": rss_mb(),
            "vram_mb": vram_mb(self.device),
        }

    def _finish_epoch(
        self, epoch: int, totals: _Totals, train_seconds: float, run: RunDirectory
    ) -> None:
        """Validate, keep the best weights, log, and write a resume state."""
        started = time.perf_counter()
        predictions = predict(
            self.model, self.val, self.hardware.eval_batch_size, self.device,
            self.hardware.prefetch_batches,
        )  # fmt: skip
        scores = summarize(predictions.probabilities, predictions.answer)
        accuracy, loss = scores["accuracy"], scores["nll"]
        if self.best is None or self.best.beaten_by(accuracy, loss):
            self.best = Best(epoch, accuracy, loss, host_copy(self.model.state_dict()))
        draft = (predictions.draft_logits.argmax(-1) == predictions.answer).mean()
        event = {
            "epoch": epoch,
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": totals.mean("cross_entropy"),
            "train_acc": totals.accuracy,
            "val_loss": loss,
            "val_acc": accuracy,
            "entropy": float(entropy(predictions.probabilities).mean()),
            "margin_loss": totals.mean("margin_loss"),
            "balance_loss": totals.mean("balance_loss"),
            "draft_loss": totals.mean("draft_loss"),
            "distillation_loss": totals.mean("distillation_loss"),
            "draft_acc": float(draft),
            "best_epoch": self.best.epoch,
            "samples_per_sec": totals.questions / train_seconds,
            "train_seconds": train_seconds,
            "eval_seconds": time.perf_counter() - started,
            "rss_mb": rss_mb(),
            "vram_mb": vram_mb(self.device),
            "swa_snapshots": 0,
        }
        run.log("epoch", **event)
        log.info(
            "epoch %d/%d  train loss %.4f acc %.4f  val loss %.4f acc %.4f  draft %.4f  "
            "%.0f samples/s",
            epoch, self.schedule.epochs, event["train_loss"], totals.accuracy, loss, accuracy,
            draft, event["samples_per_sec"],
        )  # fmt: skip
        save_state(run.resume, self.step, self._state(epoch))

    def _state(self, epoch: int) -> State:
        best = {key: value for key, value in asdict(self.best).items() if key != "weights"}
        return State(
            {
                "model": self.model.state_dict(),
                "optimizer": optimizer_tensors(self.optimizer),
                "best": self.best.weights,
            },
            {"epoch": epoch, "step": self.step, "seed": self.seed, "best": best},
        )
