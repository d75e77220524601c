"""The audit: what an `rx480` profile is made of stays on the card, and what does not is named."""

import pytest
import torch

from arbiter.encoders.base import FeatureSpec, StreamSpec
from arbiter.foils import FoilsConfig
from arbiter.hardware.device import HardwareConfig
from arbiter.hardware.directml import is_table_of_this_torch
from arbiter.model.architecture import ArchitectureConfig
from arbiter.model.moe import MoEConfig
from arbiter.training.checkpoint import CheckpointConfig
from arbiter.training.directml_audit import audit
from arbiter.training.guards import GuardsConfig
from arbiter.training.objective import DraftConfig, MarginConfig, ObjectiveConfig
from arbiter.training.optimizers import AdamWConfig, DirectMLAdamWConfig
from arbiter.training.schedules import ScheduleConfig
from arbiter.training.settings import Settings

# Like SigLIP's: text and image share a space, texts have tokens, images have tiles of patches.
SPEC = FeatureSpec(
    {
        "text": {"pooled": StreamSpec(24), "tokens": StreamSpec(24, (6,))},
        "image": {"pooled": StreamSpec(24), "patches": StreamSpec(20, (5, 3, 3))},
        "audio": {"frames": StreamSpec(16, (10,))},
    },
    aligned=True,
)
ARCHITECTURES = {
    "tiny": ArchitectureConfig(),
    # The shape of v6_max in every respect but its widths.
    "v6_max": ArchitectureConfig(
        hidden_dim=48, num_heads=8, num_layers=4, attention="full", dropout=0.1, scoring_dim=48,
        draft_dim=16, moe=MoEConfig(num_routed_experts=7, ffn_dim=48, shared_ffn_dim=48),
    ),
    "perceiver": ArchitectureConfig(
        hidden_dim=32, attention="perceiver", num_latents=4, dropout=0.1
    ),
    "bias": ArchitectureConfig(hidden_dim=32, dropout=0.1, moe=MoEConfig(balance="bias")),
}  # fmt: skip
# objective=v6: every term there is.
EVERY_TERM = ObjectiveConfig(
    label_smoothing=0.05,
    balance_weight=0.01,
    margin=MarginConfig(weight=0.3),
    draft=DraftConfig(weight=0.3, distillation=0.3),
    foils=FoilsConfig(weight=1.0),
    modality_dropout=0.1,
)


def settings(optimizer=None, dispatch="dense") -> Settings:
    return Settings(
        0, EVERY_TERM, optimizer or DirectMLAdamWConfig(), ScheduleConfig(),
        HardwareConfig(moe_dispatch=dispatch), CheckpointConfig(), GuardsConfig(), 1,
    )  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nothing_of_a_step_or_a_decision_leaves_the_card(name):
    found = audit(ARCHITECTURES[name], SPEC, settings())
    assert found.falling_back() == {}
    # A later torch has operators that the table cannot know.
    if is_table_of_this_torch():
        assert found.falling_back("unknown") == {}
    names = {operator.name for operator in found.step}
    # Forward, losses, backward, clipping and the optimizer are all in the trace.
    assert {
        "aten::topk", "aten::_log_softmax", "aten::native_layer_norm_backward",
        "aten::_foreach_norm.Scalar", "aten::addcdiv_",
    } <= names  # fmt: skip
    # What dropout's masks are made with, which a decision has none of.
    assert "aten::floor" in names
    assert "aten::floor" not in {operator.name for operator in found.decision}


def test_the_trace_holds_every_term_of_the_objective():
    """Without one of them there are fewer calls: none is left out of the full one's trace."""

    def calls(objective):
        changed = settings()
        changed = Settings(**{**vars(changed), "objective": objective})
        return sum(o.calls for o in audit(ARCHITECTURES["tiny"], SPEC, changed).step)

    full = calls(EVERY_TERM)
    for name, value in (
        ("label_smoothing", 0.0), ("balance_weight", 0.0), ("foils", FoilsConfig()),
        ("draft", DraftConfig(weight=0.0)), ("draft", DraftConfig(distillation=0.0)),
    ):  # fmt: skip
        assert calls(ObjectiveConfig(**{**vars(EVERY_TERM), name: value})) < full, name


def test_adamw_is_plain_on_directml():
    assert audit(ARCHITECTURES["tiny"], SPEC, settings(AdamWConfig())).falling_back() == {}


def test_what_falls_back_is_named():
    grouped = audit(ARCHITECTURES["tiny"], SPEC, settings(dispatch="grouped"))
    names = {operator.name for operator in grouped.falling_back()["step"]}
    assert {"aten::index_copy", "aten::index_add"} <= names


def test_the_audit_draws_from_no_stream_of_the_run():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    audit(ARCHITECTURES["tiny"], SPEC, settings())
    assert torch.equal(torch.random.get_rng_state(), before)
