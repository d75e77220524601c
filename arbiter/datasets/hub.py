"""Reading data sets from the Hugging Face hub, or from a local copy, row by row.

Images are never decoded here: a row holds their encoded bytes or their path, which is what samples
carry. Whatever goes wrong becomes one line that lists what exists.

`datasets` takes a second to import, so it is imported where it is used: mixes without the hub, and
apps that only need a config's schema, do without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arbiter.config import option
from arbiter.datasets.base import SourceConfig
from arbiter.errors import SourceError, first_line


def _read_errors() -> tuple[type[Exception], ...]:
    """What `datasets` raises for a missing config or split, a broken file and no network."""
    from datasets.exceptions import DatasetsError

    return (DatasetsError, OSError, ValueError, KeyError)


@dataclass
class HubLocation:
    """Where a data set lies."""

    repo: str = option(help="Repository on the hub, as owner/name.")
    config: str | None = option(None, help="The repository's config; null: its only one.")
    revision: str | None = option(None, help="Branch, tag or commit; null: the newest.")
    path: str | None = option(
        None, help="Folder with a copy of the repository, read instead of the hub."
    )
    streaming: bool = option(
        False, help="Read over the network as needed; false downloads all once and keeps it."
    )


@dataclass
class HubSourceConfig(SourceConfig, HubLocation):
    """Options of a source that is one repository on the hub."""

    @property
    def repositories(self) -> tuple[str, ...]:
        """The repository."""
        return (self.repo,)


def image_ref(cell: dict[str, Any] | None) -> bytes | Path | None:
    """The image reference in a cell of an undecoded image column; None for an empty cell."""
    if cell is None:
        return None
    if cell.get("bytes"):
        return cell["bytes"]
    return Path(cell["path"]) if cell.get("path") else None


class HubSplit:
    """One split of a data set on the hub.

    Args:
        source: the source's name and keys, for messages.
        location: where it lies.
        split: the split's name.
        columns: the columns that rows shall have.
        config: overrides `location.config`.

    Raises:
        SourceError: it cannot be reached, or has no such config, split or column.
    """

    def __init__(
        self,
        source: str,
        location: HubLocation,
        split: str,
        columns: Sequence[str],
        config: str | None = None,
    ):
        self.source, self.location, self.split = source, location, split
        self.config = config or location.config
        self.columns = list(columns)
        self._data = self._open()
        present = self._data.column_names or []
        missing = [column for column in columns if column not in present]
        if missing:
            raise SourceError(
                f"{self}: no column {', '.join(missing)}; there are {', '.join(present)}"
            )
        if location.streaming and len(present) > len(self.columns):
            self._data = self._open(self.columns)
        self.num_shards = self._data.num_shards if location.streaming else 1

    def __str__(self) -> str:
        place = self.location.path or self.location.repo
        config = f", config {self.config}" if self.config else ""
        return f"{self.source}: {place}{config}, split {self.split}"

    def rows(
        self, columns: Sequence[str] | None = None, shard: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """All rows, or those of one shard (a file, when streaming), with some of the columns only.

        When streaming, columns that were not asked for are not even fetched.

        Raises:
            SourceError: reading fails on the way.
        """
        data = self._data
        if columns is not None and self.location.streaming:
            data = self._open(columns)
        data = _undecoded(data.select_columns(list(columns or self.columns)))
        if shard is not None and self.location.streaming:
            data = data.shard(num_shards=self.num_shards, index=shard)
        iterator = iter(data)
        while True:
            # Only the reading is guarded: an error of the consumer is not the data set's.
            try:
                row = next(iterator)
            except StopIteration:
                return
            except _read_errors() as error:
                raise SourceError(f"{self}: reading failed: {first_line(error)}") from error
            yield row

    def _open(self, columns: Sequence[str] | None = None) -> Any:
        import datasets

        location = self.location
        if location.path and not Path(location.path).is_dir():
            raise SourceError(f"{self}: no such folder; give path the folder of the copy")
        options = {} if columns is None else {"columns": list(columns)}
        try:
            return datasets.load_dataset(
                location.path or location.repo,
                self.config,
                split=self.split,
                revision=None if location.path else location.revision,
                streaming=location.streaming,
                **options,
            )
        except _read_errors() as error:
            raise SourceError(self._explain(error)) from error

    def _explain(self, error: Exception) -> str:
        """Why opening failed: a config or split that does not exist, or no way to the hub."""
        import datasets

        place = self.location.path or self.location.repo
        revision = None if self.location.path else self.location.revision
        keys = "set path to a folder with a copy of the repository, or another repo"
        if isinstance(error, ConnectionError):
            offline = datasets.config.HF_HUB_OFFLINE
            cause = "HF_HUB_OFFLINE is set" if offline else "no network, or the hub is down"
            return f"{self.source}: cannot reach {place} ({cause}); {keys}"
        if isinstance(error, FileNotFoundError):
            return f"{self.source}: {place} has no data that can be read; {keys}"
        try:
            configs = datasets.get_dataset_config_names(place, revision=revision)
            if (self.config or configs[0]) not in configs or (not self.config and configs[1:]):
                wanted = f"no config {self.config}" if self.config else "name a config"
                return f"{self.source}: {place}: {wanted}; there are {', '.join(configs)}"
            splits = datasets.get_dataset_split_names(place, self.config, revision=revision)
            if self.split not in splits:
                return f"{self}: no such split; there are {', '.join(splits)}"
        except _read_errors() as second:
            return f"{self}: {first_line(error)} ({first_line(second)})"
        return f"{self}: {first_line(error)}"


def _undecoded(data: Any) -> Any:
    """The same data with every image column left encoded."""
    for name, feature in (data.features or {}).items():
        encoded = _encoded(feature)
        if encoded is not feature:
            data = data.cast_column(name, encoded)
    return data


def _encoded(feature: Any) -> Any:
    """An image, or a list of images, left encoded; any other feature as it is."""
    import datasets

    if isinstance(feature, datasets.Image):
        return datasets.Image(decode=False)
    if isinstance(feature, list) and isinstance(feature[0], datasets.Image):
        return [datasets.Image(decode=False)]
    if isinstance(getattr(feature, "feature", None), datasets.Image):
        return type(feature)(datasets.Image(decode=False))
    return feature
