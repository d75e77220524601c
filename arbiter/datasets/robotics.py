"""Robotics: generated scenes whose right action depends on the picture and on the sound.

Nothing is downloaded. All actions are equally frequent whatever the question says, so whoever reads
only the question is at chance.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from arbiter.config import option
from arbiter.datasets.base import ALL, LoadedSource, SourceConfig
from arbiter.datasets.robotics_scene import (
    ACTIONS,
    Scene,
    draw_scene,
    render,
    right_action,
    synthesize,
)
from arbiter.sample import Sample
from arbiter.seeds import generator

_INSTRUCTIONS = (
    "The task is to fetch the {target} block. What should the robot do next?",
    "Fetch the {target} block: which action comes next?",
    "The gripper is to pick up the {target} block or set it down. Which action is right now?",
)


@dataclass
class RoboticsConfig(SourceConfig):
    """Options of the robotics source."""

    _target_: str = field(
        default="arbiter.datasets.robotics.Robotics", metadata={"help": "The source's class."}
    )
    num_scenes: int = option(
        2800, help="Scenes to generate, where max_samples asks for no fewer.", low=7
    )


class Robotics:
    """The robotics source."""

    name = "robotics"

    def __init__(self, config: RoboticsConfig):
        self.config = config

    def load(self, seed: int) -> LoadedSource:
        """Scenes under 'all'. Scene number n depends on (seed, n) only."""
        count = min(self.config.num_scenes, self.config.max_samples or self.config.num_scenes)
        return LoadedSource({ALL: [make_sample(seed, number) for number in range(count)]})


def make_scene(seed: int, number: int) -> Scene:
    """Scene `number`. Each run of seven numbers has every action once, in random order."""
    block, place = divmod(number, len(ACTIONS))
    order = generator(seed, Robotics.name, "actions", block).permutation(len(ACTIONS))
    return draw_scene(ACTIONS[order[place]], generator(seed, Robotics.name, "scene", number))


def make_sample(seed: int, number: int) -> Sample:
    """The decision problem of scene `number`; its picture is PNG."""
    scene = make_scene(seed, number)
    rng = generator(seed, Robotics.name, "presentation", number)
    instruction = _INSTRUCTIONS[rng.integers(len(_INSTRUCTIONS))]
    encoded = io.BytesIO()
    render(scene).save(encoded, "PNG")
    return Sample(
        question=instruction.format(target=scene.target),
        candidates=ACTIONS,
        answer=ACTIONS.index(right_action(scene)),
        images=(encoded.getvalue(),),
        audio=synthesize(scene.sound, rng),
        source=Robotics.name,
        group=str(number),
        id=str(number),
        meta={"question_type": scene.sound},
    )
