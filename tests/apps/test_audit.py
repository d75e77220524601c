"""The command that lists what DirectML would hand to the CPU."""

import pytest

from arbiter.hardware.directml import is_table_of_this_torch
from tests.conftest import run_app


def test_what_falls_back_is_one_line_and_a_failure(mistake):
    line = mistake("audit", "hardware=cpu")
    assert "of the step fall back to the CPU (" in line
    assert "aten::index_copy" in line and "aten::index_add" in line
    assert "docs/directml.md" in line


@pytest.mark.skipif(not is_table_of_this_torch(), reason="the table is of another torch")
@pytest.mark.parametrize("experiment", ["experiment=smoke", "experiment=v6_max"])
def test_a_profile_for_directml_passes(experiment):
    done = run_app("experiments.audit", experiment, "hardware=rx480", "architecture=tiny")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("on the CPU       none") == 2
    assert done.stdout.count("not known        none") == 2
    # Composites are listed with what they end in.
    assert "_foreach_norm.Scalar linalg_vector_norm" in done.stdout
