"""What a run directory says about its run so far; a finished run says all of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from arbiter.errors import RunError
from arbiter.training.checkpoint import list_states, state_step
from arbiter.training.run_reading import read_status, read_yaml

GALLERY = "gallery"
"""The file that holds decisions beside the evaluations, without its suffix."""


@dataclass(frozen=True)
class RunFiles:
    """The parsed files of a run directory. Whatever does not exist is empty or None.

    Attributes:
        path: the directory.
        status: status.json's, 'interrupted' if it was killed, or 'finished' from the 'final' event
            on.
        since: when that was written; None if it was not yet.
        error: the line of a failed run.
        facts: the 'final' event, which holds what summary.json holds, or else the 'run' event.
        steps, epochs: the events of metrics.jsonl.
        evaluation: evaluation/test.json, in the format of `arbiter.evaluation`.
        others: further evaluations, by name of the file.
        gallery: evaluation/gallery.json, as `gallery.write_gallery` wrote it.
            A run that goes on after its end has none of these three until it ends again.
        config: .hydra/config.yaml.
        state: the newest resume state's optimizer step.
    """

    path: Path
    status: str
    since: str | None
    error: str | None
    facts: dict
    steps: list[dict]
    epochs: list[dict]
    evaluation: dict | None = None
    others: dict[str, dict] = field(default_factory=dict)
    gallery: dict | None = None
    config: dict | None = None
    state: int | None = None

    @property
    def test(self) -> dict[str, dict]:
        """Figures of the test split by source; empty before the run has scored it."""
        if self.evaluation is not None:
            return self.evaluation["sources"]
        return self.facts.get("test", {})


def read_run(path: Path) -> RunFiles:
    """Read a run directory, in whatever state the run is.

    Raises:
        RunError: it is none, or one of its files is damaged.
    """
    if not (path / "metrics.jsonl").is_file() or not (path / "status.json").is_file():
        raise RunError(
            f"{path}: not a run directory, metrics.jsonl or status.json is missing; name one that "
            "experiments.train made"
        )
    events = _read_events(path / "metrics.jsonl")
    kinds = ("run", "step", "epoch", "final")
    by_kind = {kind: [e for e in events if e.get("event") == kind] for kind in kinds}
    finished = bool(by_kind["final"])
    files = sorted((path / "evaluation").glob("*.json")) if finished else []
    evaluations = {file.stem: _read_json(file) for file in files}
    gallery = evaluations.pop(GALLERY, None)
    states = list_states(path / "resume")
    status = read_status(path)
    if not status:
        raise RunError(f"{path / 'status.json'}: damaged, no status is in it; restore it")
    state = "finished" if finished else status["status"]
    return RunFiles(
        path=path,
        status=state,
        since=status.get("time") if status["status"] == state else None,
        error=status.get("error"),
        facts=(by_kind["final"] or by_kind["run"] or [{}])[-1],
        steps=by_kind["step"],
        epochs=by_kind["epoch"],
        evaluation=evaluations.pop("test", None),
        others=evaluations,
        gallery=gallery,
        config=_read_config(path / ".hydra" / "config.yaml"),
        state=state_step(states[-1]) if states else None,
    )


def _read_config(path: Path) -> dict | None:
    if not path.is_file():
        return None
    config = read_yaml(path)
    if not isinstance(config, DictConfig):
        raise RunError(f"{path}: damaged, it is no configuration; restore it or remove it")
    return OmegaConf.to_container(config)


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise RunError(f"{path}: damaged, it is not JSON; restore it or remove it") from None


def _read_events(path: Path) -> list[dict]:
    """The lines of metrics.jsonl; a last line that is still being written is left out."""
    events = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            event = json.loads(line)
        except ValueError:
            raise RunError(f"{path}: line {number} is damaged, it is not JSON") from None
        if not isinstance(event, dict):
            raise RunError(f"{path}: line {number} is damaged, it is no JSON object")
        events.append(event)
    return events
