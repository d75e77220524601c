"""Make the page of a run, or of several beside each other: python -m experiments.report --help."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from omegaconf import DictConfig

from arbiter.config import instantiate
from arbiter.console import say
from arbiter.errors import UsageError
from arbiter.report import write_report
from arbiter.report.sweep import write_sweep
from arbiter.sweeps.ranking import check_figure, rank
from arbiter.sweeps.runs import find_runs, read_run
from arbiter.sweeps.terminal import print_ranking
from experiments.app import default_config, quote_free_text, quote_text_lists, run_app
from experiments.schema import ReportConfig


def main(composed: DictConfig) -> None:
    """Read the runs' directories, write the page, say where it is."""
    config: ReportConfig = instantiate(composed)
    if (config.run is None) is (not config.runs):
        raise UsageError("report: give run=<run dir>, or runs=<run dir>,<run dir>,... to compare")
    page = _one(Path(config.run)) if config.run is not None else _several(config)
    say(f"report: {page}")


def _one(run: Path) -> Path:
    return write_report(run, default_config("train"))


def _several(config: ReportConfig) -> Path:
    paths = [Path(run) for run in config.runs]
    runs = find_runs(paths)
    whole_sweep = len(paths) == 1 and runs != paths
    if config.output is not None:
        output = Path(config.output)
    elif whole_sweep:
        output = paths[0]
    else:
        output = Path("outputs/comparisons") / time.strftime("%Y-%m-%d/%H-%M-%S")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"output={output}: {error.filename} is a file; name a folder") from None
    found = [read_run(path) for path in runs]
    check_figure(found, config.sweep.metric)
    ranking = rank(found, config.sweep)
    print_ranking(ranking)
    return write_sweep(output, ranking)


if __name__ == "__main__":
    sys.argv[1:] = quote_free_text(sys.argv[1:], ("run", "output"))
    sys.argv[1:] = quote_text_lists(sys.argv[1:], ("runs",))
    run_app(main, "report")
