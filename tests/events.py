"""Events of metrics.jsonl without what clock, memory and thermometer say."""

WALL_CLOCK = {
    "samples_per_sec",
    "data_wait_share",
    "train_seconds",
    "eval_seconds",
    "seconds_left",
    "rss_mb",
    "temperature_c",
}


def without_clock(events: list[dict]) -> list[dict]:
    """What two equal runs have in common."""
    return [{k: v for k, v in event.items() if k not in WALL_CLOCK} for event in events]
