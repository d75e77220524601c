"""Errors of the disk keep their name, whichever library meets them."""

import errno

import pytest
from safetensors import SafetensorError

from arbiter.files import disk_problem, naming


@pytest.mark.parametrize(
    "text",
    [
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "..." })',
        "Error while serializing: I/O error: No space left on device (os error 28)",
    ],
)
def test_a_disk_error_of_safetensors_is_one_of_the_system(tmp_path, text):
    with pytest.raises(OSError) as caught, naming(tmp_path / "x"):
        raise SafetensorError(text)
    assert caught.value.errno == errno.ENOSPC
    assert disk_problem(caught.value).startswith(f"{tmp_path / 'x'}: No space left on device")


def test_other_errors_of_safetensors_stay_what_they_are(tmp_path):
    with pytest.raises(SafetensorError), naming(tmp_path / "x"):
        raise SafetensorError("Error while serializing: invalid shape")
