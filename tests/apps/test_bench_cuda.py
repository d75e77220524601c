"""The parts of `bench group=cuda` that need no GPU, on the CPU."""

import torch

from arbiter.encoders.raw import RawEncoder, RawEncoderConfig
from arbiter.hardware.device import HardwareConfig
from arbiter.model.architecture import ArchitectureConfig
from arbiter.planning.workload import Job
from arbiter.training.objective import ObjectiveConfig
from arbiter.training.optimizers import AdamWConfig
from arbiter.training.schedules import ScheduleConfig
from experiments.bench_cuda import _SHAPE, report, run_steps


def make_job() -> Job:
    return Job(
        architecture=ArchitectureConfig(hidden_dim=32, scoring_dim=32, draft_dim=16, num_layers=2),
        objective=ObjectiveConfig(),
        optimizer=AdamWConfig(lr=5e-3),
        schedule=ScheduleConfig(batch_size=4, questions_per_block=1),
        hardware=HardwareConfig(device="cpu", micro_batch_size=4),
        encoder=RawEncoder(RawEncoderConfig()),
        shape=_SHAPE,
        device="cpu",
    )


def test_the_two_batches_are_learned_by_heart():
    found = run_steps(make_job(), torch.device("cpu"), steps=40)
    assert found.losses[-1] < 0.2 * found.losses[0]
    assert found.seconds > 0 and found.peak_mb is None


def test_the_report_shows_both_precisions():
    lines = report(make_job(), torch.device("cpu"), steps=6)
    assert lines[0].startswith("float32:") and lines[1].startswith("bfloat16:")
    wide, narrow = (float(x) for x in lines[-1].split()[1:])
    assert abs(wide - narrow) < 0.1 * wide
