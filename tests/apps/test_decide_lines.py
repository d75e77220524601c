"""`python -m experiments.decide input=... output=...`: a file of questions."""

import gc
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile

from arbiter import Arbiter
from arbiter.errors import DecisionError
from experiments.decide_lines import answers, decide_lines
from experiments.schema import DecideConfig
from tests.conftest import ROOT, draw_square, run_app

COLORS = ["red", "green", "blue"]
QUESTION = "what color is the shape?"


@pytest.fixture(scope="module")
def arbiter(smoke_run):
    return Arbiter.load(smoke_run[0])


@pytest.fixture
def folder(tmp_path):
    draw_square("red", 10, 20, 24).save(tmp_path / "red.png")
    draw_square("blue", 30, 8).save(tmp_path / "blue.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    soundfile.write(tmp_path / "s.wav", np.zeros(1600), 16_000)
    return tmp_path


def case(**more):
    return json.dumps({"question": QUESTION, "candidates": COLORS, **more})


GOOD = [
    case(image="red.png", id="a"),
    case(images=["red.png", "blue.png"], answer="red"),
    case(image="blue.png", context=None, video=[]),
    case(),
    json.dumps({"question": "is it ${x}, \u2028 yes?", "candidates": ["yes", "no"]}),
]
BAD = [
    ("not json", "not JSON"),
    ("", "the line is empty"),
    ('{"question": "q"}', "candidates is missing"),
    (case(image="missing.png"), "missing.png: no such file"),
    (case(image="broken.png"), "broken.png: not a readable image"),
    (case(audio="s.wav", id="deaf"), "audio: this model was trained without it"),
    (case(audio="n" * 300), "audio: this model was trained without it"),
    (case(video="no.mp4"), "video: this model was trained without it"),
    (case(image="n" * 300), "File name too long"),
    (json.dumps({"question": "q", "candidates": [str(i) for i in range(20_000)]}), "more than"),
    (case(context="Read this."), "context: this model was trained without it"),
    (case(sound="s.wav"), "no such key 'sound'"),
    (json.dumps({"question": "q", "candidates": ["a", "a"]}), "given more than once"),
    (case(answer="white"), "answer 'white' is none of the candidates"),
    ('{"question": "\\ud800", "candidates": ["a", "b"]}', "not Unicode"),
]


def interleaved():
    """Lines, and for each what its error must say, or None."""
    lines = []
    for number, bad in enumerate(BAD):
        lines += [(GOOD[number % len(GOOD)], None), bad]
    return lines


def ask(arbiter, folder, text, batch_size=4):
    return list(answers(arbiter, io.BytesIO(text.encode()), folder, "", batch_size, {}))


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_every_line_has_its_answer_in_order(arbiter, folder, batch_size):
    lines = interleaved()
    found = ask(arbiter, folder, "\n".join(line for line, _ in lines), batch_size)
    assert [answer["line"] for answer in found] == list(range(1, len(lines) + 1))
    for answer, (line, said) in zip(found, lines, strict=True):
        if said is None:
            given = json.loads(line)
            images = [given["image"]] if "image" in given else given.get("images", [])
            alone = arbiter.decide(
                given["question"], given["candidates"], images=[folder / name for name in images]
            )
            assert answer["choice"] == alone.choice
            np.testing.assert_allclose(answer["probabilities"], alone.probabilities, atol=1e-5)
            assert answer["prediction_set"] == list(alone.prediction_set)
            assert answer["modalities"] == list(alone.modalities)
            assert "error" not in answer and "timings" not in answer
        else:
            assert said in answer["error"] and "\n" not in answer["error"]
            assert "choice" not in answer
    given = [json.loads(line).get("id") for line, said in lines if said is None or "audio" in line]
    assert [a["id"] for a in found if "id" in a] == [name for name in given if name]


def test_no_more_than_a_batch_is_read_ahead(arbiter, folder):
    file = io.BytesIO("\n".join([case()] * 50).encode())
    found = answers(arbiter, file, folder, "", 4, {})
    assert next(found)["line"] == 1
    assert file.read().count(b"\n") >= 44


def test_a_file_is_answered_into_a_file(smoke_run, folder):
    lines = interleaved()
    (folder / "cases.jsonl").write_text("\n".join(line for line, _ in lines) + "\n")
    done = run_app(
        "experiments.decide", f"run={smoke_run[0]}", f"input={folder / 'cases.jsonl'}",
        f"output={folder / 'out.jsonl'}", "batch_size=5",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    count = f"{len(BAD)} of {len(lines)} lines could not be decided; first: line 2: not JSON"
    assert done.stderr.startswith(f"error: {count}") and done.stderr.count("\n") == 1
    found = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert ["error" in answer for answer in found] == [said is not None for _, said in lines]
    names = {"cases.jsonl", "out.jsonl", "red.png", "blue.png", "broken.png", "s.wav"}
    assert {path.name for path in folder.iterdir()} == names


def test_standard_input_and_output(arbiter, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(GOOD).encode())))
    assert decide_lines(arbiter, DecideConfig(run="", input="-"), {}) == "lines decided: 5"
    # The last line holds a separator that Python takes for an end of line; JSON does not.
    found = [json.loads(line) for line in capsys.readouterr().out.rstrip("\n").split("\n")]
    assert [answer["modalities"] for answer in found] == [["image"]] * 3 + [[]] * 2


