"""The openclip encoder against open_clip itself, and what it says when something is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from arbiter.encoders import openclip
from arbiter.encoders.base import Compute
from arbiter.encoders.openclip import OpenCLIPConfig, OpenCLIPEncoder, PreprocessConfig
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.errors import EncoderError
from arbiter.features.store import FeatureStore
from tests.conftest import tone
from tests.encoders.tiny_openclip import MEAN, STD, model_config, write_model

TEXTS = ["a red circle", "no"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny", tokenizer=True)


def make(directory: Path, compute: Compute | None = None, **options) -> OpenCLIPEncoder:
    options = {"model_name": f"local-dir:{directory}", "weights": None, **options}
    return OpenCLIPEncoder(OpenCLIPConfig(**options), compute)


def named(model_name: str, weights: str | None, **options) -> OpenCLIPEncoder:
    return OpenCLIPEncoder(OpenCLIPConfig(model_name=model_name, weights=weights, **options))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def direction(values: torch.Tensor | np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def reference(directory: Path):
    """open_clip's own way to model, preprocessing and tokenizer."""
    name = f"local-dir:{directory}"
    model, _, transform = open_clip.create_model_and_transforms(name)
    return model.eval(), transform, open_clip.get_tokenizer(name)


@torch.no_grad()
def test_features_point_where_open_clip_points(directory):
    model, transform, tokenizer = reference(directory)
    images = [noise(50, 40), noise(20, 90, 1)]
    pixels = torch.stack([transform(image) for image in images])
    output = model.forward_intermediates(
        image=pixels, normalize_intermediates=True, image_output_fmt="NLC"
    )
    encoder = make(directory)
    found, text = encoder.encode_image(images), encoder.encode_text(TEXTS)
    expected = {
        "image": (model.encode_image(pixels), found["pooled"].values),
        "text": (model.encode_text(tokenizer(TEXTS)), text["pooled"].values),
        "patches": (output["image_intermediates"][-1].flatten(0, 1), found["patches"].values),
    }
    for name, (wanted, got) in expected.items():
        assert got.dtype == np.float32, name
        np.testing.assert_allclose(direction(got), direction(wanted), atol=2e-5, err_msg=name)
        np.testing.assert_allclose(np.sqrt(np.square(got).mean(-1)), 1, rtol=1e-4, err_msg=name)
    assert found["patches"].counts.tolist() == [16, 16]
    # Position (0, 2, 1) is the third row and second column: patch 2 * 4 + 1.
    assert found["patches"].positions[9].tolist() == [0, 2, 1]


@torch.no_grad()
def test_convolutional_towers_give_patches_too(tmp_path):
    model_dir = write_model(tmp_path, image_size=64, layers=[1, 1, 1, 1], width=8, head_width=16)
    model, transform, _ = reference(model_dir)
    image = noise(64, 64)
    maps = model.forward_intermediates(image=transform(image)[None], normalize_intermediates=True)
    expected = maps["image_intermediates"][-1][0]  # [D, rows, columns]
    encoder = make(model_dir)
    patches = encoder.encode_image([image])["patches"]
    assert encoder.spec["image"]["patches"].grid[1:] == expected.shape[1:]
    for token, (_, row, column) in zip(patches.values, patches.positions, strict=True):
        wanted = direction(expected[:, row, column])
        np.testing.assert_allclose(direction(token), wanted, atol=2e-5)


def test_spec_and_identity_need_no_weights_in_memory(directory, monkeypatch):
    model, _, _ = reference(directory)

    def refuse(*arguments, **options):
        raise AssertionError("the towers were built")

    monkeypatch.setattr(openclip, "load_towers", refuse)
    encoder = make(directory)
    assert encoder.spec["text"]["pooled"].dim == 24
    assert encoder.spec["image"]["patches"].dim == 20
    assert encoder.spec["image"]["patches"].grid == (5, 4, 4)
    assert encoder.spec.aligned
    assert encoder.num_parameters == sum(p.numel() for p in model.parameters())
    assert encoder.fingerprint("text") and encoder.fingerprint("image")
    assert encoder.describe()["random_weights"] is False
    with pytest.raises(AssertionError, match="were built"):
        encoder.encode_text(["a"])


def test_known_architectures_have_the_published_shapes():
    shapes = {
        "ViT-B-16-SigLIP": (768, 768, 196, 203_155_970),
        "ViT-B-16-SigLIP2-256": (768, 768, 256, 375_234_050),
        "ViT-B-32": (512, 768, 49, 151_277_313),
    }
    for name, (pooled, width, patches, parameters) in shapes.items():
        encoder = named(name, "random", tiling=False)
        stream = encoder.spec["image"]["patches"]
        assert encoder.spec["image"]["pooled"].dim == pooled
        assert (stream.dim, int(np.prod(stream.grid))) == (width, patches)
        assert encoder.num_parameters == parameters


