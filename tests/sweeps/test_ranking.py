"""Ranking runs: groups by setting, Student's interval over seeds, a table that parses."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from arbiter.errors import ConfigError
from arbiter.sweeps.ranking import (
    Direction,
    SweepConfig,
    check_figure,
    objective,
    rank,
    to_csv,
)
from arbiter.sweeps.runs import Run
from arbiter.sweeps.terminal import print_ranking


def run(number: int, score: float | None, status: str = "finished", **overrides) -> Run:
    summary = {} if score is None else {"validation": {"accuracy": score, "loss": 1 - score}}
    overrides = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    error = "it broke, badly" if status == "failed" else None
    return Run(Path(f"/sweep/{number}_x"), status, error, overrides, summary=summary)


def test_settings_are_ranked_by_their_mean_over_seeds():
    runs = [
        run(0, 0.5, optimizer__lr=1, seed=0),
        run(1, 0.9, optimizer__lr=1, seed=1),
        run(2, 0.8, optimizer__lr=2, seed=0),
        run(3, 0.8, optimizer__lr=2, seed=1),
        run(4, None, "failed", optimizer__lr=3, seed=0),
    ]
    ranking = rank(runs, SweepConfig())
    assert ranking.keys == ("optimizer.lr",) and ranking.seeds
    assert [s.values for s in ranking.settings] == [("2",), ("1",), ("3",)]
    assert [s.mean for s in ranking.settings] == [0.8, 0.7, None]
    assert ranking.best is runs[2]
    # Student's t with one degree of freedom: 12.7062 (tables); s of 0.5 and 0.9 is 0.2 sqrt(2).
    reach = 12.7062 * 0.2 * math.sqrt(2) / math.sqrt(2)
    assert ranking.settings[1].interval == pytest.approx((0.7 - reach, 0.7 + reach), rel=1e-4)
    assert ranking.settings[0].interval == pytest.approx((0.8, 0.8))
    assert ranking.settings[2].interval is None


def test_the_interval_of_three_seeds():
    ranking = rank([run(i, s, seed=i) for i, s in enumerate((0.1, 0.2, 0.6))], SweepConfig())
    (setting,) = ranking.settings
    # Mean 0.3, s = sqrt((0.04 + 0.01 + 0.09) / 2), t of two degrees of freedom 4.30265.
    reach = 4.30265 * math.sqrt(0.07) / math.sqrt(3)
    assert setting.interval == pytest.approx((0.3 - reach, 0.3 + reach), rel=1e-5)


def test_less_can_be_better():
    config = SweepConfig("validation.loss", Direction.minimize)
    runs = [run(0, 0.5, x=1), run(1, 0.75, x=2), run(2, None, "interrupted", x=3)]
    ranking = rank(runs, config)
    assert ranking.best is runs[1]
    assert [s.mean for s in ranking.settings] == [0.25, 0.5, None]


@pytest.mark.parametrize("direction", list(Direction))
def test_the_worst_value_is_finite_and_worse_than_any(direction):
    worst = SweepConfig(direction=direction).worst
    assert math.isfinite(worst)
    assert worst < -1e6 if direction is Direction.maximize else worst > 1e6


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        (
            "validation.acc",
            "metric=validation.acc: no such figure; validation holds accuracy",
        ),
        ("tests", "sweep.metric=tests: no such figure; summary.json holds validation"),
        ("validation", "sweep.metric=validation: is no finite number .* it holds accuracy, loss"),
        ("validation.accuracy.x", "holds nothing further"),
        ("diverged", "is no finite number"),
        ("name", "is no finite number"),
    ],
)
def test_a_metric_that_is_none_says_what_there_is(metric, line):
    summary = {"validation": {"accuracy": 1.0, "loss": 0.0}, "diverged": math.nan, "name": "x"}
    with pytest.raises(ConfigError, match=line):
        objective(summary, metric)


def test_a_figure_that_a_run_lacks_is_none():
    assert objective({"exit": None}, "exit.rate") is None
    assert objective({"exit": {"rate": None}}, "exit.rate") is None
    shut, other = run(0, 0.5, gate=1), run(1, 0.5, gate=0)
    shut.summary["exit"], other.summary["exit"] = None, {"rate": 0.25}
    ranking = rank([shut, other], SweepConfig("exit.rate"))
    assert [s.mean for s in ranking.settings] == [0.25, None]


def test_a_metric_is_a_mistake_if_no_finished_run_has_it():
    runs = [run(0, None, "failed"), run(1, 0.5), run(2, 0.5)]
    check_figure(runs[:1], "validation.ece")  # nobody knows
    with pytest.raises(ConfigError, match=r"validation\.ece: no such figure"):
        check_figure(runs, "validation.ece")
    runs[2].summary["validation"]["ece"] = 0.1
    check_figure(runs, "validation.ece")


def test_the_table_parses_back():
    runs = [run(0, 0.5, text="a,b"), run(1, None, "failed", text='say "hi"')]
    rows = list(csv.DictReader(io.StringIO(to_csv(rank(runs, SweepConfig())))))
    assert [row["text"] for row in rows] == ["a,b", 'say "hi"']
    assert [row["validation.accuracy"] for row in rows] == ["0.5", ""]
    assert rows[1]["status"] == "failed" and rows[1]["error"] == "it broke, badly"


def test_the_table_tells_rank_interval_and_parameters():
    runs = [
        run(0, 0.5, a__lr=1, seed=0),
        replace(run(1, 0.9, a__lr=1, seed=1), parameters=1234),
        run(2, 0.8, a__lr=2, seed=0),
        run(3, None, "failed", a__lr=3, seed=0),
    ]
    ranking = rank(runs, SweepConfig())
    rows = list(csv.DictReader(io.StringIO(to_csv(ranking))))
    assert [row["rank"] for row in rows] == ["2", "2", "1", ""]
    assert [row["mean"] for row in rows] == ["0.7", "0.7", "0.8", ""]
    low, high = ranking.settings[1].interval
    assert [row["mean_low"] for row in rows] == [str(low), str(low), "", ""]
    assert [row["mean_high"] for row in rows] == [str(high), str(high), "", ""]
    assert [row["parameters"] for row in rows] == ["", "1234", "", ""]
    assert [s.parameters for s in ranking.settings] == [None, 1234, None]


def test_the_terminal_shows_every_setting_and_every_failure(capsys):
    runs = [run(0, 0.5, seed=0, a__lr=0.1), run(1, 0.7, seed=1, a__lr=0.1)]
    runs[0] = replace(runs[0], parameters=557_377)
    print_ranking(rank([*runs, run(2, None, "failed", a__lr=0.2, seed=0)], SweepConfig()))
    said = capsys.readouterr().out
    assert "0.6" in said and "-0.67062 to 1.8706" in " ".join(said.split())
    assert "557,377" in said
    assert "failed: 2_x: it broke, badly" in said


def test_no_run_at_all_has_a_best_one():
    ranking = rank([run(0, None, "failed")], SweepConfig())
    assert ranking.best is None and ranking.settings[0].mean is None


def test_the_same_seed_again_is_no_new_evidence():
    once = [run(i, s, seed=i) for i, s in enumerate((0.1, 0.2, 0.6))]
    again = run(3, 0.1)
    again.summary["seed"] = 0
    for runs in (once, [*once, again]):
        (setting,) = rank(runs, SweepConfig()).settings
        assert setting.scores == (0.1, 0.2, 0.6)
