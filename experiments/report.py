"""Make the page of a run: python -m experiments.report run=<run dir>; --help shows how."""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from arbiter.config import instantiate
from arbiter.console import console
from arbiter.report import write_report
from experiments.app import default_config, quote_free_text, run_app
from experiments.schema import ReportConfig


def main(composed: DictConfig) -> None:
    """Read the run's directory, write its page, say where it is."""
    config: ReportConfig = instantiate(composed)
    page = write_report(Path(config.run), default_config("train"))
    console.print(f"report: {page}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.argv[1:] = quote_free_text(sys.argv[1:], ("run",))
    run_app(main, "report")
