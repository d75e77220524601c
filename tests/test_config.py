from dataclasses import dataclass
from typing import Any

import pytest
from omegaconf import OmegaConf

from arbiter.config import build, describe_allowed, from_dict, instantiate, locate, option, validate
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.errors import ConfigError


@dataclass
class Inner:
    share: float = option(0.5, help="A share.", low=0, below=1)
    sizes: list[int] = option([1, 2], help="Sizes.", above=0)

    def check(self) -> None:
        if self.share * sum(self.sizes) > 10:
            raise ConfigError("share", self.share, "is too much of sizes")


@dataclass
class Outer:
    inner: Inner = option(Inner(), help="Inner.")
    parts: dict[str, Any] = option({}, help="Parts.")
    kind: str = option("a", help="Kind.", choices=("a", "b"))
    count: int | None = option(None, help="Count.", low=1)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (Outer(inner=Inner(share=1.0)), "inner.share"),
        (Outer(inner=Inner(share=-0.1)), "inner.share"),
        (Outer(inner=Inner(sizes=[3, 0])), "inner.sizes"),
        (Outer(inner=Inner(share=0.9, sizes=[9, 9])), "inner.share"),
        (Outer(parts={"x": Inner(share=2)}), "parts.x.share"),
        (Outer(kind="c"), "kind"),
        (Outer(count=0), "count"),
    ],
)
def test_errors_name_the_full_key(config, key):
    with pytest.raises(ConfigError) as error:
        validate(config)
    assert error.value.key == key
    assert str(error.value).startswith(f"{key}=")


def test_values_at_inclusive_bounds_are_allowed():
    validate(Outer(inner=Inner(share=0.0), count=1, parts={"x": Inner()}))


def test_defaults_are_not_shared_between_instances():
    first, second = Outer(), Outer()
    first.inner.sizes.append(3)
    assert second.inner.sizes == [1, 2]


def test_allowed_values_are_described_in_words():
    assert describe_allowed(Outer, "kind") == "one of a, b"
    assert describe_allowed(Outer, "count") == "an integer or null >= 1"
    assert describe_allowed(Inner, "share") == "a number >= 0 and < 1"


def test_an_added_key_is_refused():
    composed = OmegaConf.structured(Outer)
    OmegaConf.set_struct(composed, False)
    composed.inner = OmegaConf.merge(composed.inner, {})
    OmegaConf.update(composed, "inner.other", 1, force_add=True)
    with pytest.raises(ConfigError, match=r"inner\.other=1: no such key"):
        instantiate(composed)


def test_saved_configs_are_type_checked():
    assert from_dict(RawEncoderConfig, {"text_dim": 64}).text_dim == 64
    for bad in ({"text_dim": "many"}, {"nonsense": 1}, {"text_dim": 3}):
        with pytest.raises(ConfigError):
            from_dict(RawEncoderConfig, bad)


def test_only_arbiters_own_classes_are_built():
    assert isinstance(build(RawEncoderConfig()), RawEncoder)
    for target in ("os.system", "builtins.eval", "arbiter.nowhere.X", "arbiter.sample.Missing"):
        with pytest.raises(ConfigError):
            locate(target)
