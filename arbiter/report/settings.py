"""Sections about what went in: samples, encoder, model, configuration, environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from arbiter.report import page
from arbiter.report.run_files import RunFiles
from arbiter.report.wording import percent
from arbiter.training.resume import flatten

_SPLITS = ("train", "val", "calibration", "test")


def material(run: RunFiles) -> page.Section:
    """What was trained on what."""
    name, title = "material", "What was trained on what"
    facts = run.facts
    if not facts:
        text = "The run ended before its samples were read; see train.log beside this page."
        return page.Section(name, title, page.note(text))
    rows = []
    for source, part in (facts.get("sources") or {}).items():
        splits = part.get("splits", {})
        modalities = ", ".join(f"{n:,} with {kind}" for kind, n in part["modalities"].items())
        sizes = list(part.get("candidates", {}))
        spread = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}" if sizes else None
        skipped = sum(part.get("skipped", {}).values())
        rows.append(
            (source, *(f"{splits.get(split, 0):,}" for split in _SPLITS),
             f"{part.get('groups', 0):,}", spread, modalities or "text only", f"{skipped:,}")
        )  # fmt: skip
    totals = facts.get("samples", {})
    if len(rows) != 1:
        rows.append(("all", *(f"{totals.get(split, 0):,}" for split in _SPLITS), *(4 * [""])))
    head = ["samples", *_SPLITS, "groups", "candidates", "media", "skipped"]
    encoder, parameters = facts.get("encoder", {}), facts.get("parameters", {})
    described = {
        "encoder": ", ".join(f"{v}" for k, v in encoder.items() if k != "random_weights")
        or "not recorded",
        "encoder weights": _encoder_weights(encoder, parameters),
        "model": _model(run, parameters),
    }
    if "best_epoch" in facts:
        accuracy = percent(facts.get("validation", {}).get("accuracy"))
        kind = facts.get("weights", "")
        described["weights"] = f"{kind}, epoch {facts['best_epoch']}; validation {accuracy}"
    if facts.get("calibration"):
        fit = facts["calibration"]
        temperature, samples = fit.get("temperature"), fit.get("fit_samples", fit.get("samples"))
        if temperature is not None:
            described["temperature"] = f"{temperature:.4f}, from {samples:,} samples"
    described["seed"] = facts.get("seed")
    return page.Section(name, title, page.table(head, rows) + page.facts(described))


def _encoder_weights(encoder: dict, parameters: dict) -> str:
    frozen = parameters.get("frozen")
    if not frozen:
        return "none: it computes, and has learned nothing"
    kind = "random" if encoder.get("random_weights") else "pretrained"
    return f"{frozen:,} {kind} parameters, frozen"


def _model(run: RunFiles, parameters: dict) -> str:
    text = f"{parameters.get('trainable', 0):,} trained parameters"
    text += f", {parameters.get('active_per_token', 0):,} active for a token"
    shape = (run.config or {}).get("architecture", {})
    moe = shape.get("moe", {})
    if shape:
        text += (
            f"; {shape.get('num_layers')} layers of width {shape.get('hidden_dim')}, "
            f"{moe.get('num_routed_experts')} routed experts of which {moe.get('top_k')} are chosen"
            f", {moe.get('num_shared_experts')} shared"
        )
    return text


def configuration(run: RunFiles, default: Mapping[str, Any] | None) -> page.Section:
    """What the run did differently from the default, and all of it to unfold."""
    name, title = "configuration", "Configuration"
    if run.config is None:
        text = "There is no .hydra/config.yaml: the run was not started by experiments.train."
        return page.Section(name, title, page.note(text))
    config = dict(flatten(run.config))
    everything = page.details(
        f"all {len(config)} keys", page.table(["key", "value"], _rows(config), text=True)
    )
    if default is None:
        text = "No default configuration is at hand to compare with."
        return page.Section(name, title, page.note(text) + everything)
    usual = dict(flatten(default))
    changed = [
        (_key(key), _value(usual[key]) if key in usual else "(no such key)", _value(value))
        for key, value in sorted(config.items())
        if key not in usual or usual[key] != value
    ]
    body = page.note("Nothing differs from the default.")
    if changed:
        text = "What differs from the default of the code that made this page."
        body = page.note(text) + page.table(["key", "default", "this run"], changed, text=True)
    missing = [(_key(key), _value(usual[key])) for key in sorted(usual.keys() - config.keys())]
    if missing:
        rows = page.table(["key", "default"], missing, text=True)
        body += page.details(f"{len(missing)} keys of the default that the run has not", rows)
    return page.Section(name, title, body + everything)


def _key(key: str) -> Markup:
    """A dotted key, which a narrow page may break at its dots."""
    return page.code(Markup(".<wbr>").join(key.split(".")))


def _value(value: Any) -> str:
    return "null" if value is None else str(value)


def _rows(config: dict) -> list[tuple]:
    return [(_key(key), _value(value)) for key, value in config.items()]


def environment(run: RunFiles) -> page.Section:
    """Machine, versions and code revision."""
    name, title = "environment", "Environment"
    facts = run.facts
    if not facts:
        return page.Section(name, title, page.note("The run ended before it was described."))
    machine = facts.get("machine", {})
    described = {
        "machine": f"{machine.get('name')}, {machine.get('cpus')} CPUs, "
        f"{machine.get('memory_mb', 0) / 1000:.0f} GB",
        "device": f"{machine.get('device')}, {machine.get('threads')} threads",
        "code": facts.get("git_revision") or "unversioned",
        "versions": ", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items() if v),
        "features": facts.get("feature_fingerprint"),
    }
    return page.Section(name, title, page.facts(described))
