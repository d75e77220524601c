"""Training itself: it learns, and the hardware profile does not change what."""

import contextlib
import json
import math
import re
import time
from dataclasses import replace

import pytest
import torch

from arbiter.errors import ProcessLost, RunError, RunInterrupted
from arbiter.features.augment import Augmenter
from arbiter.features.sampler import epoch_blocks
from arbiter.hardware.device import HardwareConfig
from arbiter.hardware.distributed import ALONE
from arbiter.model.decision_model import DecisionModel
from arbiter.training.checkpoint import CheckpointConfig, list_states, load_newest_state
from arbiter.training.guards import GuardsConfig
from arbiter.training.interruption import Interruption
from arbiter.training.objective import MarginConfig, ObjectiveConfig
from arbiter.training.optimizers import AdamWConfig
from arbiter.training.run_directory import RunDirectory
from arbiter.training.schedules import ScheduleConfig, SWAConfig
from arbiter.training.steps import sample_names
from arbiter.training.trainer import Settings, Trainer
from tests.conftest import make_model
from tests.events import without_clock


def make_trainer(
    dataset, encoder, epochs=6, lr=5e-3, schedule=None, checkpoint=None, objective=None,
    architecture=None, eps=1e-8, ranks=ALONE, every_steps=1, val=None, features=None, **hardware
):  # fmt: skip
    profile = HardwareConfig(device="cpu", **hardware)
    settings = Settings(
        seed=0,
        objective=objective or ObjectiveConfig(margin=MarginConfig(weight=0.2)),
        optimizer=AdamWConfig(lr=lr, eps=eps),
        schedule=ScheduleConfig(
            epochs=epochs,
            **{"batch_size": 3, "questions_per_block": 2, "warmup_steps": 3, **(schedule or {})},
        ),
        hardware=profile,
        checkpoint=CheckpointConfig(**(checkpoint or {})),
        guards=GuardsConfig(max_bad_steps=3),
        every_steps=every_steps,
    )
    model = make_model(dataset, encoder, profile.moe_dispatch, **(architecture or {}))
    augmenter = Augmenter(True, 1, encoder.spec)
    val = dataset if val is None else val
    return Trainer(model, dataset, val, augmenter, settings, {}, ranks, features)


def run(dataset, encoder, path, **options):
    trainer = make_trainer(dataset, encoder, **options)
    with RunDirectory(path) as directory:
        best = trainer.fit(directory, Interruption())
    return trainer, best, read_events(path)


def read_events(path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def losses(events) -> torch.Tensor:
    return torch.tensor([e["cross_entropy"] for e in events if e["event"] == "step"])


def test_it_learns_by_heart(dataset, encoder, tmp_path):
    _, best, events = run(dataset, encoder, tmp_path, epochs=60)
    epochs = [e for e in events if e["event"] == "epoch"]
    assert epochs[0]["val_acc"] < 0.9
    assert best.accuracy == max(e["val_acc"] for e in epochs) == 1.0
    assert epochs[-1]["best_epoch"] == best.epoch


@pytest.mark.parametrize(
    "profile",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 4},
        {"moe_dispatch": "dense"},
        {"prefetch_batches": 3},
    ],
    ids=str,
)
def test_the_profile_does_not_change_the_loss_curve(dataset, encoder, tmp_path, profile):
    *_, reference = run(dataset, encoder, tmp_path / "a")
    *_, other = run(dataset, encoder, tmp_path / "b", **profile)
    torch.testing.assert_close(losses(other), losses(reference), atol=2e-4, rtol=1e-3)


def test_the_same_run_twice_is_the_same_to_the_bit(dataset, encoder, tmp_path):
    first, *_ = run(dataset, encoder, tmp_path / "a")
    second, *_ = run(dataset, encoder, tmp_path / "b")
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_the_best_epochs_weights_are_kept(dataset, encoder, tmp_path):
    trainer, best, _ = run(dataset, encoder, tmp_path)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, best.weights[name])


def test_gradients_that_stay_not_finite_stop_the_run(dataset, encoder, tmp_path, caplog):
    with pytest.raises(RunError, match=r"3 steps in a row .* lower optimizer\.lr"):
        run(dataset, encoder, tmp_path, lr=1e30)
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "failed"
    assert "no finite loss or gradient; skipped; samples squares" in caplog.text


