"""A hardware profile changes speed and memory, and nothing else: 20 steps on real samples."""

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.training.test_loss_curve import composed, curve

_STEPS = 20
_EXPERIMENT = (
    "schedule.batch_size=16", "schedule.epochs=4", "architecture.dropout=0.1",
    "objective.modality_dropout=0.1", "objective.margin.weight=0.3",
)  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return curve(tmp_path_factory.mktemp("reference"), composed(*_EXPERIMENT), _STEPS)


@pytest.mark.parametrize(
    "profile",
    [
        ("hardware.micro_batch_size=1",),
        ("hardware.micro_batch_size=4",),
        ("hardware.moe_dispatch=dense",),
        ("hardware.micro_batch_size=4", "hardware.moe_dispatch=dense"),
        pytest.param(("hardware.compile=true",), marks=pytest.mark.slow),
        pytest.param(
            ("hardware.compile=true", "hardware.micro_batch_size=4", "hardware.moe_dispatch=dense"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=" ".join,
)
def test_the_loss_curve_is_the_same_and_so_is_the_experiment(reference, tmp_path: Path, profile):
    config = composed(*_EXPERIMENT, *profile)
    found = curve(tmp_path, config, _STEPS)
    assert len(found) == _STEPS and reference[-1] < 0.9 * reference[0]
    # Float32 rounding, which 20 steps of AdamW carry on.
    assert found == pytest.approx(reference, rel=1e-3)
    one, other = asdict(config), asdict(composed(*_EXPERIMENT))
    assert one.pop("hardware") != other.pop("hardware")
    assert one == other
