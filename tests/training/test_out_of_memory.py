"""A step that runs out of memory is done again in smaller parts, with the same result."""

import pytest
import torch

from arbiter.errors import RunError
from arbiter.hardware.memory import is_out_of_memory
from arbiter.training.interruption import Interruption
from arbiter.training.run_directory import RunDirectory
from tests.training.test_trainer import losses, make_trainer, read_events

# As the backends say it; each is raised as torch raises it.
CUDA = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
HOST = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"
)
DIRECTML = RuntimeError(
    "Could not allocate tensor with 536870912 bytes. There is not enough GPU video memory "
    "available!"
)


def limit_memory(trainer, error, blocks, only_at_step=None):
    """Let no forward pass of more than so many blocks succeed, as a small device would."""
    forward = trainer.model.forward

    def limited(batch, dropout=None):
        limits = trainer.model.training and only_at_step in (None, trainer.step)
        if limits and len(batch.question) > blocks:
            raise error
        return forward(batch, dropout)

    trainer.model.forward = limited


def fit(trainer, path):
    with RunDirectory(path) as run:
        trainer.fit(run, Interruption())
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


@pytest.mark.parametrize("error", [CUDA, HOST, DIRECTML], ids=["cuda", "host", "directml"])
def test_a_smaller_micro_batch_gives_the_same_weights(dataset, encoder, tmp_path, error):
    options = {"epochs": 4, "micro_batch_size": 3, "architecture": {"dropout": 0.3}}
    expected = fit(make_trainer(dataset, encoder, **options), tmp_path / "a")
    trainer = make_trainer(dataset, encoder, **options)
    limit_memory(trainer, error, blocks=2, only_at_step=2)
    found = fit(trainer, tmp_path / "b")
    assert trainer._micro_batch_size == 2
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-4, rtol=1e-3, msg=name)
    # The step that was begun twice is counted once.
    torch.testing.assert_close(
        losses(read_events(tmp_path / "b")), losses(read_events(tmp_path / "a")),
        atol=2e-4, rtol=1e-3,
    )  # fmt: skip


def test_it_is_halved_until_it_fits(dataset, encoder, tmp_path, caplog):
    trainer = make_trainer(dataset, encoder, epochs=1, micro_batch_size=3)
    limit_memory(trainer, CUDA, blocks=1)
    fit(trainer, tmp_path)
    assert trainer._micro_batch_size == 1
    assert "out of memory at step 1 with micro-batches of 3; going on with 2" in caplog.text
    assert "out of memory at step 1 with micro-batches of 2; going on with 1" in caplog.text


def test_when_nothing_is_smaller_the_run_says_so(dataset, encoder, tmp_path):
    trainer = make_trainer(dataset, encoder, epochs=1, micro_batch_size=2)
    limit_memory(trainer, DIRECTML, blocks=0)
    with pytest.raises(RunError, match=r"out of memory at step 1 with micro-batches of 1 \(Could"):
        fit(trainer, tmp_path)


def test_an_out_of_memory_of_validation_names_its_own_setting(dataset, encoder, tmp_path):
    trainer = make_trainer(dataset, encoder, epochs=1, eval_batch_size=32)
    forward = trainer.model.forward

    def limited(batch, dropout=None):
        if not trainer.model.training:
            raise CUDA
        return forward(batch, dropout)

    trainer.model.forward = limited
    with pytest.raises(RunError, match=r"resume=<this run> hardware\.eval_batch_size=8"):
        fit(trainer, tmp_path)


def test_the_host_runs_out_as_told():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46, dtype=torch.float32)
    assert is_out_of_memory(caught.value)


def test_other_errors_are_no_lack_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2) @ torch.zeros(3)
    assert not is_out_of_memory(caught.value)
    assert not is_out_of_memory(ValueError("out of memory"))
    assert is_out_of_memory(MemoryError())


def test_memory_that_the_optimizer_lacks_is_one_line(dataset, encoder, tmp_path):
    trainer = make_trainer(dataset, encoder, epochs=1)

    def step():
        raise CUDA

    trainer.optimizer.step = step
    with pytest.raises(RunError, match=r"out of memory in the optimizer at step 1 .*; lower hard"):
        fit(trainer, tmp_path)
