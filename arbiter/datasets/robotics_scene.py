"""Robot scenes: what lies where, which alarm sounds, what the right action is, and how it looks.

A gripper on a grid of 8 x 8 cells shall fetch a block of a named colour. The rule (`right_action`):

    siren    stop
    beeps    back away from the obstacle beside the gripper
    no alarm move towards the named block; at it, close an open gripper or open a closed one

The sound says which rule holds and the picture what it means, so neither suffices alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from arbiter.sample import AUDIO_RATE_HZ

GRID = 8
CELL_PIXELS = 16
SOUND_SECONDS = 0.5

SOUNDS = ("no alarm", "beeps", "siren")
MOVES = {"move left": (0, -1), "move right": (0, 1), "move up": (-1, 0), "move down": (1, 0)}
ACTIONS = (*MOVES, "close the gripper", "open the gripper", "stop")
COLOURS = {"red": (208, 44, 44), "blue": (40, 84, 208), "yellow": (228, 188, 28)}

Cell = tuple[int, int]


@dataclass(frozen=True)
class Scene:
    """One situation. Cells are (row, column).

    Attributes:
        gripper: where the gripper is.
        is_open: whether its fingers are apart.
        obstacle: a cell beside the gripper.
        blocks: colour -> cell; the gripper may be at one of them.
        target: the colour that the instruction names.
        sound: one of `SOUNDS`.
    """

    gripper: Cell
    is_open: bool
    obstacle: Cell
    blocks: dict[str, Cell]
    target: str
    sound: str


def right_action(scene: Scene) -> str:
    """What to do, by the rule in the module's docstring."""
    if scene.sound == "siren":
        return "stop"
    if scene.sound == "beeps":
        return _direction(scene.obstacle, scene.gripper)
    goal = scene.blocks[scene.target]
    if goal == scene.gripper:
        return "close the gripper" if scene.is_open else "open the gripper"
    return _direction(scene.gripper, goal)


def _direction(start: Cell, end: Cell) -> str:
    """The move that leads straight from one cell towards another in its row or column."""
    step = tuple(int(np.sign(b - a)) for a, b in zip(start, end, strict=True))
    return next(name for name, move in MOVES.items() if move == step)


def draw_scene(action: str, rng: np.random.Generator) -> Scene:
    """A random scene in which `action` is right.

    With all actions equally frequent, what the picture shows does not depend on the sound: half of
    the grippers are at the named block, and where it lies and where the obstacle is are uniform.
    """
    if action == "stop":
        sound = "siren"
    elif action in MOVES:
        sound = SOUNDS[rng.integers(2)]
    else:
        sound = "no alarm"
    at_block = action not in MOVES if sound == "no alarm" else bool(rng.integers(2))
    is_open = bool(rng.integers(2))
    if sound == "no alarm" and at_block:
        is_open = action == "close the gripper"

    # Away from the target: at a right angle, so that approach and retreat are never the same move.
    if sound == "beeps":
        back = MOVES[action]
        to_obstacle = (-back[0], -back[1])
        to_block = _turned(to_obstacle, rng)
    else:
        to_block = MOVES[action] if sound == "no alarm" and not at_block else _any_direction(rng)
        to_obstacle = _turned(to_block, rng)

    gripper = (int(rng.integers(2, GRID - 2)), int(rng.integers(2, GRID - 2)))
    named, other = (str(c) for c in rng.choice(list(COLOURS), 2, replace=False))
    spare = [d for d in MOVES.values() if d not in (to_block, to_obstacle)]
    to_other = spare[rng.integers(len(spare))]
    blocks = {
        named: gripper if at_block else _along(gripper, to_block, rng),
        other: _along(gripper, to_other, rng),
    }
    obstacle = (gripper[0] + to_obstacle[0], gripper[1] + to_obstacle[1])
    return Scene(gripper, is_open, obstacle, blocks, named, sound)


def _any_direction(rng: np.random.Generator) -> Cell:
    return list(MOVES.values())[rng.integers(len(MOVES))]


def _turned(direction: Cell, rng: np.random.Generator) -> Cell:
    """A direction at a right angle."""
    sign = 1 if rng.integers(2) else -1
    return (direction[1] * sign, direction[0] * sign)


def _along(start: Cell, direction: Cell, rng: np.random.Generator) -> Cell:
    """A cell at least two steps from `start` in `direction`, inside the grid."""
    axis = 0 if direction[0] else 1
    room = GRID - 1 - start[axis] if direction[axis] > 0 else start[axis]
    steps = int(rng.integers(2, room + 1))
    return (start[0] + direction[0] * steps, start[1] + direction[1] * steps)


def render(scene: Scene) -> Image.Image:
    """The scene from above: RGB, `GRID` cells of `CELL_PIXELS` a side."""
    side = GRID * CELL_PIXELS
    image = Image.new("RGB", (side, side), (236, 236, 230))
    draw = ImageDraw.Draw(image)

    def box(cell: Cell, margin: int) -> tuple[int, int, int, int]:
        top, left = cell[0] * CELL_PIXELS, cell[1] * CELL_PIXELS
        last = CELL_PIXELS - 1 - margin
        return (left + margin, top + margin, left + last, top + last)

    for colour, cell in scene.blocks.items():
        draw.rectangle(box(cell, 1), fill=COLOURS[colour])
    left, top, right, bottom = box(scene.obstacle, 1)
    draw.polygon([(left, bottom), ((left + right) // 2, top), (right, bottom)], fill=(70, 70, 70))
    _draw_gripper(draw, box(scene.gripper, 0), scene.is_open)
    return image


def _draw_gripper(draw: ImageDraw.ImageDraw, box: tuple[int, ...], is_open: bool) -> None:
    """A palm with two fingers, apart or together, on whatever lies under them."""
    left, top, right, bottom = box
    black = (0, 0, 0)
    draw.rectangle((left, top, right, top + 3), fill=black)
    if is_open:
        draw.rectangle((left, top, left + 3, bottom), fill=black)
        draw.rectangle((right - 3, top, right, bottom), fill=black)
    else:
        middle = (left + right) // 2
        draw.rectangle((middle - 2, top, middle + 3, bottom), fill=black)


def synthesize(sound: str, rng: np.random.Generator) -> np.ndarray:
    """The sound of a scene: motor hum, with an alarm over it; float32 in [-1, 1] at 16 kHz.

    Pitch, phase and loudness vary a little from scene to scene, as does the noise.
    """
    seconds = np.arange(int(SOUND_SECONDS * AUDIO_RATE_HZ)) / AUDIO_RATE_HZ
    wave = 0.05 * np.sin(2 * np.pi * (110 * seconds + rng.random()))
    wave += 0.02 * rng.standard_normal(len(seconds))
    pitch, loudness, phase = rng.uniform(0.95, 1.05), rng.uniform(0.3, 0.5), rng.random()
    if sound == "beeps":
        gate = ((seconds * 8 + phase) % 1) < 0.5
        wave += loudness * gate * np.sin(2 * np.pi * 1000 * pitch * seconds)
    elif sound == "siren":
        sweep = 700 * seconds - 150 / (2 * np.pi * 4) * np.cos(2 * np.pi * (4 * seconds + phase))
        wave += loudness * np.sin(2 * np.pi * pitch * sweep)
    return np.clip(wave, -1, 1).astype(np.float32)
