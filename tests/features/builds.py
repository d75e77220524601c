"""Builds that are killed, or run side by side; a program of its own, as only processes can be.

python -m tests.features.builds kill <root> <seed>     builds that are killed until one ends
python -m tests.features.builds plain <root>           one build
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from arbiter.features import build
from arbiter.features.store import FeatureStore
from tests.features.helpers import CountingEncoder, picture

CONTENTS = 60
_BATCH_SECONDS = 0.02


class SlowEncoder(CountingEncoder):
    """Slow enough to be killed in the midst of anything."""

    def encode_image(self, images):
        time.sleep(_BATCH_SECONDS)
        return super().encode_image(images)


def run(root: Path) -> int:
    """One build; how many contents it encoded."""
    build._SHARD_BYTES = 1  # 16 contents a shard
    encoder = SlowEncoder()
    refs = [picture(number, size=32) for number in range(CONTENTS)]
    FeatureStore(root, encoder, batch_size=4).ensure("image", refs)
    return encoder.encoded["image"]


def run_killed(root: Path, rng: random.Random, longest_seconds: float) -> bool:
    """One build in a child that is killed after a random time; whether it ended before."""
    child = os.fork()
    if child == 0:
        run(root)
        os._exit(0)
    time.sleep(rng.uniform(0, longest_seconds))
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    """See the module's docstring."""
    root = Path(sys.argv[2])
    if sys.argv[1] == "plain":
        print(run(root))
        return
    rng = random.Random(sys.argv[3])
    started = time.monotonic()
    run(root.with_name("timing"))
    whole = time.monotonic() - started
    kills = 0
    # Short lives first, so that there are many; then longer ones, so that it ends.
    while not run_killed(root, rng, whole * min(1.2, 0.3 + kills / 20)):
        kills += 1
    print(kills)


if __name__ == "__main__":
    main()
