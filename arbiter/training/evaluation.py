"""Held-out figures: accuracy beside the baselines that give it meaning."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from arbiter.calibration.metrics import summarize
from arbiter.sample import Sample


class MajorityBaseline:
    """Answers from the training answers' frequencies, blind to all media.

    A question seen in training gets its most frequent answer there, any other the most frequent
    answer overall; ties, and candidates never seen as an answer, go to the earlier candidate.
    """

    def __init__(self, train: Sequence[Sample]):
        self._overall: Counter[str] = Counter()
        self._by_question: dict[str, Counter[str]] = defaultdict(Counter)
        for sample in train:
            if sample.answer is not None:
                answer = sample.candidates[sample.answer]
                self._overall[answer] += 1
                self._by_question[sample.question][answer] += 1

    def predict(self, sample: Sample) -> int:
        """The index of the candidate it chooses."""
        for counts in (self._by_question.get(sample.question, Counter()), self._overall):
            frequencies = [counts[candidate] for candidate in sample.candidates]
            if max(frequencies) > 0:
                return int(np.argmax(frequencies))
        return 0


def evaluate_by_source(
    samples: Sequence[Sample],
    probabilities: np.ndarray,
    blind_probabilities: np.ndarray,
    majority: MajorityBaseline,
) -> dict[str, dict]:
    """Figures of each source, and within it of each question type.

    Args:
        samples: N samples with known answers.
        probabilities: float64 [N, K], of the deployed path.
        blind_probabilities: the same with all media left out.
        majority: the frequency baseline.

    Returns:
        source -> n, accuracy, accuracy_interval (95%, Wilson), nll (nats), ece,
        question_only_accuracy, majority_accuracy, random_accuracy, and question_types with the same
        for each type that the source knows.
    """
    answer = np.array([sample.answer for sample in samples])
    blind = blind_probabilities.argmax(axis=-1) == answer
    by_majority = np.array([majority.predict(s) == s.answer for s in samples])
    by_chance = np.array([1 / len(sample.candidates) for sample in samples])

    def figures(rows: np.ndarray) -> dict:
        return {
            **summarize(probabilities[rows], answer[rows]),
            "question_only_accuracy": float(blind[rows].mean()),
            "majority_accuracy": float(by_majority[rows].mean()),
            "random_accuracy": float(by_chance[rows].mean()),
        }

    sources = np.array([sample.source for sample in samples])
    types = np.array([str(sample.meta.get("question_type", "")) for sample in samples])
    report = {}
    for source in dict.fromkeys(sources.tolist()):
        here = sources == source
        report[source] = figures(here)
        named = sorted(set(types[here].tolist()) - {""})
        if named:
            report[source]["question_types"] = {
                name: figures(here & (types == name)) for name in named
            }
    return report


def table(report: dict[str, dict]) -> list[str]:
    """The report as lines of text, for a terminal."""
    columns = ("accuracy", "question_only_accuracy", "majority_accuracy", "random_accuracy")
    head = ("n", "accuracy", "95% interval", "question only", "majority", "random", "nll", "ece")
    lines = [f"{'test':<20}" + "".join(f"{name:>15}" for name in head)]

    def line(name: str, part: dict) -> str:
        accuracy, *baselines = (f"{part[c]:.2%}" for c in columns)
        low, high = part["accuracy_interval"]
        cells = (
            part["n"], accuracy, f"{low:.2%}-{high:.2%}", *baselines,
            f"{part['nll']:.4f}", f"{part['ece']:.4f}",
        )  # fmt: skip
        return f"{name:<20}" + "".join(f"{cell:>15}" for cell in cells)

    for source, part in report.items():
        lines.append(line(source, part))
        lines += [line(f"  {name}", p) for name, p in part.get("question_types", {}).items()]
    return lines
