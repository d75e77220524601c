import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from arbiter.datasets import manifest
from arbiter.datasets.jsonl import Jsonl, JsonlConfig
from arbiter.datasets.mix import DatasetConfig, load_mix
from arbiter.errors import SourceError
from arbiter.media import load_image
from arbiter.sample import Modality
from tests.datasets.hub_files import picture

DOCUMENT = Path(__file__).parents[2] / "docs" / "own_data.md"
BASE = {"question": "Which?", "candidates": ["a", "b"], "answer": "b"}


def load(folder, *lines, **options):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "data.jsonl").write_text(text)
    return Jsonl(JsonlConfig(path=str(folder / "data.jsonl"), **options)).load(0)


def test_all_keys(tmp_path):
    media = tmp_path / "media"
    media.mkdir()
    for n in range(3):
        (media / f"{n}.png").write_bytes(picture(n))
    soundfile.write(media / "s.wav", np.full(8000, 0.5), 8000)
    line = BASE | {
        "context": "Read this.",
        "image": "media/0.png",
        "images": ["media/1.png"],
        "video": ["media/2.png", "media/0.png"],
        "audio": "media/s.wav",
        "split": "val",
        "group": "g",
        "id": "first",
        "question_type": "kind",
    }
    (sample,) = load(tmp_path, line).parts["val"]
    assert sample.answer == 1
    assert sample.modalities == set(Modality)
    assert sample.images == (media / "0.png", media / "1.png")
    assert load_image(sample.images[1]).tobytes() == load_image(picture(1)).tobytes()
    assert sample.video == (media / "2.png", media / "0.png")
    assert len(sample.audio) == 16000 and sample.audio[8000] == pytest.approx(0.5, abs=1e-3)
    assert (sample.context, sample.group, sample.id) == ("Read this.", "g", "first")
    assert sample.meta == {"question_type": "kind"}


def test_an_answer_is_a_text_or_an_index(tmp_path):
    numbers = {"question": "How many?", "candidates": ["2", "1", "0"]}
    lines = [numbers | {"answer": "2"}, numbers | {"answer": 2}, BASE | {"answer": " a "}]
    assert [s.answer for s in load(tmp_path, *lines).parts["all"]] == [0, 2, 0]


def test_empty_lines_and_nulls_do_not_matter(tmp_path):
    loaded = load(tmp_path, BASE, "", BASE | {"context": None, "image": None}, "  ")
    assert [s.modalities for s in loaded.parts["all"]] == [frozenset(), frozenset()]


def test_what_is_absent_may_be_written(tmp_path):
    nothing = {"context": None, "image": None, "images": [], "video": [], "audio": None, "id": None}
    (sample,) = load(tmp_path, BASE | nothing).parts["all"]
    assert sample.modalities == frozenset()


def test_lines_end_at_line_breaks_only(tmp_path):
    """A text may hold the separators of Unicode, which Python takes for ends of lines."""
    line = json.dumps(BASE | {"question": "a\u2028b\x85c"}, ensure_ascii=False)
    (tmp_path / "data.jsonl").write_bytes(f"{line}\r\n{line}".encode())
    loaded = Jsonl(JsonlConfig(path=str(tmp_path / "data.jsonl"))).load(0)
    assert [s.question for s in loaded.parts["all"]] == ["a\u2028b\x85c"] * 2


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps(BASE), encoding="utf-8-sig")
    loaded = Jsonl(JsonlConfig(path=str(tmp_path / "data.jsonl"))).load(0)
    assert len(loaded.parts["all"]) == 1


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings_are_named(tmp_path, encoding):
    text = json.dumps(BASE | {"question": "où?"}, ensure_ascii=False)
    (tmp_path / "data.jsonl").write_text(text, encoding=encoding)
    with pytest.raises(SourceError, match="line 1: not UTF-8 text; save the file as UTF-8"):
        Jsonl(JsonlConfig(path=str(tmp_path / "data.jsonl"))).load(0)


