"""A run by several processes is the run of one: its weights, its events, its stops."""

import pytest

from tests.children import outcome
from tests.joint import needs_fork

pytestmark = needs_fork
MODULE = "tests.training.joint_trainings"


def test_two_processes_train_what_one_does(tmp_path):
    found = outcome(MODULE, tmp_path, "quick", "skipped")
    assert isinstance(found["quick"], float), found["quick"]
    assert found["skipped"] is None, found["skipped"]


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("trainings")
    return outcome(MODULE, folder, "weights", "resumed", "killed", "first_killed")


@pytest.mark.slow
def test_two_and_three_processes_with_all_terms_idle_ranks_and_cut_micro_batches(slow):
    assert isinstance(slow["weights"], dict), slow["weights"]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(slow):
    assert slow["resumed"] is None, slow["resumed"]


@pytest.mark.slow
def test_a_process_that_dies_leaves_a_state_to_go_on_from(slow):
    assert slow["killed"] is None, slow["killed"]


@pytest.mark.slow
def test_a_first_process_that_dies_leaves_the_state_before(slow):
    assert slow["first_killed"] is None, slow["first_killed"]