def test_large_images_are_seen_whole_and_in_quadrants(directory):
    encoder = make(directory)
    image = noise(401, 300)
    quadrants = [(0, 0, 200, 150), (200, 0, 401, 150), (0, 150, 200, 300), (200, 150, 401, 300)]
    found = encoder.encode_image([noise(40, 30), image, noise(335, 335)])
    assert found["patches"].counts.tolist() == [16, 80, 16]
    alone = make(directory, tiling=False).encode_image([image, *map(image.crop, quadrants)])
    np.testing.assert_allclose(found["patches"].values[16:96], alone["patches"].values, atol=1e-4)
    np.testing.assert_allclose(found["pooled"].values[1], alone["pooled"].values[0], atol=1e-4)
    tiles = found["patches"].positions[16:96, 0].reshape(5, 16)
    assert (tiles == np.arange(5)[:, None]).all()


def test_prepared_images_are_encoded_as_the_images_are(directory):
    encoder = make(directory)
    image = noise(400, 300)
    prepared = encoder.prepare("image", image)
    assert prepared.shape == (5, 3, 32, 32)
    for name, tokens in encoder.encode_image([image]).items():
        other = encoder.encode_image([prepared])[name]
        np.testing.assert_array_equal(tokens.values, other.values)


def test_merging_joins_squares_of_patches(directory):
    image = noise(32, 32)
    plain = make(directory).encode_image([image])["patches"].values.reshape(4, 4, 20)
    encoder = make(directory, patch_merge=True)
    merged = encoder.encode_image([image])["patches"]
    assert encoder.spec["image"]["patches"].grid == (5, 2, 2)
    assert encoder.spec["image"]["patches"].dim == 80
    for token, (_, row, column) in zip(merged.values, merged.positions, strict=True):
        square = [plain[2 * row + i, 2 * column + j] for i in (0, 1) for j in (0, 1)]
        np.testing.assert_allclose(token, np.concatenate(square), atol=1e-5)


def test_rectangular_models_keep_rows_and_columns_apart(tmp_path):
    encoder = make(write_model(tmp_path, image_size=[32, 48]), tiling=False)
    assert encoder.spec["image"]["patches"].grid == (1, 4, 6)
    found = encoder.encode_image([noise(48, 32)])["patches"]
    assert found.positions.max(axis=0).tolist() == [0, 3, 5]


def test_max_patches_bounds_tiling_and_refuses_less_than_one_view(directory):
    encoder = make(directory, max_patches=79)
    assert encoder.spec["image"]["patches"].grid == (1, 4, 4)
    assert encoder.encode_image([noise(400, 400)])["patches"].counts.tolist() == [16]
    with pytest.raises(EncoderError, match=r"max_patches=15.*has 16"):
        _ = make(directory, max_patches=15).spec
    assert make(directory, max_patches=15, patch_merge=True).spec["image"]["patches"].grid[1:] == (
        2, 2,
    )  # fmt: skip


def test_odd_grids_cannot_be_merged(tmp_path):
    with pytest.raises(EncoderError, match=r"patch_merge.*5 x 5"):
        _ = make(write_model(tmp_path, image_size=40), patch_merge=True).spec


def test_every_change_that_matters_changes_the_fingerprint(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "copy")
    other_words = shutil.copytree(directory, tmp_path / "words")
    text = (other_words / "tokenizer.json").read_text().replace('"circle"', '"sphere"')
    (other_words / "tokenizer.json").write_text(text)
    both = {
        "weights": make(write_model(tmp_path / "other", seed=1, tokenizer=True)),
        "dtype": make(directory, cache_dtype="float16"),
        "arithmetic": make(directory, Compute(precision="bfloat16")),
        "random": make(directory, weights="random"),
    }
    changed = {
        "image": {
            **both,
            "mean": make(directory, preprocess=PreprocessConfig(mean=[0.5, 0.5, 0.5])),
            "resize": make(directory, preprocess=PreprocessConfig(resize_mode="longest")),
            "tiling": make(directory, tiling=False),
            "tile_from": make(directory, tile_from=400),
            "merge": make(directory, patch_merge=True),
        },
        "text": {**both, "tokenizer": make(other_words)},
    }
    for kind, encoders in changed.items():
        prints = {name: str(e.fingerprint(kind)) for name, e in encoders.items()}
        prints["original"] = str(make(directory).fingerprint(kind))
        assert len(set(prints.values())) == len(prints), kind
        # The same files under another name are the same encoder.
        assert str(make(tmp_path / "copy").fingerprint(kind)) == prints["original"]
    # Too few patches for tiles are no tiles: the same features.
    assert str(make(directory, max_patches=20).fingerprint("image")) == str(
        make(directory, tiling=False).fingerprint("image")
    )


def test_precision_is_that_of_the_towers(directory):
    image = noise(32, 32)
    exact = make(directory).encode_image([image])["patches"].values
    rounded = make(directory, Compute(precision="bfloat16")).encode_image([image])["patches"].values
    error = np.abs(exact - rounded).max()
    assert 1e-4 < error < 0.2