def test_a_line_without_an_end_is_not_read_to_it(monkeypatch):
    monkeypatch.setattr(manifest, "MAX_LINE_BYTES", 20)
    lines = [b"x" * 20, b"y" * 21, b"z" * 90, b"", b"last"]
    found = list(manifest.numbered_lines(io.BytesIO(b"\n".join(lines))))
    assert found == [(n, line[:21]) for n, line in enumerate(lines, start=1)]
    with pytest.raises(SourceError, match="longer than 20 bytes"):
        manifest.parse_line(found[2][1], ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'question': 1}", r"not JSON \(.* at column 2\)"),
        ("[1]", "not a JSON object"),
        (BASE | {"pictures": []}, "no such key 'pictures'; there are question, .*, images, "),
        ({k: BASE[k] for k in ("question", "answer")}, "candidates is missing"),
        (BASE | {"candidates": "a, b"}, "candidates must be a list of texts"),
        (BASE | {"candidates": ["a", 1]}, "candidates must be a list of texts"),
        (BASE | {"answer": True}, "answer must be a text or an index"),
        (BASE | {"answer": 1.0}, "answer must be a text or an index"),
        (BASE | {"answer": "c"}, r"answer 'c' is none of the candidates \['a', 'b'\]"),
        (BASE | {"answer": 2}, "answer 2 is not an index into 2 candidates"),
        (BASE | {"candidates": ["b", "b "]}, "candidate 'b' is given more than once"),
        (BASE | {"candidates": [], "answer": 0}, "no candidate given"),
        (BASE | {"question": " "}, "the question is empty"),
        (BASE | {"question": None}, "question is missing"),
        ('{"question": "a", "question": "b"}', "the key 'question' is given more than once"),
        ('{"question": NaN}', "NaN is not a JSON number"),
        (BASE | {"image": ["x.png"]}, "image must be a text"),
        (BASE | {"split": "dev"}, "split 'dev' is none of train, val, calibration, test"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    with pytest.raises(SourceError, match=r"data\.jsonl line 2: .*" + message) as raised:
        load(tmp_path, BASE, line)
    assert "\n" not in str(raised.value)
    # The place is named once, as a person counts.
    assert str(raised.value).count("line 2") == 1 and ": jsonl" not in str(raised.value)


def test_a_missing_manifest_says_what_to_give(tmp_path):
    config = JsonlConfig(path=str(tmp_path / "no.jsonl"))
    with pytest.raises(SourceError, match=r"no\.jsonl \(No such file or directory\); give path"):
        Jsonl(config).load(0)


def test_unreadable_sounds_and_pictures_are_counted_together(tmp_path):
    (tmp_path / "bad.wav").write_text("no")
    good = [BASE | {"id": str(n)} for n in range(198)]
    lines = [*good, BASE | {"audio": "bad.wav"}, BASE | {"image": "missing.png"}]
    load(tmp_path, *lines)
    config = JsonlConfig(path=str(tmp_path / "data.jsonl"))
    mix = load_mix(DatasetConfig(sources={"jsonl": config}), 0)
    assert mix.statistics["jsonl"].skipped == {"undecodable media": 2}
    config.max_skipped_share = 0.005
    with pytest.raises(
        SourceError, match=r"2 of 200 .*first: line 199: .*bad\.wav: not readable audio"
    ):
        load_mix(DatasetConfig(sources={"jsonl": config}), 0)


def test_questions_about_one_text_share_a_group(tmp_path):
    lines = [BASE | {"context": "A."}, BASE | {"context": "A."}, BASE | {"context": "B."}, BASE]
    groups = [s.group for s in load(tmp_path, *lines).parts["all"]]
    assert groups[0] == groups[1] and len(set(groups)) == 3


def test_a_video_file_becomes_frames(tmp_path):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for level in range(12):
            pixels = np.full((32, 64, 3), 20 * level, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())
    loaded = load(tmp_path, BASE | {"video": "clip.mp4"}, video_frames=3, max_frame_side=32)
    (sample,) = loaded.parts["all"]
    assert [frame.shape for frame in sample.video] == [(16, 32, 3)] * 3
    assert [round(frame.mean() / 20) for frame in sample.video] == [2, 6, 10]


def test_the_documented_example_works_as_it_is_written(tmp_path):
    blocks = dict(re.findall(r"```(python|json)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))
    subprocess.run([sys.executable, "-c", blocks["python"]], cwd=tmp_path, check=True, timeout=60)
    manifest = tmp_path / "mine" / "data.jsonl"
    manifest.write_text(blocks["json"])
    mix = load_mix(DatasetConfig(sources={"jsonl": JsonlConfig(path=str(manifest))}), 0)
    assert {split: len(part) for split, part in mix.items()} == {
        "train": 5,
        "val": 1,
        "calibration": 1,
        "test": 0,
    }
    # The whole train part together shows every modality; the keys named are those that exist.
    assert {m for s in mix["train"] for m in s.modalities} == set(Modality)
    assert mix.statistics["jsonl"].skipped == {}
    table = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", DOCUMENT.read_text(), re.M)))
    )
    with pytest.raises(SourceError) as raised:
        load(tmp_path, {"nothing": 1})
    assert table == set(str(raised.value).split("there are ")[1].split(", "))


def test_an_empty_manifest_is_named(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(SourceError, match=r"empty\.jsonl: holds no samples"):
        Jsonl(JsonlConfig(path=str(tmp_path / "empty.jsonl"))).load(0)
