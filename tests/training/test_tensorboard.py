"""TensorBoard gets the run's events, and cannot fail the run."""

import sys
from types import SimpleNamespace

import pytest

from arbiter.errors import ConfigError, RunInterrupted
from arbiter.training.run_directory import RunDirectory
from arbiter.training.tensorboard import TensorBoard


class Writer:
    """Stands in for the package's writer."""

    error = error_at_start = None
    made, scalars = [], []

    def __init__(self, directory, purge_step):
        self.made.append((directory, purge_step))
        if self.error_at_start is not None:
            raise self.error_at_start

    def add_scalar(self, name, value, step):
        if self.error is not None:
            raise self.error
        self.scalars.append((name, value, step))

    def flush(self):
        pass


@pytest.fixture
def writer(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer)
    )
    monkeypatch.setattr(Writer, "made", [])
    monkeypatch.setattr(Writer, "scalars", [])
    return Writer


def test_it_gets_the_numbers_of_the_events(writer, tmp_path):
    with RunDirectory(tmp_path) as run:
        run.listeners.append(TensorBoard(tmp_path / "tensorboard"))
        run.log("run", seed=0, sources={})
        run.log("step", step=3, loss=0.5, grad_norm=None)
        run.log("epoch", step=4, epoch=1, val_acc=0.25, val_acc_by_source={"gqa": 0.25})
    assert writer.made == [(str(tmp_path / "tensorboard"), 3)]
    assert writer.scalars == [
        ("step/loss", 0.5, 3),
        ("epoch/epoch", 1, 4),
        ("epoch/val_acc", 0.25, 4),
        ("epoch/val_acc_by_source/gqa", 0.25, 4),
    ]


@pytest.mark.parametrize("when", ["error", "error_at_start"])
@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        AttributeError("module 'distutils' has no attribute 'version'"),
        AssertionError("two\nlines"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_said_once_and_the_run_goes_on(
    writer, tmp_path, monkeypatch, caplog, error, when
):
    monkeypatch.setattr(writer, when, error)
    log_steps(tmp_path)
    assert [record.message for record in caplog.records] == [
        "tensorboard: switched off, the run goes on: "
        f"{type(error).__name__}: {str(error).splitlines()[0]}"
    ]
    assert len(writer.made) == 1


def log_steps(path):
    """Three events of a run with TensorBoard."""
    with RunDirectory(path) as run:
        run.listeners.append(TensorBoard(path / "tensorboard"))
        for step in range(3):
            run.log("step", step=step, loss=0.5)
    assert len((path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_package_that_is_broken_is_one_that_is_off(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace())
    log_steps(tmp_path)
    assert caplog.text.count("tensorboard: switched off, the run goes on: AttributeError") == 1


def test_a_request_to_stop_is_none_of_its_errors(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "error", RunInterrupted("interrupted by SIGTERM"))
    with pytest.raises(RunInterrupted, match="SIGTERM"):
        log_steps(tmp_path)


def test_without_the_package_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"logging\.tensorboard=true: .* not installed; pip"):
        TensorBoard(tmp_path)


def test_the_app_says_so_before_any_work(monkeypatch, mistake, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    line = mistake(
        "train", "logging.tensorboard=true", f"hydra.run.dir={tmp_path}",
        f"paths.features={tmp_path / 'features'}",
    )  # fmt: skip
    assert "logging.tensorboard=true: tensorboard is not installed" in line
    assert not (tmp_path / "features").exists()
    assert "samples:" not in (tmp_path / "train.log").read_text()
