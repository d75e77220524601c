"""Every shipped recipe composes, is complete, and holds no key that its schema does not know."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from arbiter.config import build, instantiate
from experiments import schema

CONF = Path(__file__).resolve().parents[2] / "conf"

# A person's own data has no default place.
REQUIRED = {("dataset", "jsonl"): ("dataset.sources.jsonl.path=samples.jsonl",)}


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(autouse=True)
def hydra():
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str):
    config = compose("train", overrides=list(overrides))
    OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return instantiate(config)


@pytest.mark.parametrize("experiment", [None, *options("experiment")])
@pytest.mark.parametrize("hardware", options("hardware"))
def test_every_experiment_composes_with_every_profile(experiment, hardware):
    overrides = [f"hardware={hardware}"]
    if experiment:
        overrides.append(f"experiment={experiment}")
    config = composed(*overrides)
    size = config.hardware.micro_batch_size
    assert size == "auto" or size >= 1


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (group, option)
        for group in (
            "architecture",
            "encoder",
            "dataset",
            "objective",
            "optimizer",
            "schedule",
            "hardware",
        )
        for option in options(group)
    ],
)
def test_every_option_composes(group, option):
    config = composed(f"{group}={option}", *REQUIRED.get((group, option), ()))
    assert getattr(config, group) is not None
    build(config.encoder)


def test_a_profile_changes_nothing_but_itself():
    reference = composed("hardware=auto")
    for hardware in options("hardware"):
        other = composed(f"hardware={hardware}")
        other.hardware = reference.hardware
        assert other == reference


def test_the_schema_agrees_with_the_recipe_about_defaults():
    """A recipe shows its values; those it leaves out are the schema's."""
    config = compose("train")
    assert OmegaConf.is_missing(config, "encoder") is False
    assert config.schedule.warmup_steps == schema.TrainConfig().schedule.warmup_steps
