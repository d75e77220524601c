"""A run directory's small files read back; what a kill left half written counts as not there."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf
from yaml import YAMLError


def read_status(run: Path) -> dict[str, Any]:
    """What status.json says; empty without a status.

    A run that says `running` where no process runs was killed: it is `interrupted`, nobody knows
    since when.
    """
    said = read_object(run / "status.json")
    if said.get("status") == "running" and not _locked(run):
        return {"status": "interrupted"}
    return said if isinstance(said.get("status"), str) else {}


def _locked(run: Path) -> bool:
    """Whether a process is running there now; a dead one's lock is free."""
    if not (run / ".lock").exists():
        return False
    lock = FileLock(run / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:
        return False  # an archive that cannot be written: nobody runs there
    lock.release()
    return False


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty if it holds none."""
    with suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}
    return {}


def read_yaml(path: Path) -> Any:
    """A file's DictConfig or ListConfig; None if it holds none."""
    with suppress(OSError, ValueError, YAMLError):
        return OmegaConf.load(path) if path.stat().st_size else None
    return None
