"""SEED-Bench and SEED-Bench-2: multiple-choice questions about images and clips (Li et al., 2023).

https://huggingface.co/datasets/lmms-lab/SEED-Bench (17,990 rows) and .../SEED-Bench-2 (24,371 rows,
38 GB in 418 files). Both have a test split only. A video is a list of 8 frames.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from arbiter.config import option
from arbiter.datasets.base import ALL, LoadedSource
from arbiter.datasets.hub import HubSourceConfig, HubSplit, image_ref
from arbiter.errors import SourceError
from arbiter.seeds import generator, hash_fraction

_LETTERS = "ABCD"
_LABEL_COLUMNS = ("question_id", "question_type_id", "data_type")
_COLUMNS = (
    *_LABEL_COLUMNS, "question", "choice_a", "choice_b", "choice_c", "choice_d", "answer", "image",
)  # fmt: skip

# Where the list in the column `image` belongs; interleaved questions mark the places with <img>.
_FIELD_OF_TYPE = {
    "single image": "images",
    "image": "images",
    "multiple images": "images",
    "interleaved image": "images",
    "video": "video",
}


@dataclass
class SeedBenchConfig(HubSourceConfig):
    """Options of the SEED-Bench source."""

    _target_: str = field(
        default="arbiter.datasets.seed_bench.SeedBench", metadata={"help": "The source's class."}
    )
    licence: str | None = option("CC BY-NC 4.0", help="Licence of the data.")
    repo: str = option("lmms-lab/SEED-Bench", help="Repository on the hub, as owner/name.")
    streaming: bool = option(True, help="Read over the network as needed; false downloads all.")
    excluded_question_types: list[int] = option(
        [], help="Dimensions (question_type_id) to leave out."
    )


@dataclass
class SeedBench2Config(SeedBenchConfig):
    """Options of the SEED-Bench-2 source."""

    _target_: str = field(
        default="arbiter.datasets.seed_bench.SeedBench2", metadata={"help": "The source's class."}
    )
    repo: str = option("lmms-lab/SEED-Bench-2", help="Repository on the hub, as owner/name.")
    excluded_question_types: list[int] = option(
        [14],
        help="Dimensions (question_type_id) to leave out; 14 is taken from ScienceQA.",
    )


class SeedBench:
    """The SEED-Bench source."""

    name = "seed_bench"

    def __init__(self, config: SeedBenchConfig):
        self.config = config

    def load(self, seed: int) -> LoadedSource:
        """Samples of the only split under 'all'; with a cap, as many of each dimension.

        The labels of all rows are read first, and then only the files that hold chosen rows.

        Raises:
            SourceError: it cannot be read.
        """
        split = HubSplit(self.name, self.config, "test", _COLUMNS)
        loaded = LoadedSource(carved_from=f"split test of {self.config.path or self.config.repo}")
        usable = self._usable_rows(split, loaded)
        if not usable:
            raise SourceError(
                f"{split}: no row can be used ({dict(loaded.skipped) or 'there is none'}); "
                "relax excluded_question_types"
            )
        chosen = choose_rows(usable, self.config.max_samples, seed)
        for shard in sorted(chosen):
            wanted = chosen[shard]
            for number, row in enumerate(split.rows(shard=shard)):
                if number in wanted:
                    self._add(loaded, row)
        return loaded

    def _usable_rows(self, split: HubSplit, loaded: LoadedSource) -> dict[int, dict[int, int]]:
        """Shard -> row -> dimension, of all rows that can be asked."""
        usable: dict[int, dict[int, int]] = {}
        excluded = set(self.config.excluded_question_types)
        for shard in range(split.num_shards):
            rows = usable.setdefault(shard, {})
            for number, row in enumerate(split.rows(_LABEL_COLUMNS, shard)):
                dimension = str(row["question_type_id"]).strip()
                if not dimension.isdecimal():
                    where = f"{self.name} {row['question_id']}"
                    loaded.illegal.append(f"{where}: question_type_id {dimension} is no number")
                elif _kind(row["data_type"]) not in _FIELD_OF_TYPE:
                    loaded.skipped[f"data type {row['data_type']}"] += 1
                elif int(dimension) in excluded:
                    loaded.skipped[f"excluded question type {dimension}"] += 1
                else:
                    rows[number] = int(dimension)
        return {shard: rows for shard, rows in usable.items() if rows}

    def _add(self, loaded: LoadedSource, row: dict) -> None:
        where = str(row["question_id"])
        letter = str(row["answer"]).strip().upper()
        images = tuple(image_ref(cell) for cell in row["image"] or ())
        choices = [row[f"choice_{letter.lower()}"] for letter in _LETTERS]
        candidates = tuple(choice for choice in choices if choice)
        if not images or None in images:
            loaded.illegal.append(f"{self.name} {where}: there is no picture")
        elif len(letter) != 1 or letter not in _LETTERS[: len(candidates)]:
            loaded.illegal.append(f"{self.name} {where}: answer {row['answer']!r} is no choice")
        elif any(choices[len(candidates) :]):
            loaded.illegal.append(f"{self.name} {where}: a choice is missing before another")
        else:
            loaded.add(
                ALL,
                question=row["question"],
                candidates=candidates,
                answer=_LETTERS.index(letter),
                **{_FIELD_OF_TYPE[_kind(row["data_type"])]: images},
                source=self.name,
                group=hashlib.sha256(b"".join(map(_content, images))).hexdigest()[:16],
                id=where,
                meta={"question_type": str(row["question_type_id"]), "data_type": row["data_type"]},
            )


class SeedBench2(SeedBench):
    """The SEED-Bench-2 source."""

    name = "seed_bench_2"


def _kind(data_type: str | None) -> str:
    return str(data_type).strip().lower()


def _content(image: object) -> bytes:
    return image if isinstance(image, bytes) else str(image).encode()


def quotas(sizes: dict[int, int], limit: int, seed: int) -> dict[int, int]:
    """How many to take of each dimension: equal parts, what small ones lack going to the others."""
    order = sorted(sizes, key=lambda dimension: hash_fraction(seed, f"dimension/{dimension}"))
    taken: Counter[int] = Counter()
    left = min(limit, sum(sizes.values()))
    while left:
        for dimension in order:
            if left and taken[dimension] < sizes[dimension]:
                taken[dimension] += 1
                left -= 1
    return dict(taken)


def choose_rows(
    usable: dict[int, dict[int, int]], limit: int | None, seed: int
) -> dict[int, set[int]]:
    """A stratified choice of rows, from as few shards as a seeded order of shards allows.

    Args:
        usable: shard -> row -> dimension.
        limit: rows to choose; None chooses all.

    Returns:
        shard -> chosen rows; shards without any are left out.
    """
    if limit is None:
        return {shard: set(rows) for shard, rows in usable.items()}
    sizes = Counter(dimension for rows in usable.values() for dimension in rows.values())
    missing = Counter(quotas(sizes, limit, seed))
    chosen: dict[int, set[int]] = defaultdict(set)
    for shard in sorted(usable, key=lambda shard: hash_fraction(seed, f"shard/{shard}")):
        rows = sorted(usable[shard])
        for row in generator(seed, "rows", shard).permutation(rows).tolist():
            dimension = usable[shard][row]
            if missing[dimension]:
                missing[dimension] -= 1
                chosen[shard].add(row)
    return dict(chosen)
