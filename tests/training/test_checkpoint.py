import json

import pytest
import torch

from arbiter.training.checkpoint import (
    State,
    keep_states,
    list_states,
    load_newest_state,
    optimizer_tensors,
    restore_optimizer,
    save_state,
    state_step,
)


def state(step: int) -> State:
    return State({"model": {"w": torch.full((3,), float(step))}}, {"step": step})


def test_the_newest_two_are_kept_and_the_newest_is_read(tmp_path):
    for step in (5, 10, 15):
        save_state(tmp_path, step, state(step))
    assert [p.name for p in list_states(tmp_path)] == ["state-00000010", "state-00000015"]
    newest = load_newest_state(tmp_path)
    assert newest.values == {"step": 15}
    assert newest.tensors["model"]["w"].tolist() == [15.0] * 3


def test_the_last_state_to_extend_from_is_kept_as_well(tmp_path):
    for step in range(5, 35, 5):
        values = {"step": step, "extendable_until": 15}
        save_state(tmp_path, step, State(state(step).tensors, values))
    assert [state_step(path) for path in list_states(tmp_path)] == [15, 25, 30]
    assert load_newest_state(tmp_path, 15).values["step"] == 15
    assert load_newest_state(tmp_path, 14) is None
    keep_states(tmp_path, 15, 40)
    assert [state_step(path) for path in list_states(tmp_path)] == [15]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "no manifest", "bad manifest"])
def test_a_damaged_state_falls_back_to_the_one_before(tmp_path, damage, caplog):
    for step in (5, 10):
        save_state(tmp_path, step, state(step))
    weights = tmp_path / "state-00000010" / "model.safetensors"
    manifest = weights.with_name("MANIFEST.json")
    if damage == "flip":
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(raw)
    elif damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-4])
    elif damage == "remove":
        weights.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text(json.dumps(["not", "a", "manifest"]))
    assert load_newest_state(tmp_path).values == {"step": 5}
    assert "taking the state before it" in caplog.text


@pytest.mark.parametrize("damaged", [(10,), (10, 12)], ids=str)
def test_damaged_states_take_no_place_of_intact_ones(tmp_path, damaged):
    for step in (5, *damaged):
        path = save_state(tmp_path / str(step), step, state(step))
        (tmp_path / "all").mkdir(exist_ok=True)
        path.rename(tmp_path / "all" / path.name)
    for step in damaged:
        (tmp_path / "all" / f"state-{step:08d}" / "state.json").unlink()
    assert load_newest_state(tmp_path / "all").values == {"step": 5}
    for step, kept in ((6, [5, 6]), (7, [6, 7])):
        save_state(tmp_path / "all", step, state(step))
        assert [state_step(path) for path in list_states(tmp_path / "all")] == kept


def test_a_half_written_state_is_never_seen(tmp_path, monkeypatch):
    save_state(tmp_path, 5, state(5))

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("arbiter.training.checkpoint.write_json_atomic", fail)
    with pytest.raises(OSError, match="No space"):
        save_state(tmp_path, 10, state(10))
    assert load_newest_state(tmp_path).values == {"step": 5}
    assert [p.name for p in tmp_path.iterdir()] == ["state-00000005"]


def test_an_optimizer_comes_back_exactly(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(20, 4)

    def make():
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 3)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def advance(model, optimizer, rows):
        for row in rows:
            optimizer.zero_grad()
            model(row).square().sum().backward()
            optimizer.step()

    straight = make()
    advance(*straight, inputs)
    first = make()
    advance(*first, inputs[:10])
    tensors = {"model": first[0].state_dict(), "optimizer": optimizer_tensors(first[1])}
    save_state(tmp_path, 10, State(tensors, {}))
    loaded = load_newest_state(tmp_path)
    second = make()
    second[0].load_state_dict(loaded.tensors["model"])
    restore_optimizer(second[1], loaded.tensors["optimizer"])
    advance(*second, inputs[10:])
    assert torch.equal(second[0].weight, straight[0].weight)
