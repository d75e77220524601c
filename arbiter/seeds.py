"""One seed, from which every random stream is derived by name.

A stream is addressed, never advanced: the numbers used at step 800 depend on (seed, names, 800)
alone, so a resumed run needs no saved generator state.
"""

import hashlib

import numpy as np


def derive_seed(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream called `names`, independent of every other name."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> np.random.Generator:
    """A numpy generator for the stream called `names`."""
    return np.random.default_rng(derive_seed(seed, *names))


def hash_fraction(seed: int, name: str) -> float:
    """A number in [0, 1) that depends on (seed, name) only: stable when other names come or go."""
    return derive_seed(seed, "fraction", name) / 2**63
