"""Showing, verifying and pruning a store, as a library and as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from arbiter.errors import ConfigError, StoreError
from arbiter.features.inventory import list_tables, remove, verify
from arbiter.features.store import FeatureStore
from experiments.features import lines, to_prune
from experiments.schema import PruneConfig
from tests.features.helpers import CountingEncoder, flip_byte, picture

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path) -> Path:
    """Three pictures and five texts as int8, two texts as float16, the latter long unused."""
    FeatureStore(tmp_path, CountingEncoder()).ensure("image", [picture(i) for i in range(3)])
    FeatureStore(tmp_path, CountingEncoder()).ensure("text", list("abcde"))
    old = FeatureStore(tmp_path, CountingEncoder(cache_dtype="float16"))
    old.ensure("text", list("ab"))
    ten_days_ago = time.time() - 10 * 86_400
    os.utime(old.directory("text") / "last_used", (ten_days_ago, ten_days_ago))
    return tmp_path


def by_contents(root: Path) -> dict[int, object]:
    return {table.contents: table for table in list_tables(root)}


def test_tables_are_listed_with_their_size_and_age(root):
    tables = by_contents(root)
    assert {n: (t.kind, t.dtype, t.encoder) for n, t in tables.items()} == {
        3: ("image", "int8", "raw"),
        5: ("text", "int8", "raw"),
        2: ("text", "float16", "raw"),
    }
    assert tables[2].idle_days == pytest.approx(10, abs=0.01)
    assert tables[5].idle_days == pytest.approx(0, abs=0.01)
    on_disk = sum(p.stat().st_size for p in tables[3].directory.iterdir())
    assert tables[3].size_mb == pytest.approx(on_disk / 1e6)
    assert [line.split()[0] for line in lines(list_tables(root))][1] == tables[3].directory.name


def test_verifying_finds_a_flipped_byte_and_makes_room_for_it(root):
    table = by_contents(root)[5]
    assert verify(table) == []
    (shard,) = table.directory.glob("0*")
    flip_byte(shard, shard.stat().st_size // 2)
    assert verify(table) == [shard.name]
    assert not shard.exists()
    encoder = CountingEncoder()
    FeatureStore(root, encoder).ensure("text", list("abcde"))
    assert encoder.encoded["text"] == 5 and shard.exists()


def test_conditions_of_pruning_hold_together(root):
    tables = list_tables(root)

    def chosen(**prune) -> set[int]:
        return {table.contents for table in to_prune(tables, PruneConfig(**prune))}

    assert chosen() == set()
    assert chosen(older_than_days=9) == {2}
    assert chosen(older_than_days=11) == set()
    assert chosen(encoder="raw") == {2, 3, 5}
    name = by_contents(root)[5].directory.name
    assert chosen(encoder=name) == {5}
    assert chosen(encoder=name, older_than_days=9) == set()
    with pytest.raises(ConfigError, match=r"prune\.encoder=clip: the store has raw"):
        chosen(encoder="clip")


def test_a_table_that_is_being_built_is_left_alone(root):
    table = list_tables(root)[0]
    with FileLock(table.directory / ".lock"):
        for action in (verify, remove):
            with pytest.raises(StoreError, match="is being built"):
                action(table)
    assert table.directory.is_dir()


def test_the_command_prunes_shows_and_reports_damage(root):
    (shard,) = by_contents(root)[3].directory.glob("0*")
    flip_byte(shard, shard.stat().st_size // 2)
    done = subprocess.run(
        [sys.executable, "-m", "experiments.features", f"paths.features={root}", "verify=true",
         "prune.older_than_days=9"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: features: 1 damaged files removed") and shard.name in error
    shown = done.stdout.splitlines()
    assert shown[0].startswith("removed text-") and shown[1].split()[0] == "table"
    assert [line.split()[0].split("-")[0] for line in shown[2:]] == ["text", "image", "total"]
