"""Show, verify and prune the feature store; --help shows how."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from arbiter.config import instantiate
from arbiter.console import say
from arbiter.errors import ConfigError, StoreError
from arbiter.features.inventory import TableInfo, list_tables, remove, verify
from experiments.app import run_app
from experiments.schema import FeaturesConfig, PruneConfig


def main(composed: DictConfig) -> None:
    """Verify, prune, then show what is left."""
    config: FeaturesConfig = instantiate(composed)
    root = Path(config.paths.features)
    if not root.is_dir():
        raise ConfigError("paths.features", root, "no feature store there; train first")
    damaged = []
    if config.verify:
        for table in list_tables(root):
            damaged += [f"{table.directory.name}/{name}" for name in verify(table)]
    for table in to_prune(list_tables(root), config.prune):
        remove(table)
        say(f"removed {table.directory.name}: {table.model}, {table.size_mb:,.1f} MB")
    for line in lines(list_tables(root)):
        say(line.rstrip())
    if damaged:
        raise StoreError(
            f"features: {len(damaged)} damaged files removed ({', '.join(damaged[:3])}"
            f"{', ...' if len(damaged) > 3 else ''}); the next run encodes their contents anew"
        )
    if config.verify:
        say("verified: every checksum holds")


def to_prune(tables: list[TableInfo], prune: PruneConfig) -> list[TableInfo]:
    """The tables that all given conditions apply to; none without a condition.

    Raises:
        ConfigError: `prune.encoder` names none.
    """
    if prune.older_than_days is None and prune.encoder is None:
        return []
    if prune.encoder is not None:
        chosen = [table for table in tables if table.matches(prune.encoder)]
        if not chosen:
            known = ", ".join(sorted({table.model for table in tables})) or "nothing"
            raise ConfigError("prune.encoder", prune.encoder, f"the store has {known}")
        tables = chosen
    if prune.older_than_days is not None:
        tables = [table for table in tables if table.idle_days > prune.older_than_days]
    return tables


def lines(tables: list[TableInfo]) -> list[str]:
    """The store as a table for people."""
    form = "{:<25} {:<32} {:>8} {:>10} {:>12} {:>12}"
    total = sum(table.size_mb for table in tables)
    return [
        form.format("table", "encoder", "dtype", "contents", "MB", "days unused"),
        *(
            form.format(
                t.directory.name, t.model, t.dtype, f"{t.contents:,}", f"{t.size_mb:,.1f}",
                f"{t.idle_days:.1f}",
            )
            for t in tables
        ),
        form.format("total", "", "", "", f"{total:,.1f}", ""),
    ]  # fmt: skip


if __name__ == "__main__":
    run_app(main, "features")
