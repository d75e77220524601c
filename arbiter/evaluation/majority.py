"""The blind baseline: what the frequencies of training answers reach."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from arbiter.sample import Sample


class MajorityBaseline:
    """Answers from the training answers' frequencies, blind to all media.

    A question seen in training gets its most frequent answer there, any other the most frequent
    answer overall; ties, and candidates never seen as an answer, go to the earlier candidate.
    """

    def __init__(self, train: Iterable[Sample]):
        self._by_question: dict[str, Counter[str]] = defaultdict(Counter)
        for sample in train:
            if sample.answer is not None:
                self._by_question[sample.question][sample.candidates[sample.answer]] += 1
        self._overall = sum(self._by_question.values(), Counter())

    @classmethod
    def from_dict(cls, counts: Mapping[str, Mapping[str, int]]) -> MajorityBaseline:
        """What `to_dict` gave: how often each question had each answer."""
        baseline = cls(())
        baseline._by_question.update((q, Counter(answers)) for q, answers in counts.items())
        baseline._overall = sum(baseline._by_question.values(), Counter())
        return baseline

    def to_dict(self) -> dict[str, dict[str, int]]:
        """As JSON."""
        return {question: dict(answers) for question, answers in self._by_question.items()}

    def predict(self, sample: Sample) -> int:
        """The index of the candidate it chooses."""
        for counts in (self._by_question.get(sample.question, Counter()), self._overall):
            frequencies = [counts[candidate] for candidate in sample.candidates]
            if max(frequencies) > 0:
                return int(np.argmax(frequencies))
        return 0
