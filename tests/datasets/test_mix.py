import io
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

import arbiter.datasets.mix as mix_module
from arbiter.datasets.base import ALL, HELD_OUT, LoadedSource, SourceConfig
from arbiter.datasets.mix import DatasetConfig, load_mix
from arbiter.datasets.scienceqa import ScienceQAConfig
from arbiter.errors import SourceError
from arbiter.sample import Sample
from tests.datasets.hub_files import SCIENCEQA, cell, picture, write_split


@dataclass
class ListedConfig(SourceConfig):
    """A source whose samples a test has made."""

    _target_: str = "listed"
    loaded: LoadedSource = field(default_factory=LoadedSource)


@pytest.fixture(autouse=True)
def listed_sources(monkeypatch):
    """Lets a mix take samples from a test, and leaves all that happens to them as it is."""

    class Listed:
        def __init__(self, loaded):
            self.loaded = loaded

        def load(self, seed):
            return self.loaded

    build = mix_module.build
    monkeypatch.setattr(
        mix_module, "build", lambda c: Listed(c.loaded) if c._target_ == "listed" else build(c)
    )


def sample(source, number, image=None, group=None, **changes):
    fields = {
        "question": f"{source} {number}?",
        "candidates": ("a", "b"),
        "answer": 0,
        "images": () if image is None else (image,),
        "source": source,
        "group": group or str(number),
        "id": f"{source}-{number}",
    }
    return Sample(**fields | changes)


def listed(parts, **options):
    return ListedConfig(loaded=LoadedSource(parts=parts), **options)


def mixed(seed=0, **sources):
    return load_mix(DatasetConfig(sources=sources), seed)


def split_of(mix):
    return {s.id: split for split, part in mix.items() for s in part}


def many(source, count, first=0):
    return [sample(source, n, picture(first + n, 4)) for n in range(count)]


