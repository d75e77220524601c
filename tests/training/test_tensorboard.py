"""TensorBoard gets the run's events, and cannot fail the run."""

import sys
from types import SimpleNamespace

import pytest

from arbiter.errors import ConfigError
from arbiter.training.run_directory import RunDirectory
from arbiter.training.tensorboard import TensorBoard


class Writer:
    """Stands in for the package's writer."""

    error = None
    made, scalars = [], []

    def __init__(self, directory, purge_step):
        self.made.append((directory, purge_step))

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


def test_an_error_is_said_once_and_the_run_goes_on(writer, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writer, "error", OSError(28, "No space left on device"))
    with RunDirectory(tmp_path) as run:
        run.listeners.append(TensorBoard(tmp_path / "tensorboard"))
        for step in range(3):
            run.log("step", step=step, loss=0.5)
    assert caplog.text.count("tensorboard: switched off, the run goes on") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


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
