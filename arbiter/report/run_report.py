"""report.html of a run: what it learned, and how far to trust it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arbiter.files import write_text_atomic
from arbiter.report import page
from arbiter.report.cards import decisions
from arbiter.report.headline import headline, lead
from arbiter.report.history import experts, learning, speed
from arbiter.report.run_files import RunFiles, read_run
from arbiter.report.settings import configuration, environment, material
from arbiter.report.trust import calibration, exits, risk, sets


def write_report(run: Path, default: Mapping[str, Any] | None = None) -> Path:
    """Write report.html into a run directory, whatever state the run is in.

    Args:
        run: the run directory.
        default: the configuration without overrides, to compare the run's with; None to leave the
            comparison out.

    Raises:
        RunError: it is no run directory, or a file of it is damaged.
    """
    path = run / "report.html"
    write_text_atomic(path, run_page(read_run(run), default))
    return path


def run_page(run: RunFiles, default: Mapping[str, Any] | None) -> str:
    """The page of a run."""
    sections = [
        headline(run),
        decisions(run),
        learning(run),
        calibration(run),
        sets(run),
        risk(run),
        exits(run),
        experts(run),
        speed(run),
        material(run),
        configuration(run, default),
        environment(run),
    ]
    footer = (
        f"Made {time.strftime('%Y-%m-%d %H:%M')}; docs/reading_the_report.md says how to read it."
    )
    return page.page(f"Arbiter run {_name(run.path)}", lead(run), sections, footer)


def _name(path: Path) -> str:
    """The directory's name, after that of its day where it is only a time."""
    path = path.resolve()
    if re.fullmatch(r"\d\d-\d\d-\d\d-\d+", path.name):
        return f"{path.parent.name} {path.name[:8].replace('-', ':')}"
    return path.name
