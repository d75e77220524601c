"""Arbiter: train, calibrate and run small multimodal decision models."""

from arbiter.decision import Decision
from arbiter.engine import Arbiter
from arbiter.errors import ArbiterError
from arbiter.sample import Sample

__version__ = "0.1.0"
__all__ = ["Arbiter", "ArbiterError", "Decision", "Sample"]
