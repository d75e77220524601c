"""The end of a process in which DirectML was used: at once, with all output and the real status."""

import subprocess
import sys

import pytest

from experiments.leaving import exit_status
from tests.conftest import ROOT

# Output into a pipe is buffered; a lost buffer or a wrong status would show. The thread keeps
# Python from ending, as DirectML's runtime does.
PROGRAM = """
import sys, threading, types
sys.modules["torch_directml"] = types.ModuleType("torch_directml")
from arbiter.errors import RunError, RunInterrupted
from experiments.app import run_app
threading.Thread(target=threading.Event().wait).start()
def main(config):
    print("x" * 10_000, "end of stdout")
    {action}
sys.argv = ["features", "paths.features=nowhere"]
run_app(main, "features")
"""


@pytest.mark.parametrize(
    ("action", "status", "said"),
    [
        ("pass", 0, ""),
        ("raise RunError('a mistake')", 1, "error: a mistake\n"),
        ("raise RunInterrupted('at step 3')", 75, "at step 3\n"),
    ],
)
def test_everything_said_and_the_real_status(action, status, said):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(action=action)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert done.stdout.endswith("x end of stdout\n") and len(done.stdout) > 10_000
    assert (said in done.stderr) if said else not done.stderr


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (None, 0, ""),
        (SystemExit(), 0, ""),
        (SystemExit(4), 4, ""),
        (SystemExit("over"), 1, "over\n"),
        (ZeroDivisionError("a bug"), 1, "ZeroDivisionError: a bug\n"),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt\n"),
    ],
)
def test_the_status_is_that_of_python(error, status, said, capsys):
    assert exit_status(error) == status
    assert capsys.readouterr().err == said
