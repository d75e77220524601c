"""The plan: parts that can be worked out by hand, budgets, and what is suggested."""

from dataclasses import replace

import pytest

from arbiter.datasets.shapes import describe, measure
from arbiter.encoders.base import Compute
from arbiter.encoders.openclip import OpenCLIPConfig, OpenCLIPEncoder
from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.errors import PlanError
from arbiter.features.batch import assemble
from arbiter.features.sampler import blocks_of
from arbiter.hardware.device import HardwareConfig
from arbiter.model.architecture import ArchitectureConfig
from arbiter.model.decision_model import count_parameters
from arbiter.model.moe import MoEConfig
from arbiter.planning.blocks import block_shape
from arbiter.planning.plan import halvings, make_plan, require_fit, suggestions
from arbiter.planning.table import memory_table
from arbiter.planning.workload import Job, flops_per_block, record
from arbiter.training.objective import ObjectiveConfig
from arbiter.training.optimizers import AdamWConfig
from arbiter.training.schedules import ScheduleConfig, SWAConfig
from tests.conftest import make_samples

BASE = 300e6


@pytest.fixture(scope="module")
def shape():
    samples = make_samples()
    return measure({"train": samples, "val": samples[:3]})


def make_job(shape, device="cpu", hidden=64, layers=2, **hardware) -> Job:
    return Job(
        architecture=ArchitectureConfig(
            hidden_dim=hidden, num_heads=4, num_layers=layers, scoring_dim=32, draft_dim=16,
            moe=MoEConfig(num_routed_experts=4, top_k=2, ffn_dim=64, shared_ffn_dim=64),
        ),
        objective=ObjectiveConfig(),
        optimizer=AdamWConfig(),
        schedule=ScheduleConfig(batch_size=8, questions_per_block=4, swa=SWAConfig(start_epoch=2)),
        hardware=HardwareConfig(device=device, **hardware),
        encoder=RawEncoder(RawEncoderConfig()),
        shape=shape,
        device=device,
    )  # fmt: skip


def test_samples_are_counted(shape):
    assert shape.samples == 17 and shape.evaluated == 3
    assert shape.candidates == 5
    assert shape.questions == 3  # about each of the four squares
    assert len({size for sizes in shape.image_sizes for size in sizes}) == 1
    assert (64, 64) in shape.image_sizes[0]
    assert shape.frames == 3 and shape.audio_seconds == 0.5
    assert shape.exact


def test_a_block_is_as_large_as_the_batches_are(shape, dataset, encoder):
    """Against the batch that is really assembled from the same samples."""
    batch = assemble(dataset, blocks_of(dataset, 4))
    block = block_shape(shape, encoder, 3, foils=0, largest=True)
    assert block.tokens == {kind: t.mask.shape[1] for kind, t in batch.media.items()}
    assert block.candidates == batch.candidates.shape[-1]
    assert block.questions == batch.question.shape[1]
    assert block.texts(len(batch.question)) >= len(batch.texts)


def test_what_an_optimizer_keeps_is_counted_exactly(shape):
    job = make_job(shape, micro_batch_size=2)
    recorded = record(job)
    trainable = count_parameters(job.model())["trainable"]
    assert sum(recorded.moments) == 2 * 4 * trainable
    # Routing loads are kept with the weights.
    buffers = sum(b.numel() * 4 for b in job.model().state_dict().values()) - 4 * trainable
    assert sum(recorded.weights) >= 4 * trainable + buffers


def test_device_memory_is_at_least_what_must_be_there_and_grows_with_the_batch(shape):
    peaks = []
    for size in (1, 2, 4):
        job = make_job(shape, device="cuda", micro_batch_size=size)
        plan = make_plan(job, BASE, {"RAM": None, "VRAM": None})
        vram, ram = plan.peaks
        assert (vram.place, ram.place) == ("VRAM", "RAM")
        weights = sum(record(job).weights) / 1e6
        assert vram.mb > 4 * weights - 0.1  # weights, gradients and two moments
        assert vram.mb == pytest.approx(sum(vram.parts.values()))
        assert ram.parts["averages"] == pytest.approx(weights)
        # Weights, moments, best weights and average.
        assert ram.parts["resume state"] == pytest.approx(5 * weights, rel=0.02)
        peaks.append(vram.mb)
    assert peaks[0] < peaks[1] < peaks[2]