def test_random_weights_are_asked_for_named_and_reproducible(tmp_path):
    directory = write_model(tmp_path, tokenizer=True)
    (directory / "open_clip_model.safetensors").unlink()
    state = torch.random.get_rng_state()
    first, second = (make(directory, weights="random").encode_text(TEXTS) for _ in range(2))
    np.testing.assert_array_equal(first["pooled"].values, second["pooled"].values)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert make(directory, weights="random").describe()["random_weights"] is True
    with pytest.raises(EncoderError, match=r"holds no .safetensors.*encoder.weights=random"):
        make(directory).fingerprint("text")


@pytest.fixture
def listed(tmp_path) -> str:
    """A small model under a name of its own in open_clip's list, as built-in ones are."""
    import json

    (tmp_path / "arbiter-tiny.json").write_text(json.dumps(model_config()))
    open_clip.add_model_config(tmp_path / "arbiter-tiny.json")
    return "arbiter-tiny"


def test_a_file_of_weights_needs_its_preprocessing_spelt_out(listed, directory, tmp_path):
    path = write_model(tmp_path / "m") / "open_clip_model.safetensors"
    plain = named(listed, str(path))
    with pytest.raises(EncoderError, match=r"interpolation, mean, resize_mode, std.*give"):
        _ = plain.spec
    given = PreprocessConfig(MEAN, STD, "bilinear", "squash")
    encoder = named(listed, str(path), preprocess=given)
    image = noise(30, 44)
    np.testing.assert_array_equal(
        encoder.encode_image([image])["pooled"].values,
        make(path.parent).encode_image([image])["pooled"].values,
    )


def test_a_folder_without_preprocessing_is_not_guessed_at(tmp_path):
    encoder = make(write_model(tmp_path, preprocess=False))
    with pytest.raises(EncoderError, match=r"encoder\.preprocess: nothing says the interpolation"):
        _ = encoder.spec


def test_weights_of_another_architecture_are_refused(listed, tmp_path):
    path = write_model(tmp_path, layers=1) / "open_clip_model.safetensors"
    given = PreprocessConfig(MEAN, STD, "bilinear", "squash")
    encoder = named(listed, str(path), preprocess=given)
    with pytest.raises(EncoderError, match=r"not the weights of arbiter-tiny.*Missing key"):
        encoder.encode_image([noise(32, 32)])


def test_damaged_weights_are_refused(tmp_path):
    path = write_model(tmp_path) / "open_clip_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EncoderError, match="not the weights"):
        make(tmp_path).encode_text(["a"])


def test_pickles_are_not_read(listed, tmp_path):
    path = tmp_path / "weights.bin"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(EncoderError, match=r"only \.safetensors.*convert"):
        named(listed, str(path)).fingerprint("text")


def test_what_cannot_be_found_is_named_with_its_remedy(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    remedy = r"encoder\.model_name=local-dir:<folder>"
    cases = {
        ("ViT-B-16-SigLIP", "webli"): rf"timm/ViT-B-16-SigLIP .*{tmp_path}/cache.*{remedy}",
        ("hf-hub:owner/name", None): rf"open_clip_config.json of owner/name .*{remedy}",
        (f"local-dir:{tmp_path}/none", None): rf"none/open_clip_config.json not found; .*{remedy}",
        ("ViT-B-16-SigLIp", "webli"): "no such model; did you mean .*ViT-B-16-SigLIP",
        ("ViT-B-16-SigLIP", "weblu"): "neither a file nor a tag .* tags webli",
        ("ViT-B-16-SigLIP", None): "needs one of the tags webli",
        (f"local-dir:{directory}", "webli"): "brings its own; set encoder.weights=null",
        ("ViT-B-32", "openai"): "another activation .*ViT-B-32-quickgelu",
    }
    for (name, weights), message in cases.items():
        with pytest.raises(EncoderError, match=message) as caught:
            named(name, weights).fingerprint("image")
        assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_is_named(tmp_path):
    directory = write_model(tmp_path, tokenizer=True)
    for path in directory.glob("*token*"):
        path.unlink()
    with pytest.raises(EncoderError, match=r"no tokenizer in .*tokenizer\.json") as caught:
        make(directory).encode_text(["a"])
    assert str(tmp_path) in str(caught.value)


def test_the_folder_that_the_test_makes_holds_what_open_clip_saves(directory):
    """Guards the helper: weights in the folder are the weights of open_clip's model."""
    model, _, _ = reference(directory)
    stored = load_file(directory / "open_clip_model.safetensors")
    assert stored.keys() == model.state_dict().keys()


def test_audio_is_the_same_for_every_encoder_and_shares_its_table(directory, tmp_path):
    raw = RawEncoder(RawEncoderConfig())
    encoder = make(directory)
    wave = tone(700)
    ours, theirs = encoder.encode_audio([wave])["frames"], raw.encode_audio([wave])["frames"]
    np.testing.assert_array_equal(ours.values, theirs.values)
    stores = [FeatureStore(tmp_path, e) for e in (encoder, raw)]
    assert stores[0].directory("audio") == stores[1].directory("audio")
    assert stores[0].directory("text") != stores[1].directory("text")
