"""Sums over an interval of training, which survive a stop."""

from __future__ import annotations

from collections import defaultdict


class Totals:
    """Loss terms, right answers and time of an interval's steps.

    `seconds` is the steps' own wall-clock time: validation and saving lie between steps.
    """

    def __init__(self, saved: dict | None = None):
        saved = saved or {}
        self.terms: dict[str, float] = defaultdict(float, saved.get("terms", {}))
        self.steps: int = saved.get("steps", 0)
        self.skipped: int = saved.get("skipped", 0)
        self.questions: int = saved.get("questions", 0)
        self.correct: int = saved.get("correct", 0)
        self.wait_seconds: float = saved.get("wait_seconds", 0.0)
        self.seconds: float = saved.get("seconds", 0.0)

    def add(self, terms: dict[str, float], questions: int, correct: int, waited: float) -> None:
        """Add one micro-batch."""
        for name, value in terms.items():
            self.terms[name] += value
        self.questions += questions
        self.correct += correct
        self.wait_seconds += waited

    def add_step(self, step: Totals, taken: bool = True) -> None:
        """Add the sums of one optimizer step; of one that was not taken, the time alone."""
        if taken:
            self.add(step.terms, step.questions, step.correct, step.wait_seconds)
            self.steps += 1
        else:
            # Its terms may be NaN, which would spoil every later mean, and no state can hold it.
            self.add(dict.fromkeys(step.terms, 0.0), 0, 0, step.wait_seconds)
            self.skipped += 1
        self.seconds += step.seconds

    def mean(self, term: str) -> float | None:
        """The mean of a loss term over the steps taken; None if it was never computed."""
        return self.terms[term] / self.steps if term in self.terms and self.steps else None

    @property
    def samples_per_sec(self) -> float:
        """Questions per second."""
        return self.questions / max(self.seconds, 1e-9)

    @property
    def wait_share(self) -> float:
        """Share of the time in which no batch was ready."""
        return self.wait_seconds / max(self.seconds, 1e-9)

    @property
    def accuracy(self) -> float | None:
        """Share of training questions answered rightly, as they were trained on; None of none."""
        return self.correct / self.questions if self.questions else None

    def to_dict(self) -> dict:
        """As JSON, for a resume state."""
        return {
            "terms": dict(self.terms),
            "steps": self.steps,
            "skipped": self.skipped,
            "questions": self.questions,
            "correct": self.correct,
            "wait_seconds": self.wait_seconds,
            "seconds": self.seconds,
        }
