import runpy
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[2] / "docs"


def test_the_gallery_shows_the_scenes_as_they_are_generated():
    drawn = runpy.run_path(str(DOCS / "robotics_gallery.py"))["gallery"]()
    with Image.open(DOCS / "robotics.png") as shown:
        assert shown.convert("RGB").tobytes() == drawn.tobytes()


def test_the_page_states_the_right_action_of_every_scene_shown():
    from arbiter.datasets.robotics import make_scene
    from arbiter.datasets.robotics_scene import right_action

    page = (DOCS / "robotics.md").read_text()
    scenes = [make_scene(0, number) for number in range(200)]
    for sound in ("no alarm", "beeps", "siren"):
        six = [s for s in scenes if s.sound == sound][:6]
        words = [right_action(s).replace("move ", "").split()[0] for s in six]
        cells = " | ".join(f"{s.target}: {w}" for s, w in zip(six, words, strict=True))
        assert f"| {sound} | {cells} |" in page