def test_shares_are_kept_and_no_group_is_cut():
    samples = [sample("a", n, picture(n // 3, 4), group=str(n // 3)) for n in range(3000)]
    mix = mixed(a=listed({ALL: samples}))
    assert {split: round(len(part) / 3000, 1) for split, part in mix.items()} == {
        "train": 0.8,
        "val": 0.1,
        "calibration": 0.1,
        "test": 0.0,
    }
    homes = Counter(group for part in mix.values() for group in {s.group for s in part})
    assert len(homes) == 1000 and set(homes.values()) == {1}


def test_adding_samples_or_a_source_moves_nothing():
    few = split_of(mixed(a=listed({ALL: many("a", 300)})))
    more = split_of(mixed(a=listed({ALL: many("a", 400)})))
    both = split_of(
        mixed(a=listed({ALL: many("a", 300)}), b=listed({ALL: many("b", 300, first=150)}))
    )
    assert few.items() <= more.items()
    assert few.items() <= both.items()
    assert split_of(mixed(1, a=listed({ALL: many("a", 300)}))) != few


def test_the_same_pixels_in_two_sources_share_a_group_whatever_the_file_format():
    def encode(number, format):
        encoded = io.BytesIO()
        Image.open(io.BytesIO(picture(number, 4))).save(encoded, format)
        return encoded.getvalue()

    ours = [sample("a", n, encode(n, "PNG")) for n in range(200)]
    theirs = [sample("b", n, encode(n, "BMP")) for n in range(100, 300)]
    mix = mixed(a=listed({ALL: ours}), b=listed({ALL: theirs}))
    group = {s.id: s.group for part in mix.values() for s in part}
    where = split_of(mix)
    for n in range(100, 200):
        assert group[f"a-{n}"] == group[f"b-{n}"]
        assert where[f"a-{n}"] == where[f"b-{n}"]
    assert group["a-1"] != group["b-201"]
    assert len(set(group.values())) == 300


def test_groups_link_in_chains():
    # Sample n holds pictures n and n + 1: a chain of a hundred.
    chain = [sample("a", n, images=(picture(n, 4), picture(n + 1, 4))) for n in range(100)]
    mix = mixed(a=listed({ALL: chain}), b=listed({ALL: many("b", 200, first=1000)}))
    assert len({split for id_, split in split_of(mix).items() if id_.startswith("a")}) == 1


def test_a_plain_video_frame_links_nothing_but_a_plain_picture_does():
    black = np.zeros((4, 4, 3), np.uint8)
    clips = [sample("a", n, video=(black, picture(n, 4), black)) for n in range(100)]
    assert mixed(a=listed({ALL: clips})).statistics["a"].groups == 100
    pictures = [sample("a", n, black) for n in range(2)]
    others = many("b", 100)
    assert mixed(a=listed({ALL: pictures}), b=listed({ALL: others})).statistics["a"].groups == 1


def test_the_same_sound_links():
    waves = [np.random.default_rng(n // 2).uniform(-1, 1, 50).astype(np.float32) for n in range(80)]
    samples = [sample("a", n, audio=wave) for n, wave in enumerate(waves)]
    assert mixed(a=listed({ALL: samples})).statistics["a"].groups == 40


def test_official_splits_stay_and_what_they_share_with_the_test_is_left_out():
    parts = {
        "train": many("a", 20),
        HELD_OUT: many("a", 40, first=1000),
        "test": [sample("a", f"t{n}", picture(15 + n, 4)) for n in range(10)],
    }
    for n, held in enumerate(parts[HELD_OUT]):
        parts[HELD_OUT][n] = sample("a", f"v{n}", held.images[0])
    other = {ALL: [sample("b", n, picture(20 + n, 4)) for n in range(50)]}
    mix = mixed(a=listed(parts), b=listed(other))
    where = split_of(mix)
    # Pictures 15 to 24 are tested on: 15 to 19 leave train, 20 to 24 leave the other source.
    assert {where.get(f"a-{n}") for n in range(15)} == {"train"}
    assert {where.get(f"a-{n}") for n in range(15, 20)} == {None}
    assert {where[f"a-t{n}"] for n in range(10)} == {"test"}
    assert {where.get(f"b-{n}") for n in range(5)} == {None}
    assert all(f"b-{n}" in where for n in range(5, 50))
    assert {where[f"a-v{n}"] for n in range(40)} == {"val", "calibration"}
    reason = "shared a picture with a stricter official split"
    assert mix.statistics["a"].skipped == {reason: 5}
    assert mix.statistics["b"].skipped == {reason: 5}


def test_what_is_shared_with_an_official_train_split_follows_it():
    mix = mixed(
        a=listed({"train": many("a", 30)}),
        b=listed({ALL: many("b", 30)}),
        c=listed({ALL: many("c", 100, first=500)}),
    )
    assert {where for id_, where in split_of(mix).items() if id_[0] == "b"} == {"train"}


def test_a_cap_holds_for_the_whole_source_and_takes_whole_groups():
    parts = {
        ALL: [sample("a", n, picture(n // 4, 4), group=str(n // 4)) for n in range(800)],
        "test": [sample("a", f"t{n}", picture(5000 + n, 4)) for n in range(200)],
    }
    mix = mixed(a=listed(parts, max_samples=100))
    assert mix.statistics["a"].kept == 100
    assert len(mix["test"]) == 20
    sizes = Counter(s.group for split in ("train", "val", "calibration") for s in mix[split])
    assert set(sizes.values()) == {4}


def truncated(number):
    content = picture(number, 64, "JPEG")
    return content[: len(content) // 2]


@pytest.mark.parametrize("make", [truncated, lambda n: b"no picture", lambda n: picture(n)[:-40]])
def test_damaged_pictures_are_skipped_and_counted(make):
    samples = many("a", 99)
    mix = mixed(a=listed({ALL: [*samples, sample("a", "bad", make(1))]}))
    assert "a-bad" not in split_of(mix)
    assert mix.statistics["a"].kept == 99
    assert mix.statistics["a"].skipped == {"undecodable media": 1}


def test_past_one_percent_it_fails_with_the_first_and_the_remedy():
    samples = [*many("a", 98), sample("a", "x", truncated(1)), sample("a", "y", b"none")]
    with pytest.raises(SourceError) as raised:
        mixed(a=listed({ALL: samples}))
    message = str(raised.value)
    assert message.startswith("a: 2 of 100 samples skipped for undecodable media, more than ")
    assert "first: a-x: " in message
    assert message.endswith("raise dataset.sources.a.max_skipped_share")
    assert mixed(a=listed({ALL: samples}, max_skipped_share=0.02)).statistics["a"].kept == 98


def test_a_missing_file_counts_as_damaged(tmp_path):
    samples = [*many("a", 99), sample("a", "gone", tmp_path / "gone.png")]
    assert mixed(a=listed({ALL: samples})).statistics["a"].skipped == {"undecodable media": 1}


def test_damaged_and_illegal_rows_of_a_real_file(tmp_path):
    def row(n, **changes):
        return (
            {name: "" for name in SCIENCEQA}
            | {
                "image": cell(picture(n)),
                "question": f"{n}?",
                "choices": ["a", "b"],
                "answer": 0,
            }
            | changes
        )

    rows = [row(n) for n in range(150)]
    rows[3] = row(3, image=cell(truncated(3)))
    rows[4] = row(4, choices=["same", "same"])
    for split in ("train", "validation", "test"):
        first = {"train": 0, "validation": 1000, "test": 2000}[split]
        part = rows if split == "train" else [row(first + n) for n in range(30)]
        write_split(tmp_path, split, SCIENCEQA, part)
    mix = mixed(scienceqa=ScienceQAConfig(path=str(tmp_path)))
    assert mix.statistics["scienceqa"].skipped == {"illegal samples": 1, "undecodable media": 1}
    with pytest.raises(SourceError, match=r"1 of 210 .* illegal samples.* scienceqa train/4: cand"):
        mixed(scienceqa=ScienceQAConfig(path=str(tmp_path), max_skipped_share=0.0))


def test_a_source_with_nothing_left_is_an_error():
    loaded = LoadedSource(parts={ALL: []})
    loaded.skipped["no picture"] = 7
    with pytest.raises(SourceError, match=r"^a: no samples; skipped: {'no picture': 7}"):
        mixed(a=ListedConfig(loaded=loaded))


def test_statistics_are_logged_in_one_line_per_source(caplog):
    caplog.set_level("INFO")
    mix = mixed(a=listed({ALL: many("a", 50)}), b=listed({ALL: many("b", 50, first=100)}))
    lines = [r.message for r in caplog.records if r.name == "arbiter.datasets.mix"]
    assert [line[:25] for line in lines] == [
        "a: 50 samples in 50 group",
        "b: 50 samples in 50 group",
    ]
    figures = mix.statistics["a"].to_dict()
    assert figures["kept"] == 50 == sum(figures["splits"].values())
    assert figures["candidates"] == {"2": 50} and figures["modalities"] == {"image": 50}


def test_a_split_without_a_share_gets_nothing():
    config = listed({ALL: many("a", 2000)})
    config.split.train, config.split.val, config.split.calibration = 0.9, 0.05, 0.05
    mix = mixed(a=config)
    assert mix["test"] == []
    assert 1700 < len(mix["train"]) < 1900
