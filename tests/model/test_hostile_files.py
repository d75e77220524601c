"""Model directories from strangers, whose checksums are right as well: anyone can compute them."""

import json
import os
import random
import re
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from arbiter.errors import ArbiterError, RunError
from arbiter.features.dataset import index_samples
from arbiter.features.store import FeatureStore
from arbiter.files import MANIFEST, write_manifest
from arbiter.model.files import load_model, save_model
from tests.conftest import make_model, make_samples
from tests.mutations import changed

CONFIG, WEIGHTS, CODECS = "config.json", "model_fp32.safetensors", "feature_codec.safetensors"


@pytest.fixture(scope="module")
def original(encoder, tmp_path_factory):
    """A whole model directory of a small model that reads everything."""
    path = tmp_path_factory.mktemp("original") / "model"
    path.mkdir()
    store = FeatureStore(path.parent / "features", encoder)
    dataset = index_samples({"": make_samples()}, store, encoder.spec)[""]
    codecs = {kind: store.codecs(kind) for kind in dataset.tables}
    save_model(path, make_model(dataset, encoder, hidden_dim=16), encoder, codecs)
    (path / "README.md").write_text("# A card\n")
    write_manifest(path)
    return path


@pytest.fixture
def model(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def refusal(path):
    """The one line with which a directory is refused."""
    with pytest.raises(RunError) as raised:
        load_model(path)
    line = str(raised.value)
    assert "\n" not in line and len(line) < 500
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def rewrite(path, change):
    """Change config.json and make the manifest anew."""
    config = json.loads((path / CONFIG).read_text())
    change(config)
    (path / CONFIG).write_text(json.dumps(config))
    write_manifest(path)


def put(key, value):
    """A change of the value under a dotted key."""

    def change(config):
        *parents, last = key.split(".")
        for parent in parents:
            config = config[parent]
        config[last] = value

    return change


def test_a_whole_one_loads_to_the_same_weights(original):
    again, saved = load_model(original), load_file(original / WEIGHTS)
    state = again.model.state_dict()
    assert state.keys() == saved.keys()
    assert all(torch.equal(state[name], saved[name]) for name in saved)
    assert not again.model.training
    assert again.card == "# A card\n"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format_version", 99, "format 99 is not known"),
        ("format_version", None, "format None is not known"),
        ("architecture", [], "architecture is missing or of another type"),
        ("architecture.hidden_dim", 10**9, "hidden_dim=1000000000: must be an integer >= 8"),
        ("architecture.hidden_dim", 65536, r"has shape \[.*\], not \[.*65536.*\]"),
        ("architecture.hidden_dim", "many", "hidden_dim"),
        ("architecture.hidden_dim", -1, "hidden_dim=-1"),
        ("architecture.num_layers", 10**9, "num_layers=1000000000: must be an integer"),
        ("architecture.num_layers", 40, "is missing"),
        ("architecture.num_layers", 1, "tensors too many"),
        ("architecture.moe.num_routed_experts", 65536, "has shape"),
        ("architecture.moe.top_k", 10**6, "top_k=1000000: must be at most"),
        ("architecture.moe", None, "moe"),
        ("architecture.unheard_of", 1, "unheard_of"),
        ("architecture.attention", "${oc.env:HOME}", "must stand for itself"),
        ("encoder._target_", "os.system", "only classes of the arbiter package"),
        ("encoder._target_", "arbiter.files.shutil", "names no class"),
        ("encoder._target_", "arbiter.files.Path", "names no class"),
        ("encoder._target_", "arbiter..files.file_digest", "names no class"),
        ("encoder._target_", "arbiter.datasets.jsonl.Jsonl", "no encoder"),
        ("encoder._target_", 5, "only classes of the arbiter package"),
        ("encoder.text_dim", 10**12, "text_dim=1000000000000: must be"),
        ("encoder.text_dim", 64, "another text_dim than the model was trained with"),
        ("encoder.image_size", ["${oc.env:HOME}"], "must stand for itself"),
        ("encoder_fingerprint", {}, "encoder_fingerprint has no text"),
        ("encoder_fingerprint.smell", {}, "encoder_fingerprint has smell"),
        ("encoder_fingerprint.text", 1, "encoder_fingerprint.text is of another type"),
        ("inputs", ["image", "image"], "'image' more than once"),
        ("inputs", ["image", "smell"], "inputs has 'smell'; there are context, image"),
        ("inputs", [["image"]], "inputs has"),
        ("inputs", ["image"], "tensors too many"),
        ("inputs", {}, "inputs is missing or of another type"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_config_that_means_harm_is_refused(model, key, value, said):
    rewrite(model, put(key, value))
    assert re.search(said, refusal(model))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "config.json: nested too deeply"),
        ('{"a": 1, "a": 2}', "config.json: the key 'a' is given more than once"),
        ('{"format_version": NaN}', "config.json: NaN is not a JSON number"),
        ('{"format_version": ' + "9" * 10_000 + "}", "config.json: the number 999"),
        ("[]", "config.json: not a JSON object"),
        ("", "config.json: not JSON"),
        (b"\xff\xfe{}", "config.json: not UTF-8 text"),
        ('"' + "x" * (1 << 20) + '"', "config.json: larger than 1,048,576 bytes"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_json_bombs_are_refused(model, text, said):
    (model / CONFIG).write_bytes(text if isinstance(text, bytes) else text.encode())
    write_manifest(model)
    assert refusal(model).startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("norm.weight"), "norm.weight is missing"),
        (lambda t: t.update(other=torch.zeros(1)), "the model has no 'other'"),
        (lambda t: t.update({"norm.weight": torch.ones(15)}), r"has shape [15], not [16]"),
        (lambda t: t.update({"norm.weight": torch.ones(16).double()}), "norm.weight is F64"),
        (lambda t: t.update({"norm.weight": torch.ones(16).half()}), "norm.weight is F16"),
        (lambda t: t.update({"norm.weight": torch.ones(16).int()}), "norm.weight is I32"),
        (lambda t: t.update({"norm.weight": torch.full((16,), torch.nan)}), "not finite"),
        (lambda t: t.clear(), "is missing"),
    ],
    ids=["missing", "extra", "shape", "float64", "float16", "int32", "nan", "none"],
)
def test_weights_load_strictly(model, change, said):
    tensors = load_file(model / WEIGHTS)
    change(tensors)
    save_file(tensors, model / WEIGHTS)
    write_manifest(model)
    assert said in refusal(model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("text/pooled"), "text/pooled is missing"),
        (lambda t: t.update({"a/b/c": torch.ones(1)}), "the model has no 'a/b/c'"),
        (lambda t: t.update({"text/pooled": torch.zeros(256)}), "is not positive"),
        (lambda t: t.update({"text/pooled": -torch.ones(256)}), "is not positive"),
        (lambda t: t.update({"text/pooled": torch.full((256,), torch.inf)}), "not finite"),
    ],
    ids=["missing", "extra", "zero", "negative", "infinite"],
)
def test_codecs_load_strictly(model, change, said):
    scales = load_file(model / CODECS)
    change(scales)
    save_file(scales, model / CODECS)
    write_manifest(model)
    assert said in refusal(model)


