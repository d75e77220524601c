import io
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from arbiter.datasets.robotics import Robotics, RoboticsConfig, make_scene
from arbiter.datasets.robotics_scene import ACTIONS, COLOURS, Scene, render, right_action
from arbiter.encoders.raw import hash_text

SCENES = [make_scene(0, number) for number in range(2100)]


@pytest.fixture(scope="module")
def samples():
    return Robotics(RoboticsConfig(num_scenes=2100)).load(0).parts["all"]


def scene(sound="no alarm", target="red", gripper=(3, 3), **changes):
    blocks = {"red": (3, 6), "blue": (6, 3)}
    return Scene(gripper, True, (2, 3), blocks, target, sound, **changes)


@pytest.mark.parametrize(
    ("given", "action"),
    [
        (scene(), "move right"),
        (scene(target="blue"), "move down"),
        (scene(gripper=(3, 7)), "move left"),
        (scene(target="blue", gripper=(7, 3)), "move up"),
        (scene(gripper=(3, 6)), "close the gripper"),
        (replace(scene(gripper=(3, 6)), is_open=False), "open the gripper"),
        (scene("beeps"), "move down"),
        (replace(scene("beeps"), obstacle=(3, 4)), "move left"),
        (scene("siren"), "stop"),
        (scene("siren", gripper=(3, 6)), "stop"),
    ],
)
def test_the_rule(given, action):
    assert right_action(given) == action


def test_scenes_are_legal():
    for one in SCENES:
        row, column = one.gripper
        beside = abs(one.obstacle[0] - row) + abs(one.obstacle[1] - column)
        assert beside == 1
        cells = [one.obstacle, *one.blocks.values()]
        assert len(set(cells)) == 3 and one.gripper != one.obstacle
        assert all(0 <= value < 8 for cell in [*cells, one.gripper] for value in cell)
        assert one.target in one.blocks and len(one.blocks) == 2


def test_every_action_is_equally_frequent_for_every_colour(samples):
    assert set(Counter(s.answer for s in samples).values()) == {300}
    for colour in COLOURS:
        answers = Counter(s.answer for s in samples if f" {colour} " in s.question)
        assert all(60 < n < 140 for n in answers.values())


def test_what_the_picture_shows_does_not_depend_on_the_sound():
    facts = defaultdict(Counter)
    for one in SCENES:
        at_block = one.blocks[one.target] == one.gripper
        step = (one.obstacle[0] - one.gripper[0], one.obstacle[1] - one.gripper[1])
        for fact in (("at block", at_block), ("open", one.is_open), ("obstacle", step)):
            facts[fact][one.sound] += 1
    totals = Counter(one.sound for one in SCENES)
    for fact, counts in facts.items():
        shares = [counts[sound] / totals[sound] for sound in totals]
        assert max(shares) - min(shares) < 0.1, fact


def logistic_regression(features, labels, test_features):
    """Multinomial, by full-batch LBFGS with a little weight decay."""
    weights = torch.zeros(features.shape[1] + 1, len(ACTIONS), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100)
    padded = torch.cat([features, torch.ones(len(features), 1)], dim=1)

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(padded @ weights, labels)
        value = value + 1e-3 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    ones = torch.ones(len(test_features), 1)
    return (torch.cat([test_features, ones], dim=1) @ weights).argmax(dim=1)


def split_accuracy(features, labels):
    """Accuracy on the last third of a model of the first two."""
    features, labels = torch.tensor(np.asarray(features, np.float32)), torch.tensor(labels)
    cut = len(labels) * 2 // 3
    guessed = logistic_regression(features[:cut], labels[:cut], features[cut:])
    return (guessed == labels[cut:]).float().mean().item()


def test_the_question_alone_is_within_three_points_of_chance(samples):
    labels = [s.answer for s in samples]
    questions = [hash_text(s.question, 256) for s in samples]
    assert abs(split_accuracy(questions, labels) - 1 / 7) < 0.03
    # The same regression finds the answer where the question does tell it.
    telling = [hash_text(f"{s.question} {'xyzuvwk'[s.answer] * 3}", 256) for s in samples]
    assert split_accuracy(telling, labels) > 0.9


def facts(one):
    """All that a perfect eye gets from the picture and the instruction, in a rule's terms."""
    goal = one.blocks[one.target]
    towards = (np.sign(goal[0] - one.gripper[0]), np.sign(goal[1] - one.gripper[1]))
    obstacle = (one.obstacle[0] - one.gripper[0], one.obstacle[1] - one.gripper[1])
    return (*towards, *obstacle, one.is_open)


def best_accuracy(keys):
    """What a table of the most frequent answer to each key reaches."""
    answers = defaultdict(Counter)
    for key, one in zip(keys, SCENES, strict=True):
        answers[key][right_action(one)] += 1
    return sum(c.most_common()[0][1] for c in answers.values()) / len(SCENES)


def test_neither_picture_nor_sound_suffices_and_both_together_do():
    assert best_accuracy([facts(one) for one in SCENES]) < 0.65
    assert best_accuracy([one.sound for one in SCENES]) < 0.40
    assert best_accuracy([(facts(one), one.sound) for one in SCENES]) == 1.0


def test_the_same_picture_has_another_answer_under_another_sound():
    for one in SCENES[:200]:
        actions = {right_action(replace(one, sound=s)) for s in ("no alarm", "beeps", "siren")}
        assert len(actions) == 3


def test_the_picture_shows_every_fact():
    for one in SCENES[:100]:
        shown = render(one)
        assert shown.size == (128, 128)
        pixels = np.asarray(shown)
        for colour, (row, column) in one.blocks.items():
            patch = pixels[row * 16 + 4 : row * 16 + 16, column * 16 : column * 16 + 16]
            assert (patch == COLOURS[colour]).all(axis=-1).any()
        assert shown.tobytes() != render(replace(one, is_open=not one.is_open)).tobytes()


def test_alarms_can_be_told_apart_by_their_spectrum(samples):
    spectra = [np.abs(np.fft.rfft(s.audio)) for s in samples[:420]]
    bands = [[np.log(part.sum() + 1e-3) for part in np.array_split(s[:1000], 40)] for s in spectra]
    sounds = [("no alarm", "beeps", "siren").index(s.meta["question_type"]) for s in samples[:420]]
    assert split_accuracy(bands, sounds) > 0.95


def test_samples_carry_what_an_encoder_needs(samples):
    first = samples[0]
    assert first.candidates == ACTIONS
    assert first.audio.dtype == np.float32 and first.audio.shape == (8000,)
    assert np.abs(first.audio).max() <= 1
    assert Image.open(io.BytesIO(first.images[0])).tobytes() == render(SCENES[0]).tobytes()
    assert first.candidates[first.answer] == right_action(SCENES[0])


def test_a_scene_depends_on_its_number_and_the_seed_only():
    def load(seed=0, **options):
        return Robotics(RoboticsConfig(**options)).load(seed).parts["all"]

    few, more = load(num_scenes=20), load(num_scenes=50)
    assert [s.images for s in few] == [s.images for s in more[:20]]
    assert all((a.audio == b.audio).all() for a, b in zip(few, more, strict=False))
    assert [s.images for s in load(seed=1, num_scenes=20)] != [s.images for s in few]
    assert len(load(max_samples=150)) == 150
