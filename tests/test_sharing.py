"""Saving, uploading and loading models as users of the Hugging Face hub expect it."""

import json
import random
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import ModelCard

from arbiter import Arbiter
from arbiter.errors import ArbiterError, RunError
from arbiter.files import verified_files, write_manifest
from arbiter.model.files import FILES
from tests import hub_server
from tests.mutations import changed

QUESTION, COLORS = "what color is the shape?", ["red", "green", "blue"]


@pytest.fixture(scope="module")
def model(smoke_run):
    return smoke_run[0] / "model"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def probabilities(arbiter):
    return arbiter.decide(QUESTION, COLORS).probabilities


# ---------------------------------------------------------------- folders


def test_what_is_saved_is_what_was_loaded_to_the_byte(model, tmp_path):
    assert Arbiter.load(model).save_pretrained(tmp_path / "copy") is None
    assert contents(tmp_path / "copy") == contents(model)
    # And once more, onto itself.
    Arbiter.load(tmp_path / "copy").save_pretrained(tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(model)


def test_a_run_and_its_model_are_the_same(smoke_run, model):
    assert probabilities(Arbiter.load(smoke_run[0])) == probabilities(Arbiter.load(str(model)))


def test_other_files_stay_and_old_parts_go(model, tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    (target / "foils.json").write_text("of another model")
    Arbiter.load(model).save_pretrained(str(target))
    assert (target / "notes.txt").read_text() == "mine"
    assert {p.name for p in target.iterdir()} == {*contents(model), "notes.txt"}
    assert "notes.txt" not in verified_files(target)
    assert set(contents(model)) <= {*FILES, "MANIFEST.json"}


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_file_is_no_directory(model, tmp_path, below):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is not a directory; give another one"):
        Arbiter.load(model).save_pretrained(tmp_path / "file" / below)
    with pytest.raises(RunError, match="name too long; choose a shorter name"):
        Arbiter.load(model).save_pretrained(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    "place", ["nowhere", "a/b/c", "../a", "/nowhere/x", "a b/c", "", "x" * 9999]
)
def test_a_place_that_is_none(place, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(RunError, match=r"no model there; give a run directory") as raised:
        Arbiter.load(place)
    assert "\n" not in str(raised.value)


# ---------------------------------------------------------------- the card


def test_the_card_says_what_the_hub_and_people_need(smoke_run, model):
    card = ModelCard.load(model / "README.md")
    summary = json.loads((smoke_run[0] / "summary.json").read_text())
    test = summary["test"]["easy_vqa"]
    assert card.data.library_name == "arbiter"
    assert {r.metric_type: r.metric_value for r in card.data.eval_results} == {
        "accuracy": round(test["accuracy"], 4),
        "ece": round(test["ece"], 4),
    }
    low, high = test["accuracy_interval"]
    for said in (
        f"{test['accuracy']:.2%} ({low:.2%} to {high:.2%})",
        f"{test['question_only_accuracy']:.2%}",
        f"{test['majority_accuracy']:.2%}",
        "| easy_vqa | 1,500 |",
        "| MIT |",
        "## Calibration",
        "## Limits",
        'Arbiter.load("path/to/this/folder")',
    ):
        assert said in card.text, said


def test_metadata_can_be_added(model, tmp_path):
    Arbiter.load(model).save_pretrained(
        tmp_path, model_card_kwargs={"license": "mit", "language": ["en"]}
    )
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.license, card.data.language) == ("mit", ["en"])
    assert card.data.eval_results == ModelCard.load(model / "README.md").data.eval_results
    assert Arbiter.load(tmp_path)


def test_metadata_make_a_card_where_there_is_none(model, tmp_path):
    path = shutil.copytree(model, tmp_path / "model")
    (path / "README.md").unlink()
    Arbiter.load(path).save_pretrained(tmp_path / "copy", model_card_kwargs={"license": "mit"})
    assert ModelCard.load(tmp_path / "copy" / "README.md").data.license == "mit"
    Arbiter.load(path).save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / "README.md").exists()


@pytest.mark.parametrize(
    "metadata", ["license: [mit", "- a", "1: 2", "tags: 3", "model-index: 3", "a: !!x/y {}"]
)
def test_metadata_that_are_none_are_one_line(model, tmp_path, metadata):
    path = shutil.copytree(model, tmp_path / "model")
    (path / "README.md").write_text(f"---\n{metadata}\n---\n# A card\n")
    arbiter = Arbiter.load(path)
    line = refusal(arbiter.save_pretrained, tmp_path / "x", model_card_kwargs={"license": "mit"})
    assert line.startswith("README.md: its metadata are not a model's")


def test_every_source_has_a_licence_or_says_that_it_is_unknown():
    from arbiter.datasets.jsonl import JsonlConfig
    from arbiter.datasets.scienceqa import ScienceQAConfig

    assert "NC" in ScienceQAConfig().licence and "CC BY-SA 4.0" in ScienceQAConfig().licence
    assert ScienceQAConfig().repositories == ("derek-thomas/ScienceQA",)
    assert JsonlConfig(path="x").licence is None


# ---------------------------------------------------------------- the hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in that this process takes for the hub, and nobody logged in."""
    with hub_server.running() as server:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for module in (constants, huggingface_hub.file_download):
            name = "HUGGINGFACE_CO_URL_TEMPLATE"
            monkeypatch.setattr(module, name, template, raising=module is constants)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


def refusal(call, *arguments, **options):
    """The one line with which a call is refused."""
    with pytest.raises(RunError) as raised:
        call(*arguments, **options)
    line = str(raised.value)
    assert "\n" not in line
    return line


def test_a_model_goes_to_the_hub_and_comes_back(model, hub, tmp_path):
    arbiter, token = Arbiter.load(model), hub_server.TOKEN
    url = arbiter.push_to_hub(
        "friend/shapes", private=True, token=token, commit_message="First shapes"
    )
    assert url == f"{hub.url}/friend/shapes/commit/{hub.commit('friend/shapes')}"
    again = arbiter.save_pretrained(
        tmp_path / "shapes", push_to_hub=True, repo_id="friend/shapes", token=token
    )
    assert again == url
    assert hub.commits == ["First shapes", "Push model using Arbiter."]
    assert hub.private == {"friend/shapes"}
    files = hub.files["friend/shapes"]
    assert set(files) == {*contents(model), ".gitattributes"}
    assert b'Arbiter.load("friend/shapes")' in files["README.md"]
    assert files["model_fp32.safetensors"] == (model / "model_fp32.safetensors").read_bytes()

    # What others may have put beside it is not even fetched.
    files |= {"pytorch_model.bin": b"\x80\x04", "evil.py": b"1", "x/y.json": b"{}"}
    hub.requests.clear()
    commit, expected = hub.commit("friend/shapes"), probabilities(arbiter)
    for options in (
        {"token": token},
        {"token": token, "revision": commit},
        {"local_files_only": True},
        {"token": token, "cache_dir": tmp_path / "elsewhere"},
    ):
        assert probabilities(Arbiter.load("friend/shapes", **options)) == expected
    assert (tmp_path / "elsewhere" / "models--friend--shapes").is_dir()
    fetched = {request.rpartition("/")[2] for request in hub.requests if "/resolve/" in request}
    assert fetched == set(contents(model))


def test_what_the_hub_refuses_is_said_in_one_line(model, hub, tmp_path):
    arbiter, token = Arbiter.load(model), hub_server.TOKEN
    arbiter.push_to_hub("friend/shapes", private=True, token=token)
    said = refusal(arbiter.push_to_hub, "friend/shapes", token="hf_of_a_stranger")
    assert said.startswith("friend/shapes: ") and "401" in said
    said = refusal(arbiter.push_to_hub, "not a name", token=token)
    assert said == "not a name: not the name of a repository; give owner/name"
    said = refusal(Arbiter.load, "friend/shapes", cache_dir=tmp_path / "empty")
    hidden = "no such folder here, and the hub shows no such model; check the name, and if it is"
    assert said.startswith(f"friend/shapes: {hidden} private give token=")
    assert refusal(Arbiter.load, "friend/nothing").startswith(f"friend/nothing: {hidden}")
    said = refusal(Arbiter.load, "friend/shapes", token=token, revision="v9")
    assert said == "friend/shapes: has no revision 'v9'; give another one"
    said = refusal(Arbiter.load, "friend/nothing", local_files_only=True)
    assert "no complete copy of it is in the hub's cache" in said
    hub.files["friend/empty"] = {"README.md": b"# Nothing"}
    assert "no model there" in refusal(Arbiter.load, "friend/empty")


def test_without_a_connection_a_copy_is_used(model, hub):
    arbiter, token = Arbiter.load(model), hub_server.TOKEN
    arbiter.push_to_hub("friend/shapes", token=token)
    expected = probabilities(Arbiter.load("friend/shapes"))
    hub.shutdown()
    hub.server_close()
    assert probabilities(Arbiter.load("friend/shapes")) == expected
    assert "connect and load it once" in refusal(Arbiter.load, "friend/other")
    said = refusal(arbiter.push_to_hub, "friend/shapes", token=token)
    assert said.startswith("friend/shapes: the hub: ")


def test_a_copy_in_the_hubs_cache_needs_no_hub(model, tmp_path):
    """The cache's documented layout, written by hand."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--a--b"
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    for number, path in enumerate(model.iterdir()):
        shutil.copy(path, repo / "blobs" / str(number))
        (repo / "snapshots" / commit / path.name).symlink_to(f"../../blobs/{number}")
    options = {"cache_dir": tmp_path, "local_files_only": True}
    expected = probabilities(Arbiter.load(model))
    assert probabilities(Arbiter.load("a/b", **options)) == expected
    assert probabilities(Arbiter.load("a/b", revision=commit, **options)) == expected
    with pytest.raises(RunError, match="a/b: no such folder here, and no complete copy"):
        Arbiter.load("a/b", revision="v2", **options)
    # A damaged copy is refused as any other.
    (repo / "snapshots" / commit / "config.json").unlink()
    with pytest.raises(RunError):
        Arbiter.load("a/b", **options)


def test_a_folder_comes_before_the_hub(model, tmp_path, monkeypatch):
    shutil.copytree(model, tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    assert probabilities(Arbiter.load("owner/name"))


# ---------------------------------------------------------------- calibrations from strangers


@pytest.mark.parametrize("seed", range(3))
def test_any_calibration_decides_or_is_refused(model, tmp_path, seed):
    """With checksums that match: probabilities are probabilities, or there is one line."""
    generator = random.Random(seed)
    path = shutil.copytree(model, tmp_path / "model")
    original = json.loads((path / "calibration.json").read_text())
    for _ in range(25):
        (path / "calibration.json").write_text(json.dumps(changed(original, generator)))
        write_manifest(path)
        try:
            arbiter = Arbiter.load(path)
            for options in ({}, {"deliberate": True}, {"per_source": True, "method": "raps"}):
                decision = arbiter.decide(QUESTION, COLORS, **options)
                assert sum(decision.probabilities) == pytest.approx(1)
                assert set(decision.prediction_set) <= set(COLORS)
                json.dumps(decision.to_dict(), allow_nan=False)
        except ArbiterError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