def header(length, text=b""):
    return struct.pack("<Q", length) + text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "its header claims 0 bytes"),
        (b"\x05\x00", "its header claims 5 bytes"),
        (header(2**63), "its header claims 9,223,372,036,854,775,808 bytes; the file has 8"),
        (header(99_000_000, b"{}"), "its header claims 99,000,000 bytes; the file has 10"),
        (header(2, b"{}"), "is missing"),
        (header(10, b"[" * 10), "not a safetensors file"),
        (
            header(70, b'{"a":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,4]}}      '),
            "not a safetensors file",
        ),
    ],
    ids=["empty", "cut", "huge", "long", "nothing", "bracket", "shape"],
)
def test_headers_that_lie_are_refused(model, content, said):
    (model / WEIGHTS).write_bytes(content)
    write_manifest(model)
    assert said in refusal(model)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../outside.json", "names '../outside.json', which is no file of this directory"),
        ("/etc/hostname", "which is no file of this directory"),
        ("a\\b", "which is no file of this directory"),
        ("..", "which is no file of this directory"),
        ("", "which is no file of this directory"),
        ("x\x00", "which is no file of this directory"),
        ("x" * 5000, "which is no file of this directory"),
        ("nowhere.json", "nowhere.json is missing"),
    ],
)
def test_a_manifest_names_files_of_its_directory(model, name, said):
    (model.parent / "outside.json").write_text("{}")
    listed = json.loads((model / MANIFEST).read_text())
    listed[name] = "0" * 64
    (model / MANIFEST).write_text(json.dumps(listed))
    assert said in refusal(model)


@pytest.mark.parametrize("listed", ["[]", "5", "{", "[" * 99_999, '{"a": 1, "a": 2}', "{}"])
def test_a_manifest_that_is_none(model, listed):
    (model / MANIFEST).write_text(listed)
    assert MANIFEST in refusal(model)


def test_a_file_that_is_not_listed_is_not_read(model):
    (model / "calibration.json").write_text('{"temperature": 1e-9}')
    assert load_model(model).calibration is None
    listed = json.loads((model / MANIFEST).read_text())
    del listed[WEIGHTS]
    (model / MANIFEST).write_text(json.dumps(listed))
    assert f"{WEIGHTS} is not listed" in refusal(model)


