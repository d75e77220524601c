"""The axes of charts: where a value lies, and which round numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Numbers = Sequence[float | None]


def nice_ticks(low: float, high: float, count: float = 4) -> list[float]:
    """Round numbers from `low` to `high`, about `count` steps of 1, 2, 2.5 or 5 times 10^n."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9)) * power
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def plain(value: float) -> str:
    """A tick's number: 0.25, 1,000, 20k, 3e-04."""
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1e6:g}M" if size >= 1e6 else f"{value / 1e3:g}k"
    if 0 < size < 1e-3:
        return f"{value:.3g}"
    return f"{value:,g}" if size < 1000 else f"{value:,.0f}"


def share(value: float) -> str:
    """A tick's share in percent."""
    return f"{100 * value:.6g}%"


@dataclass(frozen=True)
class Axis:
    """A numeric axis from `low` to `high`.

    Attributes:
        label: what it measures, with its unit.
        form: writes a tick.
        log: logarithmic; both ends are positive.
        integer: only whole numbers are written.
    """

    low: float
    high: float
    label: str = ""
    form: Callable[[float], str] = plain
    log: bool = False
    integer: bool = False

    @classmethod
    def over(
        cls, values: Numbers, label: str = "", form: Callable[[float], str] = plain,
        zero: bool = False, whole: bool = False, log: bool = False, integer: bool = False,
    ) -> Axis:  # fmt: skip
        """An axis that holds all values.

        Args:
            values: None and infinite ones are left out.
            zero: whether it begins at zero.
            whole: whether it ends at the outermost values rather than at the next tick.
            log: logarithmic; values at and below zero are left out.
            integer: only whole numbers are written.
        """
        known = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if log:
            return cls(low / 1.15, high * 1.15, label, form, True) if known else cls(1, 10, label)
        if low == high:
            pad = abs(low) * 0.1 or 1.0
            low, high = (low, high + pad) if zero and low == 0 else (low - pad, high + pad)
        if not whole:
            step = (lambda t: t[1] - t[0])(nice_ticks(low, high))
            low = math.floor(low / step + 1e-9) * step
            high = math.ceil(high / step - 1e-9) * step
        return cls(low, high, label, form, integer=integer)

    def at(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high one."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return (value - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Values with what is written there."""
        if not self.log:
            count = min(4.0, self.high - self.low) if self.integer else 4
            ticks = nice_ticks(self.low, self.high, count)
            ticks = [t for t in ticks if not self.integer or float(t).is_integer()]
            return [(value, self.form(value)) for value in ticks]
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        wide = math.log10(self.high / self.low) > 2
        values = [m * 10.0**p for p in powers for m in ((1,) if wide else (1, 2, 5))]
        return [(v, self.form(v)) for v in values if self.low <= v <= self.high]


@dataclass(frozen=True)
class Names:
    """An axis of names, the first one at the top or the left; name i lies at i."""

    names: Sequence[str]
    label: str = ""

    def at(self, value: float) -> float:
        """Where name number `value` lies, 0 at the bottom or left and 1 at the other end."""
        return (value + 0.5) / len(self.names)

    def ticks(self) -> list[tuple[float, str]]:
        """Each number with its name."""
        return list(enumerate(self.names))
