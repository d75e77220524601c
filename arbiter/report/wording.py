"""How numbers are written in a report."""

from __future__ import annotations

MISSING = "–"
"""What stands in a cell without a value."""


def percent(share: float | None, digits: int = 2) -> str:
    """0.9971 as 99.71%."""
    return MISSING if share is None else f"{share:.{digits}%}"


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; thousands are set apart."""
    if value is None:
        return MISSING
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def fixed(value: float | None) -> str:
    """A number of order one, for a column of such."""
    return MISSING if value is None else f"{value:.4f}"


def interval(bounds: tuple[float, float] | None, digits: int = 2) -> str:
    """Two shares as 99.57 to 99.79%."""
    if bounds is None:
        return MISSING
    low, high = bounds
    return f"{100 * low:.{digits}f} to {high:.{digits}%}"


def moment(text: str) -> str:
    """A time of status.json as a person reads it."""
    return f"{text[:10]} {text[11:16]}"


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return MISSING
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.1f} h"
