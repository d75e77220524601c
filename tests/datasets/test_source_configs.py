"""The config groups: every mix composes, and the command line can add, drop and resize sources."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from arbiter.config import build, instantiate
from arbiter.errors import ConfigError
from experiments import schema

CONF = Path(__file__).parents[2] / "conf"
MIXES = sorted(path.stem for path in (CONF / "dataset").glob("*.yaml"))
SOURCES = sorted(path.stem for path in (CONF / "dataset" / "source").glob("*.yaml"))


def mix(*overrides):
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return instantiate(compose("train", list(overrides))).dataset


def test_there_is_a_mix_and_a_source_for_all_that_was_promised():
    promised = {"ai2d", "easy_vqa", "gqa", "jsonl", "robotics", "scienceqa", "seed_bench_2"}
    assert promised | {"v6_max"} <= set(MIXES)
    assert promised | {"seed_bench"} <= set(SOURCES)


@pytest.mark.parametrize("name", [name for name in MIXES if name != "jsonl"])
def test_every_mix_composes(name):
    for source in mix(f"dataset={name}").sources.values():
        assert build(source).load


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_names_its_licence_and_size(name):
    head = (CONF / "dataset" / "source" / f"{name}.yaml").read_text().split("defaults:")[0].lower()
    assert "licence" in head or "(mit)" in head
    if name not in ("robotics", "jsonl", "easy_vqa"):
        assert "size" in head and "gb" in head


def test_jsonl_asks_for_its_path():
    with pytest.raises(Exception, match=r"dataset\.sources\.jsonl\.path"):
        mix("dataset=jsonl")
    assert mix("dataset=jsonl", "dataset.sources.jsonl.path=x").sources["jsonl"].path == "x"


def test_the_mix_of_the_predecessor():
    sources = mix("dataset=v6_max").sources
    assert {name: source.max_samples for name, source in sources.items()} == {
        "scienceqa": 2400,
        "seed_bench_2": 120,
        "ai2d": 600,
        "gqa": 2400,
        "robotics": 150,
    }
    assert sources["scienceqa"].image_only


def test_sources_are_added_dropped_and_resized_from_the_command_line():
    sources = mix(
        "dataset=v6_max",
        "dataset.sources.gqa.max_samples=10000",
        "~dataset.sources.robotics",
        "+dataset/source@dataset.sources.easy_vqa=easy_vqa",
        "dataset.sources.ai2d.train.path=/copies/cauldron",
    ).sources
    assert list(sources) == ["scienceqa", "seed_bench_2", "ai2d", "gqa", "easy_vqa"]
    assert sources["gqa"].max_samples == 10000
    assert sources["ai2d"].train.path == "/copies/cauldron"
    assert sources["ai2d"].train.config == "ai2d"


def test_a_mirrored_scene_has_another_answer_so_robotics_is_not_augmented():
    augment = OmegaConf.to_container(OmegaConf.structured(mix("dataset=robotics").augment))
    assert augment == {"horizontal_flip": False, "shift_patches": 0}


def test_settings_for_a_source_that_is_not_in_the_mix_are_named():
    """As when an experiment that resizes its own data set is given another one."""
    other = ("experiment=smoke", "dataset=robotics")
    with pytest.raises(
        ConfigError, match=r"take them out with ~dataset\.sources\.easy_vqa"
    ) as error:
        mix(*other)
    assert error.value.key == "dataset.sources.easy_vqa"
    assert set(mix(*other, "~dataset.sources.easy_vqa").sources) == {"robotics"}
