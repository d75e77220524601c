"""Draws docs/robotics.png: python docs/robotics_gallery.py [file]."""

import sys
from pathlib import Path

from PIL import Image, ImageDraw

from arbiter.datasets.robotics import make_scene
from arbiter.datasets.robotics_scene import SOUNDS, render

SEED, COLUMNS, GAP = 0, 6, 8


def gallery() -> Image.Image:
    """The first scenes of seed 0, a row for each sound."""
    scenes = [make_scene(SEED, number) for number in range(200)]
    rows = [[s for s in scenes if s.sound == sound][:COLUMNS] for sound in SOUNDS]
    cell = render(scenes[0]).width + GAP
    sheet = Image.new("RGB", (COLUMNS * cell + GAP, len(rows) * cell + GAP), "white")
    for r, row in enumerate(rows):
        for c, scene in enumerate(row):
            corner = (GAP + c * cell, GAP + r * cell)
            sheet.paste(render(scene), corner)
            end = (corner[0] + cell - GAP, corner[1] + cell - GAP)
            ImageDraw.Draw(sheet).rectangle((corner, end), outline=(150, 150, 150))
    return sheet


if __name__ == "__main__":
    default = Path(__file__).with_name("robotics.png")
    gallery().save(sys.argv[1] if sys.argv[1:] else default, optimize=True)
