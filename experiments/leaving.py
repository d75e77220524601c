"""Ending a process whose libraries may not let it end."""

from __future__ import annotations

import atexit
import os
import signal
import sys


def exit_status(error: BaseException | None) -> int:
    """The status that Python would exit with for what ends the program; tracebacks are printed."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def leave(error: BaseException | None) -> None:
    """Exit at once with the real status, after all that is registered for an exit has been done.

    Args:
        error: what ends the program, or None.
    """
    status = exit_status(error)
    atexit._run_exitfuncs()  # among them logging's, which flushes and closes every file
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