def test_weights_that_are_not_finite_stop_the_run_at_validation(dataset, encoder, tmp_path):
    trainer = make_trainer(dataset, encoder, epochs=1)
    train_epoch = trainer._validate

    def spoiled():
        with torch.no_grad():
            trainer.model.head.mlp_out.weight.fill_(float("inf"))
        return train_epoch()

    trainer._validate = spoiled
    with pytest.raises(RunError, match="scores are not finite after step"):  # noqa: SIM117
        with RunDirectory(tmp_path) as directory:
            trainer.fit(directory, Interruption())


def blocks_of_steps(dataset) -> tuple[torch.Tensor, ...]:
    """The blocks of each step of the first epoch."""
    return epoch_blocks(dataset, 2, 0, 1).split(3)


def test_one_bad_step_is_skipped_and_the_run_goes_on(dataset, encoder, tmp_path, caplog):
    trainer = make_trainer(dataset, encoder, epochs=2)
    backward = trainer._backward
    before, after = [], []

    def poisoned(micro):
        result = backward(micro)
        if micro.step == 1:
            before.append({n: p.clone() for n, p in trainer.model.named_parameters()})
            next(trainer.model.parameters()).grad.fill_(float("nan"))
        elif micro.step == 2:
            after.append({n: p.clone() for n, p in trainer.model.named_parameters()})
        return result

    trainer._backward = poisoned
    with RunDirectory(tmp_path) as directory:
        trainer.fit(directory, Interruption())
    for name, parameter in before[0].items():
        assert torch.equal(parameter, after[0][name]), name
    steps = [e for e in read_events(tmp_path) if e["event"] == "step"]
    assert steps[1]["grad_norm"] is None and steps[2]["grad_norm"] > 0
    named = [sample_names(dataset, b[b >= 0].tolist()) for b in blocks_of_steps(dataset)]
    assert f"step 2: no finite loss or gradient; skipped; samples {named[1]}\n" in caplog.text


def spoil(monkeypatch, row):
    """From now on no training pass over the sample of this row has finite scores."""
    forward = DecisionModel.forward

    def spoiled(self, batch, dropout=None):
        output = forward(self, batch, dropout)
        if self.training and bool((batch.sample == row).any()):
            output = replace(output, logits=output.logits * math.nan)
        return output

    monkeypatch.setattr(DecisionModel, "forward", spoiled)


def test_a_step_without_a_finite_loss_enters_no_mean_and_no_state(
    dataset, encoder, tmp_path, monkeypatch
):
    spoil(monkeypatch, row=4)
    options = {"epochs": 3, "checkpoint": {"every_steps": 1}}
    *_, events = run(dataset, encoder, tmp_path / "a", **options)
    trainer, _ = run_with_stops(dataset, encoder, tmp_path / "b", [2, 3, 6, 9], **options)
    assert without_clock(read_events(tmp_path / "b")) == without_clock(events)
    steps = [e for e in events if e["event"] == "step"]
    for number, epoch in enumerate((e for e in events if e["event"] == "epoch"), 1):
        own = [e["cross_entropy"] for e in steps if e["epoch"] == number]
        taken = [loss for loss in own if loss is not None]
        assert (len(own), len(taken)) == (4, 3)
        assert epoch["train_loss"] == pytest.approx(sum(taken) / 3)
        assert 0 <= epoch["train_acc"] <= 1
        assert epoch["skipped_steps"] == number
    assert steps[-1]["skipped_steps"] == trainer.guard.skipped_steps == 3


@pytest.mark.parametrize("size", [1, 2])
def test_the_log_names_the_micro_batches_without_a_finite_loss(
    dataset, encoder, tmp_path, monkeypatch, caplog, size
):
    step, (blocks,) = next(
        (i, [b for b in step.split(size) if (b == 4).any()])
        for i, step in enumerate(blocks_of_steps(dataset), 1)
        if (step == 4).any()
    )
    spoil(monkeypatch, row=4)
    run(dataset, encoder, tmp_path, epochs=1, micro_batch_size=size)
    named = sample_names(dataset, blocks[blocks >= 0].tolist())
    assert f"step {step}: no finite loss or gradient; skipped; samples {named}\n" in caplog.text


def test_of_many_samples_the_first_are_named_and_the_others_counted(dataset):
    assert sample_names(dataset, [3, 0]) == "squares 3, squares 0"
    names = sample_names(dataset, [*range(12)] * 3)
    assert names.startswith("squares 0, squares 1") and names.endswith("squares 3 and 20 more")


