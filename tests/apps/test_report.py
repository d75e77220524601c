"""experiments.report, and the page of a real run over all modalities, whose texts are hostile."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from arbiter.report import write_report
from tests.browser import CHROMIUM, Browser
from tests.conftest import draw_square, run_app, tone
from tests.report.parsed import SECTIONS, Page

EVIL = "<script>alert(1)</script>"
COLORS = ("red", "green", "blue", "black")


def write_manifest(folder: Path) -> Path:
    """Twenty pictures, ten sounds, ten clips and ten texts with questions that hold a script."""
    rng, lines = np.random.default_rng(0), []

    def add(question: str, candidates: list[str], answer: int, **media) -> None:
        line = {"question": f"{question} {EVIL}", "candidates": candidates, "answer": answer}
        lines.append({**line, "question_type": f"{EVIL}{len(media)}", **media})

    for i in range(20):
        color, name = i % 4, f"{i}.png"
        draw_square(COLORS[color], *rng.integers(0, 48, 2).tolist()).save(folder / name)
        add("what color?", [*COLORS, EVIL], color, image=name)
        add("is it red?", ["no", "yes"], int(color == 0), image=name)
    for i in range(10):
        soundfile.write(folder / f"{i}.wav", tone(200 + 100 * i), 16_000)
        add("is it high?", ["no", f"yes {EVIL}"], int(i > 4), audio=f"{i}.wav")
        frames = [f"{(i + k) % 20}.png" for k in range(5)]
        add("does it move?", ["no", "yes"], i % 2, video=frames)
        context = f"{'Ann' if i % 2 else 'Bo'} came last, at {i}. {EVIL}"
        split = "train" if i < 6 else "test"
        add("who came first?", ["Ann", "Bo"], i % 2, context=context, split=split)
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run on the manifest."""
    folder = tmp_path_factory.mktemp("report")
    data = write_manifest(folder)
    done = run_app(
        "experiments.train", "dataset=jsonl", f"dataset.sources.jsonl.path={data}",
        "dataset.sources.jsonl.split={train: 0.4, val: 0.1, calibration: 0.2, test: 0.3}",
        "schedule.epochs=2", "schedule.batch_size=4", "schedule.warmup_steps=2",
        "logging.every_steps=1", "calibration.deliberation.passes=2",
        f"paths.features={folder / 'features'}",
        f"hydra.run.dir={folder / 'run'}", OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def hostile(trained: Path) -> Path:
    """The same run under a name, and from a source, that hold a script; its page made again."""
    run = trained.with_name("<script>run")
    shutil.copytree(trained, run)
    for name in ("metrics.jsonl", "evaluation/test.json", "evaluation/gallery.json"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace('"jsonl"', json.dumps(EVIL)))
    write_report(run)
    return run


def test_the_page_made_at_the_end_is_the_one_made_again_later(trained):
    def page() -> str:
        return Page(trained / "report.html").text.split("Made 20")[0]

    first = page()
    (trained / "report.html").unlink()
    done = run_app("experiments.report", f"run={trained}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"report: {trained / 'report.html'}"
    # The status is written after the first page: only then is there a time of the end.
    assert page().split(". A decision model", 1)[1] == first.split(". A decision model", 1)[1]


def test_all_sections_are_there_and_texts_are_only_texts(hostile):
    page = Page(hostile / "report.html")
    assert page.sections == SECTIONS
    assert page.scripts == 0
    assert not [a for a in page.addresses if not a.startswith(("#", "data:"))]
    assert "Arbiter run <script>run" in page.text
    for section, told in (("results", EVIL), ("decisions", f"what color? {EVIL}"),
                          ("calibration", EVIL), ("material", EVIL)):  # fmt: skip
        assert told in page.text_of[section], section


def test_figures_are_those_of_the_evaluation(hostile):
    page = Page(hostile / "report.html")
    overall = json.loads((hostile / "evaluation" / "test.json").read_text())["overall"]
    low, high = overall["accuracy_interval"]
    assert f"{overall['accuracy']:.2%}" in page.text_of["results"]
    assert f"{100 * low:.2f} to {high:.2%}" in page.text_of["results"]
    assert f"{overall['nll']:.4f}" in page.text_of["calibration"]
    assert f"{overall['uncalibrated']['nll']:.4f}" in page.text_of["calibration"]
    for part in overall["conformal"]:
        assert f"{part['coverage']:.2%}" in page.text_of["sets"]
    events = [json.loads(line) for line in (hostile / "metrics.jsonl").open()]
    for epoch in (e for e in events if e["event"] == "epoch"):
        assert f"{epoch['val_acc']:.2%}" in page.text_of["learning"]
    last = [e for e in events if e["event"] == "step"][-1]["expert_load"]
    assert f"{last[0][0]:.1%}" in page.text_of["experts"]


def test_every_modality_is_shown_and_the_page_stays_small(hostile):
    html = (hostile / "report.html").read_text()
    assert 'class="image"' in html
    assert "frames of a clip of 5" in html
    assert "<audio controls" in html
    assert "waveform, 500 ms" in html
    assert 'class="context"' in html
    assert len(html) < 1_500_000


def test_a_run_with_too_few_samples_to_calibrate_ends_with_a_page_that_says_so(tmp_path):
    lines = [
        {"question": f"{s} {i} is {c}; what color?", "candidates": COLORS, "answer": c, "split": s}
        for s, count in (("train", 8), ("val", 4), ("calibration", 1), ("test", 6))
        for i, c in zip(range(count), 2 * COLORS, strict=False)
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run_app(
        "experiments.train", "architecture=tiny", "encoder=raw", "dataset=jsonl",
        f"dataset.sources.jsonl.path={data}", "schedule.epochs=1", "schedule.warmup_steps=1",
        f"paths.features={tmp_path / 'features'}", f"hydra.run.dir={tmp_path / 'run'}",
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    page = Page(tmp_path / "run" / "report.html")
    assert page.sections == SECTIONS
    assert "calibration error" in page.text_of["results"]
    assert "The model is not calibrated: no prediction sets" in page.text_of["results"]
    assert "Bars are uncalibrated probabilities" in page.text_of["decisions"]
    assert "it is not calibrated" in page.text_of["sets"]
    assert "Not calibrated" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_mistakes_are_one_line(mistake, tmp_path):
    assert "not a run directory" in mistake("report", f"run={tmp_path}")
    assert "run" in mistake("report")
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    file = tmp_path / "file"
    file.touch()
    for output in (file, file / "x"):
        line = mistake("report", f"runs={tmp_path / 'run'}", f"output={output}")
        assert line.endswith("is a file; name a folder") and f"output={output}: " in line


# What the page is to a person: a console without errors, no request, nothing that sticks out,
# no labels on each other, and text that stands out from what is behind it.
STICKS_OUT = "document.documentElement.scrollWidth > innerWidth"
TOO_FAINT = """(() => {
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { c = c.map(linear); return .2126 * c[0] + .7152 * c[1] + .0722 * c[2]; };
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3) return c; } return [255, 255, 255]; };
  const faint = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (!e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const pair = [rgb(e instanceof SVGElement ? style.fill : style.color).slice(0, 3), behind(e)];
    const [low, high] = pair.map(light).sort((a, b) => a - b);
    if ((high + .05) / (low + .05) < 4.5) faint.push(e.outerHTML.slice(0, 90)); }
  return faint; })()"""
COLLIDING = """[...document.querySelectorAll('svg.chart')].filter(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect());
  return boxes.some((a, i) => boxes.slice(i + 1).some(b => a.left < b.right && b.left < a.right
    && a.top < b.bottom - 2 && b.top < a.bottom - 2)); }).map(svg => svg.ariaLabel)"""
SMALLEST = """Math.min(...[...document.querySelectorAll('svg.chart text')].map(t =>
  11 * t.getScreenCTM().a))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_a_complaint(browser, hostile, width, scheme):
    browser.requests.clear()
    browser.show(width, 900, scheme)
    browser.open(hostile / "report.html")
    assert browser.run("[...document.querySelectorAll('section')].map(s => s.id)") == SECTIONS
    assert not browser.run(STICKS_OUT)
    assert browser.run(TOO_FAINT) == []
    assert browser.run(COLLIDING) == []
    assert browser.run(SMALLEST) > 9.5
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert browser.run("[...document.images].every(i => i.naturalWidth > 0)")
    asked = [url for url in browser.requests if not url.startswith("data:")]
    assert asked == [(hostile / "report.html").resolve().as_uri()]
    assert browser.problems == []


def test_it_prints_light_and_within_the_paper(browser, hostile):
    browser.show(720, 1000, "dark")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser("Emulation.setEmulatedMedia", media="print", features=features)
    browser.open(hostile / "report.html")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not browser.run(STICKS_OUT)
    assert browser.run(TOO_FAINT) == []
    assert browser.pdf().startswith(b"%PDF")
