"""Foils: wrong answers from the whole training mix, as near to the right one as is still fair.

A bank holds every candidate text of the mix. Text features are frozen, so the nearest texts of
every known answer are found once, exactly, and stored beside the features; a training step only
looks them up. An answer that is not known is searched for.

Similar to the answer, but not too similar: below the band a foil teaches nothing, above it stand
other wordings of the answer. After the memory banks of contrastive learning (Wu et al., 2018,
arXiv:1805.01978), without their queue, since these features do not age.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch.nn import functional as F

from arbiter import media
from arbiter.config import option
from arbiter.errors import ConfigError
from arbiter.features.dataset import FeatureDataset
from arbiter.features.foil_table import FoilTable
from arbiter.features.neighbour_file import read_or_make
from arbiter.features.store import FeatureStore
from arbiter.features.table import StreamReader
from arbiter.sample import Sample

log = logging.getLogger(__name__)

# Signs such as - + $ % are left: they tell -5 from 5 and C++ from C.
_PUNCTUATION = " .,;:!?'\"`()[]{}…“”‘’«»¿¡。，、；：！？"

# A block of similarities takes 32 MiB, and so does a block of the bank at 1024 features.
_QUERY_BLOCK, _BANK_BLOCK = 1024, 8192


@dataclass
class FoilsConfig:
    """Wrong answers from the whole mix, in the margin loss beside a question's own candidates."""

    weight: float = option(
        0.0, help="What foils count in the margin loss: 0 none, 1 as much as candidates.", low=0
    )
    count: int = option(12, help="Foils of an answer.", low=1)
    min_similarity: float = option(
        0.25, help="Least cosine similarity of a foil to the answer.", low=-1, high=1
    )
    max_similarity: float = option(
        0.98, help="Greatest one; above it stand other wordings of the answer.", low=-1, high=1
    )
    capacity: int = option(
        100_000, help="Texts in the bank; the most frequent candidates are kept.", low=1
    )
    vocabulary: str | None = option(
        None, help="A file of further texts for the bank, one a line, most important first."
    )

    def check(self) -> None:
        """The band holds something."""
        if self.min_similarity >= self.max_similarity:
            raise ConfigError(
                "min_similarity",
                self.min_similarity,
                f"must be below max_similarity, which is {self.max_similarity}",
            )


@lru_cache(maxsize=2**17)
def normalise(text: str) -> str:
    """What a text says, whatever its case, white space and punctuation around it.

    A text of nothing but punctuation stays as it is.
    """
    folded = " ".join(text.casefold().split())
    return folded.strip(_PUNCTUATION) or folded


def bank_texts(config: FoilsConfig, samples: Iterable[Sample]) -> list[str]:
    """The bank's texts: distinct after normalisation, the most frequent first.

    Candidates come before the vocabulary; ties are in the order of the normalised texts. Each is
    in its most frequent spelling.

    Raises:
        ConfigError: the vocabulary cannot be read.
    """
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        for candidate in sample.candidates:
            spellings[normalise(candidate)][candidate] += 1
    totals = {text: sum(forms.values()) for text, forms in spellings.items()}
    texts = {
        text: min(spellings[text].items(), key=lambda form: (-form[1], form[0]))[0]
        for text in sorted(totals, key=lambda text: (-totals[text], text))
    }
    for line in _vocabulary(config.vocabulary):
        texts.setdefault(normalise(line), line)
    return list(texts.values())[: config.capacity]


def _vocabulary(path: str | None) -> list[str]:
    if path is None:
        return []
    remedy = "give a text file, one text a line, or null"
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); {remedy}"
        raise ConfigError("objective.foils.vocabulary", path, reason) from None
    except UnicodeDecodeError:
        reason = f"is not UTF-8 text; {remedy}"
        raise ConfigError("objective.foils.vocabulary", path, reason) from None
    return [line.strip() for line in lines if line.strip()]


class FoilBank:
    """N texts with their features, searched exactly.

    Features are read from the store by the block, so a bank takes next to no memory.

    Args:
        config: band and count.
        texts: distinct after normalisation.
        stream: pooled text features.
        rows: int64 [N], the texts' rows in it.
    """

    def __init__(
        self, config: FoilsConfig, texts: Sequence[str], stream: StreamReader, rows: torch.Tensor
    ):
        self.config, self.texts, self.rows = config, list(texts), rows
        self._stream = stream
        self._places = {normalise(text): place for place, text in enumerate(self.texts)}

    def __len__(self) -> int:
        return len(self.texts)

    def place(self, text: str) -> int:
        """Where the text that equals this one after normalisation is in the bank; -1: nowhere."""
        return self._places.get(normalise(text), -1)

    def search(
        self, features: torch.Tensor, texts: Sequence[str] | None = None, count: int | None = None
    ) -> torch.Tensor:
        """The foils of M answers, which need not be known: the most similar texts in the band.

        Args:
            features: float32 [M, D], pooled text features of any length.
            texts: the answers; no foil equals its own after normalisation. None: nothing is left
                out but by the band.
            count: foils of each; by default the configured number.

        Returns:
            int64 [M, count], places in the bank, the most similar first, -1 where there is none.
        """
        own = torch.full((len(features),), -1)
        if texts is not None:
            own = torch.tensor([self.place(text) for text in texts], dtype=torch.int64)
        count = self.config.count if count is None else count
        found = torch.full((len(features), count), -1)
        queries = F.normalize(features.float(), dim=-1)
        for start in range(0, len(queries), _QUERY_BLOCK):
            part = slice(start, start + _QUERY_BLOCK)
            found[part] = self._nearest(queries[part], own[part], count)
        return found

    def _nearest(self, queries: torch.Tensor, own: torch.Tensor, count: int) -> torch.Tensor:
        """The search for one block of unit vectors [m, D]; places [m, count]."""
        low, high = self.config.min_similarity, self.config.max_similarity
        nowhere = -2.0  # below every cosine
        best = torch.full((len(queries), count), nowhere)
        places = torch.full((len(queries), count), -1)
        for start in range(0, len(self), _BANK_BLOCK):
            features, _ = self._stream.gather(self.rows[start : start + _BANK_BLOCK])
            similar = queries @ F.normalize(features, dim=-1).T
            here = (own >= start) & (own < start + len(features))
            similar[here, own[here] - start] = nowhere
            similar.masked_fill_(similar > high, nowhere)
            values, columns = similar.topk(min(count, len(features)), dim=-1)
            # Stable, so that of equally similar texts those of earlier blocks come first.
            best, order = torch.cat([best, values], dim=-1).sort(
                dim=-1, descending=True, stable=True
            )
            places = torch.cat([places, columns + start], dim=-1).gather(-1, order)[:, :count]
            best = best[:, :count]
        # What is not similar enough comes last anyway: the band's lower end can wait till here.
        return torch.where(best >= low, places, -1)


