"""Jobs that share a process find it as the first one did."""

import gc
import random
import warnings
import weakref

import numpy as np
import pytest
import torch

from arbiter.sweeps.isolation import isolated


def test_threads_and_generators_are_restored_after_an_error_too():
    threads = torch.get_num_threads()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError), isolated():
        torch.set_num_threads(threads + 1)
        random.random(), np.random.rand(), torch.manual_seed(9)
        _ = 1 / 0
    assert torch.get_num_threads() == threads
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_each_job_shows_its_warnings(recwarn):
    warnings.simplefilter("default")  # once for each place
    for _ in range(2):
        with isolated():
            warnings.warn("again", UserWarning, stacklevel=1)
            warnings.simplefilter("ignore")
    assert [str(w.message) for w in recwarn] == ["again", "again"]


def test_what_hangs_in_a_cycle_is_freed():
    class Model:
        """Refers to itself, as modules with hooks and tracebacks do."""

    gc.disable()
    try:
        with isolated():
            model = Model()
            model.itself = model
            left = weakref.ref(model)
            del model
            assert left() is not None
        assert left() is None
    finally:
        gc.enable()
