"""What a person sees who asks an app for help, by --help or by the Tab key."""

import os
import runpy
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT

APPS = sorted(
    path.stem
    for path in (ROOT / "experiments").glob("*.py")
    if "\nif __name__ == " in path.read_text(encoding="utf-8")
)
SCREEN_LINES, SCREEN_COLUMNS = 40, 102


def check(app: str, text: str) -> None:
    """One screen, with three examples."""
    lines = text.rstrip().splitlines()
    assert len(lines) <= SCREEN_LINES and max(map(len, lines)) <= SCREEN_COLUMNS
    examples = lines[lines.index("Examples") :]
    assert sum(f"python -m experiments.{app}" in line for line in examples) >= 3


@pytest.mark.parametrize("app", APPS)
def test_help_is_one_screen_with_three_examples(app):
    """What Hydra prints is this template; Hydra takes seconds to print it."""
    help = OmegaConf.load(ROOT / "conf" / "hydra" / "help" / f"{app}.yaml")
    check(app, OmegaConf.create({"hydra": {"help": help}}).hydra.help.template)
    recipe = (ROOT / "conf" / f"{app}.yaml").read_text(encoding="utf-8")
    assert f"- override hydra/help: {app}" in recipe


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS)
def test_help_is_printed(app, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{app}.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(f"experiments.{app}", run_name="__main__")
    assert stopped.value.code == 0
    check(app, capsys.readouterr().out)


def complete(line: str) -> list[str]:
    """What bash offers after a line, asked as bash asks."""
    script = (
        "source experiments/completion.bash; COMP_LINE=$1; COMP_POINT=${#1}; _arbiter_complete; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", line.replace("python", sys.executable)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    return sorted(done.stdout.split())


def test_the_tab_key_names_apps():
    assert complete("python -m experiments.") == [f"experiments.{app}" for app in APPS]
    assert complete("python -m experiments.tr") == ["experiments.train"]
    assert complete("python -m pip ins") == []


@pytest.mark.slow
def test_the_tab_key_names_groups_options_and_keys():
    assert "architecture=" in complete("python -m experiments.train arch")
    # After = bash replaces what follows it.
    assert complete("python -m experiments.train architecture=v") == ["v6", "v6_max"]
    line = "python -m experiments.train -m optimizer=muon seed=1,2 optimizer.m"
    assert "optimizer.max_grad_norm=" in complete(line) and "optimizer.momentum=" in complete(line)