def attach_foils(
    config: FoilsConfig, texts: Sequence[str], dataset: FeatureDataset, store: FeatureStore
) -> FeatureDataset:
    """The dataset with foils for every sample whose answer is known.

    A sample's foils are the texts of the bank nearest to its answer, within the band, that are
    none of its candidates. Neighbours are found once and kept in the folder of the text table.

    Args:
        texts: of the bank; all in the dataset's text table.

    Raises:
        StoreError: the neighbours cannot be written.
    """
    table = dataset.tables["text"]
    rows = table.index([media.text_key(text) for text in texts])
    bank = FoilBank(config, texts, table.streams["pooled"], rows)
    # Samples that differ in media only have the same foils.
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    place = []
    for sample in dataset.samples:
        own = tuple(sorted({bank.place(c) for c in sample.candidates} - {-1}))
        # Without an answer there is nothing to be a foil of.
        answer = "" if sample.answer is None else sample.candidates[sample.answer]
        place.append(kinds.setdefault((answer, own), len(kinds)))
    answers = sorted({answer for answer, _ in kinds if answer})
    # Spares, so that enough are left without the candidates; the answer is left out anyway.
    spares = max((len(own) for _, own in kinds), default=0)
    width = min(config.count + spares, len(bank))
    digest = _digest(config, bank, answers, width, store.fingerprint(["text"]))
    neighbours = read_or_make(
        store.directory("text"), digest, lambda: _neighbours(bank, answers, dataset, width)
    )
    line = {answer: number for number, answer in enumerate(answers)}
    found = _without_candidates(neighbours, [(line.get(a, -1), own) for a, own in kinds], config)
    foil_rows = torch.where(found >= 0, rows[found.clamp(min=0)], -1).int()
    foils = FoilTable(foil_rows, torch.tensor(place, dtype=torch.int64), digest)
    mean = float((foil_rows[foils.place] >= 0).sum(dim=-1).double().mean())
    log.info("foils: %d texts, %d answers, %.1f foils a sample", len(bank), len(answers), mean)
    if mean == 0:
        log.warning(
            "foils: no sample has any, since no text in [%g, %g] of its answer is not among its "
            "candidates; objective.foils.weight has no effect",
            config.min_similarity, config.max_similarity,
        )  # fmt: skip
    return replace(dataset, foils=foils)


def _neighbours(
    bank: FoilBank, answers: Sequence[str], dataset: FeatureDataset, width: int
) -> torch.Tensor:
    """Places int64 [answers, width] of every answer's nearest texts in the band."""
    table = dataset.tables["text"]
    rows = table.index([media.text_key(answer) for answer in answers])
    found = [torch.zeros(0, width, dtype=torch.int64)]
    for start in range(0, len(answers), _QUERY_BLOCK):
        part = slice(start, start + _QUERY_BLOCK)
        features, _ = table.streams["pooled"].gather(rows[part])
        found.append(bank.search(features, answers[part], width))
    return torch.cat(found)


def _without_candidates(
    neighbours: torch.Tensor, kinds: Sequence[tuple[int, tuple[int, ...]]], config: FoilsConfig
) -> torch.Tensor:
    """The first `count` neighbours that are no candidates: places [kinds, count], -1 for none.

    Args:
        neighbours: places [answers, width].
        kinds: an answer's line, -1 for none, and the places of all candidates.
    """
    found = torch.full((len(kinds), config.count), -1)
    longest = max((len(own) for _, own in kinds), default=0)
    if not longest or not neighbours.numel():
        return found
    # By the block: comparing takes width x candidates bytes a line.
    block = max(2**24 // (neighbours.shape[1] * longest), 1)
    for start in range(0, len(kinds), block):
        part = kinds[start : start + block]
        own = torch.tensor([[*own, *[-1] * (longest - len(own))] for _, own in part])
        lines = torch.tensor([line for line, _ in part])
        near = neighbours[lines.clamp(min=0)].long()
        taken = (near < 0) | (lines < 0)[:, None] | (near[..., None] == own[:, None]).any(dim=-1)
        # A stable sort keeps the order of those that are left.
        taken, order = taken.int().sort(dim=-1, stable=True)
        left = torch.where(taken == 0, near.gather(-1, order), -1)[:, : config.count]
        found[start : start + block, : left.shape[1]] = left
    return found


def _digest(
    config: FoilsConfig, bank: FoilBank, answers: Sequence[str], width: int, features: str
) -> str:
    """A sha256 in hex over everything that neighbours depend on."""
    band = [config.min_similarity, config.max_similarity, config.count, width]
    described = json.dumps([features, band, bank.texts, list(answers)])
    return hashlib.sha256(described.encode()).hexdigest()
