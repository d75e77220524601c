import json

import pytest

from arbiter.errors import RunError
from arbiter.training.run_directory import RunDirectory


def status(path) -> dict:
    return json.loads((path / "status.json").read_text())


def test_status_follows_the_run(tmp_path):
    with RunDirectory(tmp_path) as run:
        assert status(tmp_path)["status"] == "running"
        run.log("step", step=1, loss=0.5)
        run.log("epoch", epoch=1)
    assert status(tmp_path)["status"] == "finished"
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"event": "step", "step": 1, "loss": 0.5}, {"event": "epoch", "epoch": 1}]


@pytest.mark.parametrize(
    ("error", "expected", "line"),
    [
        (RunError("this: was wrong"), "failed", "this: was wrong"),
        (ZeroDivisionError("oops"), "failed", "ZeroDivisionError: oops"),
        (KeyboardInterrupt(), "interrupted", None),
    ],
)
def test_errors_end_in_the_status(tmp_path, error, expected, line):
    with pytest.raises(type(error)), RunDirectory(tmp_path):
        raise error
    assert status(tmp_path)["status"] == expected
    assert status(tmp_path).get("error") == line


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"], ids=repr)
def test_a_damaged_status_is_none(tmp_path, content):
    (tmp_path / "status.json").write_bytes(content)
    with RunDirectory(tmp_path) as run:
        assert not run.finished
        assert status(tmp_path)["status"] == "running"
    with RunDirectory(tmp_path) as run:
        assert run.finished


def test_what_killed_writers_left_is_removed(tmp_path):
    for folder in (".", "resume", "evaluation"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / ".some.json.123.writing").write_text("{")
    with RunDirectory(tmp_path):
        assert not list(tmp_path.rglob("*.writing"))


def test_one_process_at_a_time(tmp_path):
    with RunDirectory(tmp_path), pytest.raises(RunError, match="another process"):
        RunDirectory(tmp_path).__enter__()


def test_metrics_hold_only_what_json_can(tmp_path):
    with pytest.raises(ValueError), RunDirectory(tmp_path) as run:
        run.log("step", loss=float("nan"))
