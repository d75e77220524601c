"""Features built by all processes of a run: each content once, and the files of a single one."""

import pytest

from tests.children import outcome
from tests.joint import needs_fork

pytestmark = needs_fork


@pytest.fixture(scope="module")
def joint(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("builds")
    return outcome("tests.features.joint_builds", folder, "once", "killed", "broken", "waiting")


def test_each_content_is_encoded_once_over_all_processes(joint):
    assert joint["once"] is None, joint["once"]


def test_a_build_that_loses_a_process_goes_on_from_its_last_shard(joint):
    # 40 pictures, of which a shard of 16 was written.
    assert joint["killed"] == 24, joint["killed"]


def test_a_picture_that_cannot_be_read_is_named(joint):
    assert joint["broken"] is None, joint["broken"]


def test_all_wait_for_a_build_by_others(joint):
    assert joint["waiting"] is None, joint["waiting"]