def test_an_epoch_whose_steps_were_all_skipped_still_ends(dataset, encoder, tmp_path, monkeypatch):
    spoil(monkeypatch, row=4)
    options = {"epochs": 1, "schedule": {"batch_size": 100}}
    trainer = make_trainer(dataset, encoder, **options)

    def lost():
        raise ProcessLost("another process died")

    trainer._validate = lost
    with pytest.raises(ProcessLost, match="stopped after step 1"), RunDirectory(tmp_path) as path:
        trainer.fit(path, Interruption())
    run_with_stops(dataset, encoder, tmp_path, [], **options)
    _, epoch = read_events(tmp_path)
    assert epoch["train_loss"] is None and epoch["train_acc"] is None
    assert epoch["val_loss"] > 0 and epoch["skipped_steps"] == 1


def test_averaged_weights_are_the_mean_of_snapshots_and_must_be_better(dataset, encoder, tmp_path):
    trainer = make_trainer(
        dataset, encoder, epochs=4, schedule={"swa": SWAConfig(start_epoch=3, lr_factor=0.5)}
    )
    snapshots, finish = [], trainer._finish_epoch

    def keep(epoch, run):
        snapshots.append({n: t.double().clone() for n, t in trainer.model.state_dict().items()})
        finish(epoch, run)

    trainer._finish_epoch = keep
    with RunDirectory(tmp_path) as directory:
        best = trainer.fit(directory, Interruption())
    for name, mean in trainer.selection.average.mean.items():
        expected = (snapshots[2][name] + snapshots[3][name]) / 2
        torch.testing.assert_close(mean.double(), expected, atol=1e-6, rtol=1e-5)
    epochs = [e for e in read_events(tmp_path) if e["event"] == "epoch"]
    assert [e["swa_snapshots"] for e in epochs] == [0, 0, 1, 2]
    assert best.accuracy >= max(e["val_acc"] for e in epochs)
    assert best.kind in ("averaged", "last", "best")


class StopAfter:
    """Asks to stop once the trainer has done a number of steps."""

    def __init__(self, trainer, step):
        self.trainer, self.step = trainer, step

    def defer(self, deferred):
        pass

    @property
    def reason(self):
        return "test" if self.trainer.step == self.step else None


def run_with_stops(dataset, encoder, path, stops, **options):
    """A run stopped after each of these steps and gone on with; its trainer and selection."""
    for step in [*stops, None]:
        trainer = make_trainer(dataset, encoder, **options)
        with contextlib.suppress(RunInterrupted), RunDirectory(path) as directory:
            state = load_newest_state(directory.resume)
            if state is not None:
                trainer.restore(state, directory)
            best = trainer.fit(directory, StopAfter(trainer, step))
    return trainer, best


@pytest.mark.parametrize("stops", [[1], [2, 3], [4], [5, 9, 14], [16]], ids=str)
def test_a_run_gone_on_with_is_the_same_run(dataset, encoder, tmp_path, stops):
    """Stopped after any step, within an epoch or at its end, with averaging and dropout."""
    options = {"epochs": 4, "schedule": {"swa": SWAConfig(start_epoch=2)}}
    straight, best, events = run(dataset, encoder, tmp_path / "a", **options)
    assert straight.steps_per_epoch == 4
    trainer, again = run_with_stops(dataset, encoder, tmp_path / "b", stops, **options)
    assert (again.kind, again.epoch, again.accuracy) == (best.kind, best.epoch, best.accuracy)
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name
    assert without_clock(read_events(tmp_path / "b")) == without_clock(events)


def test_what_came_after_a_state_gone_on_with_is_dropped(dataset, encoder, tmp_path):
    """A newer state that cannot be read now must not come back after the metrics were cut."""
    run(dataset, encoder, tmp_path, epochs=2)
    newest = list_states(tmp_path / "resume")[-1]
    (newest / "state.json").rename(tmp_path / "elsewhere")
    trainer = make_trainer(dataset, encoder, epochs=2)
    with RunDirectory(tmp_path) as directory:
        trainer.restore(load_newest_state(directory.resume), directory)
    assert [path.name for path in list_states(tmp_path / "resume")] == ["state-00000004"]


@pytest.mark.parametrize(("step", "epochs"), [(12, 2), (16, 3)])
def test_a_request_waits_for_no_validation(dataset, encoder, tmp_path, step, epochs):
    """It comes with the last step of an epoch, also of the last one."""
    trainer = make_trainer(dataset, encoder, epochs=4)
    with (
        pytest.raises(RunInterrupted, match=f"interrupted at step {step}: test"),
        RunDirectory(tmp_path) as directory,
    ):
        trainer.fit(directory, StopAfter(trainer, step))
    assert [e["event"] for e in read_events(tmp_path)].count("epoch") == epochs
    assert list_states(tmp_path / "resume")[-1].name == f"state-{step:08d}"