def test_the_largest_micro_batch_that_fits_is_found(shape):
    level = {
        size: make_plan(make_job(shape, "cuda", micro_batch_size=size), BASE, {}).peaks[0].mb
        for size in (4, 1)
    }
    job = make_job(shape, "cuda", micro_batch_size="auto")
    for size, mb in level.items():
        plan = make_plan(job, BASE, {"VRAM": mb + 0.001})
        assert plan.job.hardware.micro_batch_size == size
        assert not plan.exceeded
    assert make_plan(job, BASE, {"VRAM": level[1] - 1}).exceeded


def test_halvings_go_down_to_one():
    assert list(halvings(16)) == [16, 8, 4, 2, 1]
    assert list(halvings(6)) == [6, 3, 2, 1]
    assert list(halvings(1)) == [1]


@pytest.mark.slow
def test_three_settings_are_suggested_that_fit(shape):
    job = make_job(shape, "cuda", hidden=128, layers=4, micro_batch_size=8, eval_batch_size=64)
    over = make_plan(job, BASE, {})
    budgets = {"VRAM": 0.8 * over.peaks[0].mb}
    plan = make_plan(job, BASE, budgets)
    found = suggestions(plan)
    assert len(found) == 3
    for text, other in found:
        assert "=" in text and not other.exceeded
    with pytest.raises(PlanError) as refused:
        require_fit(plan)
    message = str(refused.value)
    assert "VRAM of" in message and found[0][0] in message and "enforce_budget=false" in message


@pytest.mark.slow
def test_when_nothing_fits_nothing_is_suggested(shape):
    plan = make_plan(make_job(shape, micro_batch_size=1), BASE, {"RAM": 100})
    assert suggestions(plan) == []
    with pytest.raises(PlanError, match="no setting tried would fit"):
        require_fit(plan)


def test_a_budget_that_nobody_knows_is_not_met(shape):
    table = memory_table(make_plan(make_job(shape, "mps"), BASE, {"VRAM": None, "RAM": 8000}))
    cells = {row[0]: row[1:] for row in zip(*(c.cells for c in table.columns), strict=True)}
    assert cells["budget"] == ("unknown", "8,000")
    assert cells["fits"] == ("unknown", "yes")


def test_an_encoder_that_runs_on_a_gpu_takes_its_memory(shape, monkeypatch):
    class Large(RawEncoder):
        num_parameters = 10**9

    monkeypatch.setattr("arbiter.planning.memory.device_kind", lambda name: NAMED[name])
    for name in NAMED:
        job = make_job(shape, "cuda", encoder_device=name)
        job = replace(job, encoder=Large(RawEncoderConfig()))
        device, host = make_plan(job, BASE, {}).peaks
        # It is loaded on the host in either case.
        assert (device.mb >= 4000) == (name == "auto") and host.mb >= 4000


NAMED = {"auto": "cuda", "cpu": "cpu"}


def test_flops_are_those_of_the_matrix_products(shape):
    """A model's forward products by hand; a backward pass makes two of each but the inputs'."""
    job = make_job(shape, micro_batch_size=1)
    block = replace(job.typical_block, tokens={}, context=False, questions=1)
    alone = flops_per_block(job, block)
    tokens = 200
    with_patches = flops_per_block(job, replace(block, tokens={"patches": tokens}))
    H, moe = 64, job.architecture.moe
    per_token = 2 * (4 * H * H + H * moe.num_routed_experts)  # projections, router
    per_token += 2 * 2 * H * (moe.top_k * moe.ffn_dim + moe.shared_ffn_dim)
    attention = 2 * 2 * tokens * tokens * H
    # The first layer of two computes media; the second one reads keys and values only.
    expected = 3 * (tokens * per_token + attention + tokens * 2 * 2 * H * H)
    expected += 2 * tokens * 2 * 192 * H  # patches have no gradient of their own
    assert with_patches - alone == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("tiling", "patches"), [(True, 980), (False, 196)])
def test_patches_of_an_openclip_encoder_by_size(tiling, patches):
    config = OpenCLIPConfig(weights="random", tiling=tiling)
    encoder = OpenCLIPEncoder(config, Compute())
    assert encoder.count_patches(None) == patches
    assert encoder.count_patches((640, 480)) == patches
    assert encoder.count_patches((224, 224)) == 196
    assert encoder.num_parameters == 203_155_970


def test_a_mix_on_the_hub_is_described_without_it(monkeypatch):
    from hydra import compose, initialize_config_dir

    from arbiter.config import instantiate
    from experiments import schema
    from tests.conftest import ROOT

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = instantiate(compose("train", overrides=["experiment=v6_max"]))
    shape = describe(config.dataset, 0)
    assert not shape.exact
    assert shape.samples == pytest.approx(0.8 * 5_670, rel=0.02)
    assert shape.candidates == 7 and shape.frames == 8
