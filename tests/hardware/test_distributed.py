"""What the processes of a run tell each other, and how they learn that one is gone."""

import pytest
import torch

from arbiter.errors import ConfigError
from arbiter.hardware import distributed
from arbiter.hardware.distributed import ALONE, Ranks, own_device
from tests.children import outcome
from tests.joint import needs_fork


@pytest.fixture(scope="module")
def joint(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("exchanges")
    return outcome("tests.hardware.exchanges", folder, "exchanges", "death", "failure")


@needs_fork
@pytest.mark.parametrize("task", ["exchanges", "death", "failure"])
def test_processes_exchange_and_learn_that_one_is_gone(joint, task):
    assert joint[task] is None, joint[task]


@needs_fork
@pytest.mark.slow
def test_a_process_that_hangs_is_given_up_on(tmp_path):
    result = outcome("tests.hardware.exchanges", tmp_path, "hang")["hang"]
    assert result is None, result


def test_alone_every_exchange_is_the_own_value():
    tensor = torch.tensor([1.0, 2.0])
    ALONE.sum_(tensor)
    ALONE.share_([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert ALONE.first and ALONE.any(True) and not ALONE.any(False)
    assert ALONE.share([1]) == [1] and ALONE.share_bytes(b"a") == b"a"
    assert ALONE.all_bytes(b"a") == ALONE.collect_bytes(b"a") == [b"a"]
    assert ALONE.deal([3, 4]) == [3, 4]


def test_shares_are_even():
    sizes = [len(Ranks(rank, 3).deal(range(11))) for rank in range(3)]
    assert sorted(sizes) == [3, 4, 4]


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert distributed.start() is ALONE


def test_each_process_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(distributed, "_ranks", Ranks(3, 4))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(ConfigError, match=r"cuda:3: there are 2 here; .*--nproc-per-node=2"):
        own_device(torch.device("cuda"), "hardware.device")
    with pytest.raises(ConfigError, match="takes a GPU of its own; give cuda"):
        own_device(torch.device("cuda:1"), "hardware.device")
    with pytest.raises(ConfigError, match="mps: several processes compute on cpu or cuda only"):
        own_device(torch.device("mps"), "hardware.device")
    assert own_device(torch.device("cpu"), "hardware.device") == torch.device("cpu")
    chosen = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert own_device(torch.device("cuda"), "hardware.device") == torch.device("cuda", 1)
    assert chosen == [1]
