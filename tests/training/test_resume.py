"""Which settings may differ when a run is gone on with."""

import copy
import re

import pytest

from arbiter.errors import ConfigError
from arbiter.training.checkpoint import State
from arbiter.training.resume import settled_values

SAVED = {
    "seed": 0,
    "dataset": {"sources": {"a": {"_target_": "arbiter.A", "max_samples": 10}}},
    "optimizer": {"_target_": "arbiter.AdamW", "lr": 0.1},
    "hardware": {"device": "cpu"},
    "schedule": {"epochs": 2, "decay": "constant"},
}


def settled(change, *given: str) -> dict:
    """What is settled when a change has come about, and this has been given."""
    composed = copy.deepcopy(SAVED)
    change(composed)
    state = State({}, {"config": SAVED, "step": 8, "steps_per_epoch": 4})
    return settled_values(state, composed, given)


def other_rate(config):
    config["optimizer"]["lr"] = 0.2


def more_sources(config):
    config["dataset"]["sources"]["more"] = {"_target_": "arbiter.B", "max_samples": 5}


def other_source(config):
    more_sources(config)
    del config["dataset"]["sources"]["a"]


def other_device(config):
    config["hardware"]["device"] = "cuda"


def new_option(config):
    config["optimizer"]["fused"] = False
    del config["seed"]


def more_epochs(config):
    config["schedule"]["epochs"] = 3


def test_what_nobody_asked_for_stays_as_it_was():
    assert settled(other_rate) == {"optimizer.lr": 0.1}
    assert settled(other_rate, "seed", "schedule") == {"optimizer.lr": 0.1}


@pytest.mark.parametrize("given", ["optimizer.lr", "optimizer", "experiment", "local"])
def test_what_was_asked_for_is_refused_also_by_a_preset(given):
    line = "optimizer.lr=0.2: the run has optimizer.lr=0.1, which cannot change on resume"
    with pytest.raises(ConfigError, match=re.escape(line)):
        settled(other_rate, given)


@pytest.mark.parametrize("given", [(), ("dataset",), ("dataset/source",), ("experiment",)], ids=str)
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            more_sources,
            "dataset.sources.more._target_=arbiter.B: the run has dataset.sources.more.",
        ),
        (
            other_source,
            "dataset.sources.more._target_=arbiter.B: the run has dataset.sources.more.",
        ),
        (
            lambda config: config["dataset"]["sources"].pop("a"),
            "dataset.sources.a._target_=(not set): the run has dataset.sources.a._target_=arb",
        ),
    ],
    ids=["more", "other", "fewer"],
)
def test_sources_neither_come_nor_go(change, line, given):
    with pytest.raises(ConfigError, match=re.escape(line)):
        settled(change, *given)


def test_options_of_another_version_pass():
    for given in ((), ("optimizer",), ("experiment",)):
        assert settled(new_option, *given) == {}
    with pytest.raises(
        ConfigError, match=re.escape("the run has optimizer.fused=(not set), which")
    ):
        settled(new_option, "optimizer.fused")


def test_a_preset_may_change_what_is_free():
    assert settled(other_device, "experiment") == {}
    assert settled(more_epochs, "experiment") == {}