def test_links_out_of_the_directory_are_refused(model, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (model / "README.md").unlink()
    (model / "README.md").symlink_to(secret)
    write_manifest(model)
    assert "README.md is a link out of the directory" in refusal(model)


def test_a_link_to_a_directory_is_the_directory(model, tmp_path):
    (tmp_path / "link").symlink_to(model)
    assert load_model(tmp_path / "link").card == "# A card\n"


def test_links_of_the_hubs_cache_are_followed(model, tmp_path):
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True), snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.move(file, blobs / str(number))
        (snapshot / file.name).symlink_to(os.path.join("..", "..", "blobs", str(number)))
    assert load_model(snapshot).card == "# A card\n"
    (snapshot / "README.md").unlink()
    (snapshot / "README.md").symlink_to("/etc/hostname")
    assert "README.md is" in refusal(snapshot)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_no_file(model):
    (model / "README.md").unlink()
    os.mkfifo(model / "README.md")
    assert load_model(model).card is None
    (model / CODECS).unlink()
    os.mkfifo(model / CODECS)
    assert f"{CODECS} is missing" in refusal(model)


@pytest.mark.parametrize("former", [True, False], ids=["listed", "not listed"])
def test_people_edit_cards(model, former):
    """A manifest of a former version lists the card as it was."""
    listed = json.loads((model / MANIFEST).read_text())
    assert "README.md" not in listed
    if former:
        listed["README.md"] = "0" * 64
        (model / MANIFEST).write_text(json.dumps(listed))
    (model / "README.md").write_text("# Another card\n")
    assert load_model(model).card == "# Another card\n"
    (model / "README.md").write_text("x" * (1 << 20) + "y")
    assert refusal(model).startswith("README.md: larger than 1,048,576 bytes")
    (model / "README.md").write_bytes(b"\xff")
    assert refusal(model).startswith("README.md: not UTF-8")
    (model / "README.md").unlink()
    assert load_model(model).card is None


FILES = (CONFIG, WEIGHTS, CODECS, "model.safetensors", "README.md", MANIFEST)


def mutate(raw: bytes, generator: random.Random) -> bytes:
    """A few flipped bits, a cut, a repeated or removed part, or two parts exchanged."""
    data = bytearray(raw)
    kind = generator.choice(["flip", "cut", "repeat", "remove", "swap", "number"])
    at, size = generator.randrange(len(data)), generator.randrange(1, 65)
    # Headers and JSON are where damage means most.
    at = at % 4096 if generator.random() < 0.7 else at
    at %= len(data)
    if kind == "flip":
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(at, min(at + size, len(data)))] ^= 1 << generator.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "repeat":
        data[at:at] = data[at : at + size]
    elif kind == "remove":
        del data[at : at + size]
    elif kind == "swap":
        other = generator.randrange(len(data))
        data[at : at + size], data[other : other + size] = (
            data[other : other + size],
            data[at : at + size],
        )
    else:
        data[at : at + 1] = generator.choice(
            [b"9" * 30, b"-", b"1e400", b"NaN", b"null", b"{}", b"[[", b'"', b"\xff", b"\x00"]
        )
    return bytes(data)


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_noticed_or_means_nothing(original, tmp_path, seed):
    """Mutated files beside the manifest as it was."""
    generator = random.Random(seed)
    expected = load_model(original).model.state_dict()
    for turn in range(15):
        path = shutil.copytree(original, tmp_path / str(turn))
        file = path / generator.choice(FILES)
        file.write_bytes(mutate(file.read_bytes(), generator))
        try:
            state = load_model(path).model.state_dict()
        except ArbiterError as error:
            assert "\n" not in str(error)
        else:
            assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("seed", range(6))
def test_damage_with_matching_checksums_loads_or_is_refused(original, tmp_path, seed):
    generator = random.Random(100 + seed)
    for turn in range(15):
        path = shutil.copytree(original, tmp_path / str(turn))
        for _ in range(generator.randrange(1, 3)):
            file = path / generator.choice(FILES[:-1])
            file.write_bytes(mutate(file.read_bytes(), generator))
        write_manifest(path)
        try:
            loaded = load_model(path)
        except ArbiterError as error:
            assert "\n" not in str(error)
        else:
            assert all(bool(t.isfinite().all()) for t in loaded.model.state_dict().values())


@pytest.mark.parametrize("seed", range(4))
def test_any_value_anywhere_in_the_config_loads_or_is_refused(original, tmp_path, seed):
    generator = random.Random(200 + seed)
    config = json.loads((original / CONFIG).read_text())

    path = shutil.copytree(original, tmp_path / "model")
    for _ in range(30):
        (path / CONFIG).write_text(json.dumps(changed(config, generator)))
        write_manifest(path)
        try:
            load_model(path)
        except ArbiterError as error:
            assert "\n" not in str(error)
