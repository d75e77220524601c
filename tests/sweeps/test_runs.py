"""Run directories read back, whatever state a kill left them in."""

import json

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from arbiter.errors import ConfigError, RunError
from arbiter.sweeps.ranking import SweepConfig, rank
from arbiter.sweeps.runs import Run, check_unchanged, find_runs, read_run, varied


def make(path, status="finished", overrides=(), events=(), **files):
    (path / ".hydra").mkdir(parents=True)
    (path / ".hydra" / "overrides.yaml").write_text("".join(f"- {o}\n" for o in overrides) or "[]")
    (path / "status.json").write_text(json.dumps({"status": status, **files.get("more", {})}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (path / "summary.json").write_text(json.dumps({"validation": {"accuracy": 0.5}}))
    return path


def epoch(number, rss, **more):
    figures = {"val_acc": number / 10, "train_seconds": 2.0, "eval_seconds": 0.5, "rss_mb": rss}
    return {"event": "epoch", "epoch": number, **figures, "vram_mb": None, **more}


def test_figures_come_from_the_lines_of_a_run(tmp_path):
    begun = {"event": "run", "parameters": {"trainable": 70, "frozen": 9}}
    events = [begun, {"event": "step", "rss_mb": 300.0}, epoch(1, 200.0), epoch(2, 250.0)]
    run = read_run(make(tmp_path / "0", events=events, overrides=["optimizer.lr=0.1", "+a='b c'"]))
    assert run.overrides == {"optimizer.lr": "0.1", "a": "b c"}
    assert run.val_acc == (0.1, 0.2) and run.seconds == 5.0
    assert (run.rss_mb, run.vram_mb, run.parameters) == (300.0, None, 70)


def test_a_killed_run_is_interrupted_and_one_that_holds_its_lock_runs(tmp_path):
    path = make(tmp_path / "0", "running")
    assert read_run(path).status == "interrupted"
    with FileLock(path / ".lock"):
        assert read_run(path).status == "running"
    assert read_run(path).status == "interrupted"


def test_a_summary_counts_once_the_run_has_finished(tmp_path):
    assert read_run(make(tmp_path / "0", "failed", more={"error": "e"})).summary == {}
    assert read_run(make(tmp_path / "1")).summary == {"validation": {"accuracy": 0.5}}


def test_half_a_file_is_none(tmp_path):
    path = make(tmp_path / "0", events=[epoch(1, 1.0)])
    (path / ".hydra" / "overrides.yaml").write_text("")
    (path / "status.json").write_text('{"stat')
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "epo')
    run = read_run(path)
    assert (run.status, run.overrides, run.val_acc) == ("interrupted", {}, (0.1,))


@pytest.mark.parametrize("name", ["overrides", "hydra", "config"])
@pytest.mark.parametrize("text", ["a: [1,", "- x\n- {y", "5", "a: b: c", "[]", "\tx"])
def test_half_a_yaml_file_is_none(tmp_path, name, text):
    path = make(tmp_path / "0", events=[epoch(1, 1.0)])
    (path / ".hydra" / f"{name}.yaml").write_text(text)
    run = read_run(path)
    assert (run.overrides, run.choices, run.config, run.val_acc) == ({}, {}, {}, (0.1,))


@pytest.mark.parametrize(
    "line", [b"5", b"[]", b"null", b"{}", b'{"event": "epoch"}', b'{"rss_mb": "x"}', b"\xff\xfe"]
)
def test_a_line_that_is_no_event_is_none(tmp_path, line):
    path = make(tmp_path / "0", events=[epoch(1, 1.0)])
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n" + json.dumps(epoch(2, 3.0)).encode() + b"\n")
    run = read_run(path)
    assert (run.val_acc, run.seconds, run.rss_mb) == ((0.1, 0.2), 5.0, 3.0)


@pytest.mark.parametrize("text", ["", "{}", "[]", '"finished"', '{"status": 1}', '{"status": "fi'])
def test_a_status_that_says_nothing_is_none(tmp_path, text):
    path = make(tmp_path / "0")
    (path / "status.json").write_text(text)
    assert (read_run(path).status, read_run(path).error) == ("interrupted", None)


def test_a_sweep_stands_for_its_jobs_in_their_order(tmp_path):
    for number in (10, 2, 0):
        make(tmp_path / f"{number}_lr-1")
    alone = make(tmp_path / "elsewhere" / "run")
    found = find_runs([tmp_path, alone, alone])
    assert [p.name for p in found] == ["0_lr-1", "2_lr-1", "10_lr-1", "run"]
    with pytest.raises(RunError, match="neither a run directory nor a sweep's"):
        find_runs([tmp_path / "nothing"])


def of(overrides=(), choices=(), config=()) -> Run:
    return Run(None, "finished", None, dict(overrides), dict(choices), dict(config))


def test_what_varies_is_what_was_told_differently():
    a = of({"optimizer.lr": "1", "seed": "0", "paths.features": "a"}, {}, {"x.y": 1})
    b = of({"optimizer.lr": "2", "seed": "0", "paths.features": "b"}, {}, {"x.y": 2})
    assert varied([a, b]) == ["optimizer.lr", "x.y"]
    assert varied([a]) == []


def test_an_option_stands_for_its_keys_and_a_preset_for_all():
    v6 = of({}, {"architecture": "v6"}, {"architecture.dim": 8, "seed": 1})
    tiny = of({}, {"architecture": "tiny"}, {"architecture.dim": 4, "seed": 0})
    assert varied([v6, tiny]) == ["architecture", "seed"]
    smoke = of({}, {"architecture": "v6", "experiment": "smoke"}, {"seed": 7})
    assert varied([v6, smoke]) == ["experiment"]


def test_a_value_not_given_is_the_configuration_s():
    default = of({}, {}, {"optimizer.lr": 0.002})
    given = of({"optimizer.lr": "0.01"}, {}, {"optimizer.lr": 0.01})
    assert varied([default, given]) == ["optimizer.lr"]
    assert [r.setting("optimizer.lr") for r in (default, given)] == ["0.002", "0.01"]


def test_a_value_written_in_two_ways_is_one():
    summaries = [{"seed": seed, "validation": {"accuracy": 0.5}} for seed in range(3)]
    config = {"optimizer.lr": 0.002, "guards.spike_factor": None, "logging.tensorboard": True}
    told = [{}, {"optimizer.lr": "2e-3"}, {"optimizer.lr": "0.002", "guards.spike_factor": "null"}]
    runs = [
        Run(None, "finished", None, overrides, {}, {**config, "seed": seed}, summary)
        for seed, (overrides, summary) in enumerate(zip(told, summaries, strict=True))
    ]
    (setting,) = rank(runs, SweepConfig()).settings
    assert setting.interval == (0.5, 0.5)
    keys = ("optimizer.lr", "guards.spike_factor", "logging.tensorboard", "nothing")
    assert [runs[2].setting(key) for key in keys] == ["0.002", "null", "true", None]


def test_a_group_is_its_option():
    run = of({"schedule": "cosine"}, {"schedule": "cosine"}, {"schedule.epochs": 2})
    assert run.setting("schedule") == "cosine"


def test_what_did_not_compose_is_what_was_given(tmp_path):
    path = make(tmp_path / "0", "failed", ["seed=x", "optimizer=nope", "optimizer.lr=1"])
    (path / ".hydra" / "config.yaml").write_text("seed: 0\noptimizer: {lr: 0.5}\nother: 3")
    choices = "hydra: {job: {refused: %s}, runtime: {choices: {optimizer: adamw}}}"
    (path / ".hydra" / "hydra.yaml").write_text(choices % "why")
    keys = ("seed", "optimizer", "optimizer.lr", "other")
    assert [read_run(path).setting(key) for key in keys] == ["x", "nope", "1", "3"]
    (path / ".hydra" / "hydra.yaml").write_text(choices % "null")
    assert [read_run(path).setting(key) for key in keys] == ["0", "adamw", "0.5", "3"]


HAD = {"a.x": 0.002, "schedule.epochs": 3, "logging.every_steps": 5, "a.gone": 1}


def resumed(now: dict, given=(), status="finished", had=(("a.x", "2e-3"),)) -> None:
    config = {"a": {"x": 0.002}, "schedule": {"epochs": 3}, "logging": {"every_steps": 5}}
    run = Run(None, status, None, dict(had), {}, HAD)
    check_unchanged(run, OmegaConf.merge(OmegaConf.create(config), now), given)


@pytest.mark.parametrize(
    ("now", "more"),
    [
        ({}, {"given": ["a.x=0.002"]}),
        ({"logging": {"every_steps": 9}}, {"given": ["logging.every_steps=9"]}),
        ({"a": {"new": 1}}, {}),  # an option of a later version
        ({"schedule": {"epochs": 9}}, {}),  # looked at by the run itself
    ],
)
def test_a_run_is_gone_on_with_under_its_own_settings(now, more):
    resumed(now, **more)


@pytest.mark.parametrize(
    ("now", "more", "line"),
    [
        ({"a": {"x": 1}}, {"given": ["a.x=1"]}, "a.x=1: the run has a.x=0.002, which cannot"),
        ({"a": {"x": 1}}, {}, "a.x=1: the run has a.x=0.002"),
        ({"a": {"new": 1}}, {"given": ["+a.new=1"]}, "a.new=1: the run has no such key"),
        ({}, {"had": [("a.gone", "1")]}, r"a.gone=\(not given\): the run has a.gone=1"),
    ],
)
def test_a_run_is_not_shown_under_settings_that_it_never_had(now, more, line):
    with pytest.raises(ConfigError, match=line):
        resumed(now, **more)


def test_hardware_varies_only_where_it_was_named():
    one, two = of({}, {}, {"hardware.device": "cpu"}), of({}, {}, {"hardware.device": "cuda"})
    assert varied([one, two]) == []
    assert varied([of({"hardware.device": "cpu"}), of({"hardware.device": "cuda"})]) == [
        "hardware.device"
    ]
