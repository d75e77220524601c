"""Taking a calibration back from JSON that may come from anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from arbiter.calibration.calibration import FORMAT_VERSION, Calibration, PathCalibration
from arbiter.calibration.conformal import EMPTY_SETS, METHODS, RapsConfig
from arbiter.calibration.deliberation import DeliberationConfig
from arbiter.calibration.deployed import DELIBERATED, PATHS, Fitted
from arbiter.calibration.escalation import EscalationConfig
from arbiter.calibration.gate import Gate, GateFit
from arbiter.calibration.risk import RiskCounts, thresholds
from arbiter.calibration.temperature import HIGHEST, LOWEST
from arbiter.config import from_dict
from arbiter.errors import ArbiterError, RunError


def read_calibration(values: dict) -> Calibration:
    """What `Calibration.to_dict` wrote.

    Raises:
        RunError: another format, or not a calibration; one line.
    """
    try:
        if values.get("format_version") != FORMAT_VERSION:
            raise RunError(
                f"calibration.json: format {values.get('format_version')} is not known to this "
                "version; train the model again, or use the version of Arbiter that wrote it"
            )
        fitted = _fitted(values["fitted"])
        expected = [p for p in PATHS if p != DELIBERATED or fitted.deliberated_temperature]
        if sorted(values["paths"]) != sorted(expected):
            raise ValueError(f"paths are {sorted(values['paths'])}, not {sorted(expected)}")
        if values["empty_set"] not in EMPTY_SETS:
            raise ValueError(f"empty_set is {values['empty_set']!r}")
        return Calibration(
            fitted=fitted,
            gate=_gate_fit(values["gate"], fitted.gate),
            paths={name: _path(values["paths"][name]) for name in expected},
            fit_samples=_count(values["fit_samples"]),
            set_samples=_count(values["set_samples"]),
            split_digest=_text(values["split_digest"]),
            empty_set=values["empty_set"],
            raps=from_dict(RapsConfig, values["raps"]),
            escalation=from_dict(EscalationConfig, values["escalation"]),
        )
    except RunError:
        raise
    # What contents other than ours make of the calls above.
    except (ArbiterError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"calibration.json: not a calibration of this version ({reason})") from None


def _fitted(values: dict) -> Fitted:
    gate = values["gate"]
    if gate is not None:
        gate = Gate(*(_number(gate[name]) for name in ("margin", "entropy", "confidence")))
    deliberated = values["deliberated_temperature"]
    return Fitted(
        draft_temperature=_temperature(values["draft_temperature"]),
        full_temperature=_temperature(values["full_temperature"]),
        deliberated_temperature=None if deliberated is None else _temperature(deliberated),
        gate=gate,
        deliberation=from_dict(DeliberationConfig, values["deliberation"]),
        seed=_count(values["seed"]),
    )


def _gate_fit(values: dict, gate: Gate | None) -> GateFit:
    bound = values["bound"]
    samples, exits, disagreements = (
        _count(values[name]) for name in ("samples", "exits", "disagreements")
    )
    if not samples >= exits >= disagreements:
        raise ValueError(f"{disagreements} of {exits} exits of {samples} samples disagree")
    if bound is not None and not 0 <= _number(bound) <= 1:
        raise ValueError(f"{bound!r} is no share")
    return GateFit(gate, _text(values["reason"]), samples, exits, disagreements, bound)


def _path(values: dict) -> PathCalibration:
    scores = {}
    for method in METHODS:
        scores[method] = {}
        for source, numbers in values["scores"][method].items():
            array = np.array([_number(n) for n in numbers])
            if (np.diff(array) < 0).any():
                raise ValueError(f"{method} scores of {source} are not ascending")
            scores[method][source] = array.tolist()
    risk = values["risk"]
    decided, wrong = (tuple(_count(n) for n in risk[name]) for name in ("decided", "wrong"))
    samples = _count(risk["samples"])
    if not len(decided) == len(wrong) == len(thresholds()):
        raise ValueError(f"risk has {len(decided)} and {len(wrong)} counts")
    if any(w > d or d > samples for d, w in zip(decided, wrong, strict=True)):
        raise ValueError("risk counts more than there are")
    return PathCalibration(scores, RiskCounts(samples, decided, wrong))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _temperature(value: Any) -> float:
    # But for the last digit, which may differ from machine to machine.
    if not LOWEST * (1 - 1e-9) <= _number(value) <= HIGHEST * (1 + 1e-9):
        raise ValueError(f"{value!r} is no temperature from {LOWEST:g} to {HIGHEST:g}")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
