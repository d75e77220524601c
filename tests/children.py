"""Driver modules and forked children, for what only processes can show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LONGEST_SECONDS = 3600


def outcome(module: str, folder: Path, *tasks: str, prefix: Sequence[str] = ()) -> dict:
    """What the tasks of a driver module return, run in a process of their own.

    Args:
        prefix: a command that runs the process.
    """
    done = subprocess.run(
        [*prefix, sys.executable, "-m", module, str(folder), *tasks],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_LONGEST_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def fork(output: Path, seconds: int, task: Callable[[], None]) -> int:
    """A child that calls `task` and ends, after `seconds` at the latest; its process id.

    What it prints goes to `output`. It ends with the status of a SystemExit, 0 without one, and 70
    after any other error.
    """
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        signal.alarm(seconds)
        printed = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        task()
        status = 0
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