def test_a_request_during_the_last_validation_stops_the_run(dataset, encoder, tmp_path):
    _, _, events = run(dataset, encoder, tmp_path / "a", epochs=2)
    trainer = make_trainer(dataset, encoder, epochs=2)
    stopper, validate = StopAfter(trainer, None), trainer._validate

    def signalled():
        if trainer.step == trainer.total_steps:
            stopper.step = trainer.step
        return validate()

    trainer._validate = signalled
    with (
        pytest.raises(RunInterrupted, match="interrupted at step 8: test"),
        RunDirectory(tmp_path / "b") as directory,
    ):
        trainer.fit(directory, stopper)
    trainer, _ = run_with_stops(dataset, encoder, tmp_path / "b", [], epochs=2)
    assert without_clock(read_events(tmp_path / "b")) == without_clock(events)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda d: {"dataset": d.take(range(12))}, "other samples in train (then 17 samples, now"),
        (lambda d: {"val": d.take([1, 0, *range(2, 17)])}, "other samples in val (then 17 samples"),
        (
            lambda d: dict.fromkeys(("dataset", "val"), replace(d, answer=d.answer.flip(0))),
            "other samples in train (then 17 samples, now 17) and val (then 17 samples, now 17);",
        ),
        (lambda d: {"features": "others"}, "other features; restore the encoder's weights and"),
        (lambda d: {"schedule": {"batch_size": 2}}, "other steps per epoch; restore the schedule"),
    ],
    ids=["fewer", "order", "answers", "features", "steps"],
)
def test_a_run_does_not_go_on_with_other_data(dataset, encoder, tmp_path, change, line):
    run(dataset, encoder, tmp_path, epochs=1, features="those")
    options = {"dataset": dataset, "val": dataset, "features": "those", **change(dataset)}
    trainer = make_trainer(encoder=encoder, **options)
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    with pytest.raises(RunError, match=re.escape(line)):
        trainer.restore(load_newest_state(tmp_path / "resume"), RunDirectory(tmp_path))
    assert all(torch.equal(t, weights[n]) for n, t in trainer.model.state_dict().items())


def test_states_are_written_at_the_steps_asked_for(dataset, encoder, tmp_path):
    seen = set()
    trainer = make_trainer(dataset, encoder, epochs=2, checkpoint={"every_steps": 3})
    with RunDirectory(tmp_path) as directory:
        log = directory.log

        def note(event, **fields):
            seen.update(path.name for path in directory.resume.glob("state-*"))
            log(event, **fields)

        directory.log = note
        trainer.fit(directory, Interruption())
        seen.update(path.name for path in directory.resume.glob("state-*"))
    assert {"state-00000003", "state-00000004", "state-00000008"} <= seen


def test_speed_is_that_of_steps_without_validation_and_saving(
    dataset, encoder, tmp_path, monkeypatch
):
    options = {"epochs": 2, "every_steps": 3, "checkpoint": {"every_steps": 1}}
    trainer = make_trainer(dataset, encoder, **options)
    clock, late, hours = time.perf_counter, 0.0, 3600.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late)

    def slow(work):
        def done_in_hours(*arguments):
            nonlocal late
            late += hours
            return work(*arguments)

        return done_in_hours

    trainer._validate, trainer._state = slow(trainer._validate), slow(trainer._state)
    with RunDirectory(tmp_path) as directory:
        trainer.fit(directory, Interruption())
    events = read_events(tmp_path)
    # The second line's window holds the last step of one epoch and the first two of the next.
    assert [e["step"] for e in events if e["event"] == "step"] == [3, 6, 8]
    for event in events:
        assert 6 * 3 / event["samples_per_sec"] < hours, event
        if event["event"] == "epoch":
            assert event["train_seconds"] < hours < event["eval_seconds"]
        else:
            assert 0 <= event["data_wait_share"] <= 1


def test_epoch_events_carry_what_readers_expect(dataset, encoder, tmp_path):
    *_, events = run(dataset, encoder, tmp_path, epochs=1)
    promised = (
        "epoch step lr train_loss train_acc val_loss val_acc entropy margin_loss balance_loss "
        "draft_acc samples_per_sec train_seconds eval_seconds rss_mb vram_mb swa_snapshots"
    )
    epoch = next(e for e in events if e["event"] == "epoch")
    assert set(promised.split()) <= set(epoch)
