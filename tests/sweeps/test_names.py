"""Names of job directories: unique, short, safe, telling."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arbiter.sweeps.names import (
    MAX_LENGTH,
    covers,
    job_directory,
    override_key,
    override_value,
    short_keys,
)

SAFE = set(string.ascii_letters + string.digits + ".+-_")


@pytest.mark.parametrize(
    ("overrides", "fixed", "name"),
    [
        (["optimizer.lr=0.001", "seed=3"], [], "4_lr-0.001_seed-3"),
        (["experiment=smoke", "optimizer.lr=1e-4"], ["experiment"], "4_lr-1e-4"),
        (["architecture=v6"], [], "4_architecture-v6"),
        (["architecture.moe.top_k=2", "+x=1"], [], "4_top_k-2_x-1"),
        (["a.lr=1", "b.lr=2"], [], "4_a.lr-1_b.lr-2"),
        (["+g/s@g.s.a=x", "+g/s@g.s.b=y"], ["g/s@g.s.a"], "4_b-y"),
        (["experiment=smoke"], ["experiment"], "4"),
        ([], [], "4"),
    ],
)
def test_what_needs_no_changing_stands_as_given(overrides, fixed, name):
    assert job_directory(4, overrides, fixed) == name


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("dataset.path=/data/a b", "0_path--data-a-b_"),
        ("optimizer.betas=[0.9,0.99]", "0_betas--0.9-0.99_"),
        ("optimizer.lr=0.00123456789", "0_lr-0.001235_"),
        ("text='ärger: *?'", "0_text-"),
        ("paths.x=..", "0_x_"),
    ],
)
def test_what_was_changed_ends_with_a_hash(override, start):
    name = job_directory(0, [override], [])
    assert name.startswith(start) and re.fullmatch(r"[0-9a-f]{8}", name.rsplit("_", 1)[1])


def test_pairs_that_do_not_fit_are_left_out_whole():
    overrides = [f"section.number_{i}=0.12{i}" for i in range(9)]
    name = job_directory(12, overrides, [])
    assert len(name) <= MAX_LENGTH
    kept = re.findall(r"number_(\d)-([\d.]+)", name)
    assert kept and all(value == f"0.12{i}" for i, value in kept)
    other = job_directory(12, [*overrides[:-1], "section.number_8=9"], [])
    assert other != name  # by the hash: the value itself is not in the name


@given(st.lists(st.tuples(st.text("abc.", min_size=1), st.text()), max_size=6), st.integers(0, 999))
def test_any_name_suits_any_file_system(pairs, number):
    name = job_directory(number, [f"{key}={value}" for key, value in pairs], [])
    assert set(name) <= SAFE and len(name) <= MAX_LENGTH
    assert name.split("_")[0] == str(number) and not name.endswith(".")


@given(st.text(max_size=90), st.text(max_size=90))
def test_different_values_have_different_names(one, other):
    same = override_value(f"key={one}") == override_value(f"key={other}")
    names = [job_directory(0, [f"key={value}"], []) for value in (one, other)]
    assert (names[0] == names[1]) is same


def test_keys_are_told_apart_by_as_many_parts_as_it_takes():
    keys = ["a.b.lr", "a.c.lr", "seed", "c.lr"]
    assert short_keys(keys) == {
        "a.b.lr": "b.lr",
        "a.c.lr": "a.c.lr",
        "seed": "seed",
        "c.lr": "c.lr",
    }


def test_a_key_keeps_its_package():
    assert override_key("+dataset/source@dataset.sources.a=gqa") == (
        "dataset/source@dataset.sources.a"
    )
    assert [override_key(o) for o in ("++a.b=x@y=z", "~a.b")] == ["a.b", "a.b"]


@pytest.mark.parametrize(
    ("given", "covered"),
    [
        ("dataset", True),
        ("dataset/source", False),
        ("dataset/source@dataset.sources.a", True),
        ("dataset/source@dataset.sources.b", False),
        ("dataset.sources.a.path", True),
        ("dataset.sources.a.pat", False),
        ("experiment", True),
        ("other@_global_", True),
    ],
)
def test_a_group_stands_for_the_keys_of_its_package(given, covered):
    assert covers(given, "dataset.sources.a.path") is covered
