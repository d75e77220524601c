import pytest

from arbiter.report.wording import duration, interval, moment, number, percent


def test_shares():
    assert percent(0.99705) == "99.70%"
    assert percent(None) == "–"
    assert interval((0.9957, 0.9979)) == "99.57 to 99.79%"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12.3 ms"), (59.94, "59.9 s"), (225, "4 min"), (7200, "2.0 h"), (None, "–")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_numbers():
    assert [number(v) for v in (0.0012345, 3, 48_248, 1234.5, None)] == [
        "0.001234", "3", "48,248", "1,234", "–",
    ]  # fmt: skip


def test_moments():
    assert moment("2026-01-31T12:00:59+0100") == "2026-01-31 12:00"