def config(folder: Path, **values) -> DecideConfig:
    return DecideConfig(run="", input=str(folder / "cases.jsonl"), **values)


def test_lines_are_utf_8_whatever_the_terminal_is(smoke_run, folder):
    (folder / "cases.jsonl").write_text(json.dumps({"question": "q", "candidates": ["é", "日"]}))
    done = subprocess.run(
        [sys.executable, "-m", "experiments.decide", f"run={smoke_run[0]}",
         f"input={folder / 'cases.jsonl'}"],
        cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("utf-8"))["choice"] in "é日"


def test_the_output_appears_when_it_is_complete(arbiter, folder, monkeypatch):
    output = folder / "out.jsonl"
    (folder / "cases.jsonl").write_text("\n".join(GOOD))
    output.write_text("of yesterday")
    real = Arbiter.stream

    def interrupted(self, samples, *arguments, **options):
        for number, result in enumerate(real(self, samples, *arguments, **options)):
            if number == 3:
                assert output.read_text() == "of yesterday"
                raise KeyboardInterrupt
            yield result

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Arbiter, "stream", interrupted)
        decide_lines(arbiter, config(folder, output=str(output)), {})
    assert output.read_text() == "of yesterday"
    assert not list(folder.glob(".*"))
    assert decide_lines(arbiter, config(folder, output=str(output)), {}) == "lines decided: 5"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_stays_a_pipe(arbiter, folder):
    (folder / "cases.jsonl").write_text(case())
    os.mkfifo(folder / "pipe")
    with subprocess.Popen(["cat", folder / "pipe"], stdout=subprocess.PIPE) as reader:
        decide_lines(arbiter, config(folder, output=str(folder / "pipe")), {})
        assert json.loads(reader.stdout.read())["line"] == 1
    assert (folder / "pipe").is_fifo()


def test_the_input_is_never_written_over(arbiter, folder):
    (folder / "cases.jsonl").write_text(case())
    (folder / "link.jsonl").symlink_to(folder / "cases.jsonl")
    for name in ("cases.jsonl", "link.jsonl"):
        with pytest.raises(DecisionError, match="is the input; name another file"):
            decide_lines(arbiter, config(folder, output=str(folder / name)), {})
    assert (folder / "cases.jsonl").read_text() == case()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["input=nowhere.jsonl"], "input=nowhere.jsonl: there is no such file"),
        (["input=."], "input=.: there is no such file"),
        ([f"input={'n' * 300}"], "nnn: there is no such file"),
        (["input={cases}", f"output={'n' * 300}"], "File name too long; choose a shorter name"),
        pytest.param(
            ["input={cases}", "output=/dev/full"],
            "output=/dev/full: No space left",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here"),
        ),
        (["input={cases}", "output=no/folder/x"], "there is no folder no/folder"),
        (["input={cases}", "output=."], "output=.: is a folder"),
        (["input={cases}", "question=q"], "question=q: is said by the lines of input"),
        (["input={cases}", "images=[a.png]"], "is said by the lines of input"),
        (["input={cases}", "batch_size=0"], "batch_size=0: must be an integer >= 1"),
        (["output=x", "question=q", "candidates=[a,b]"], "output=x: needs input=<file>"),
        ([], "question=???: is required: give question=<value>, or input=<file>"),
    ],
    ids=str,
)
def test_mistakes_give_one_line(mistake, smoke_run, folder, arguments, line):
    cases = folder / "cases.jsonl"
    cases.write_text(case())
    given = [argument.format(cases=cases) for argument in arguments]
    assert line in mistake("decide", f"run={smoke_run[0]}", *given)


class Lines(io.RawIOBase):
    """As many different questions as asked for, about small pictures, never all in memory."""

    def __init__(self, count: int, folder: Path):
        self._lines = (
            json.dumps({"question": f"{i}: {QUESTION}", "candidates": [*COLORS, f"shade {i}"]})
            if i % 50
            else case(image=("red.png", "blue.png")[i // 50 % 2])
            for i in range(count)
        )

    def readline(self, size: int = -1) -> bytes:
        line = next(self._lines, None)
        return b"" if line is None else line.encode() + b"\n"


@pytest.mark.slow
def test_memory_stays_flat_over_100_000_lines(arbiter, folder):
    process, resident = psutil.Process(), {}
    count = 100_000
    for answer in answers(arbiter, Lines(count, folder), folder, "", 256, {}):
        assert "error" not in answer
        if answer["line"] % 10_000 == 0:
            gc.collect()
            resident[answer["line"]] = process.memory_info().rss / 2**20
    assert answer["line"] == count
    # After a tenth everything has been loaded; what is kept of a line would be seen below:
    # 90,000 lines of 256 float32 text features alone are 88 MB.
    assert resident[count] - resident[10_000] < 24, resident
