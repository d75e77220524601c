"""Naming samples by what they hold, so that random numbers can be addressed by it."""

from __future__ import annotations

import hashlib

from arbiter.features.dataset import FeatureDataset


def sample_digests(dataset: FeatureDataset) -> list[bytes]:
    """A sha256 for each sample over its question, context, candidates and media.

    The order of the candidates does not matter, nor where a content came from; a sample has the
    same digest in every dataset that holds it.
    """
    keys = {
        kind: {row: key for key, row in table.rows.items()}
        for kind, table in dataset.tables.items()
    }
    text, image, audio = (keys.get(kind, {}) for kind in ("text", "image", "audio"))
    sounds = dataset.media_audio.tolist()
    media = [
        b"images%d" % len(images)
        + b"".join(image[row] for row in images)
        + b"frames%d" % len(frames)
        + b"".join(image[row] for row in frames)
        + (b"" if sound < 0 else b"audio" + audio[sound])
        for images, frames, sound in zip(
            dataset.media_images.lists(), dataset.media_frames.lists(), sounds, strict=True
        )
    ]
    return [
        hashlib.sha256(
            text[question]
            + (b"" if context < 0 else b"context" + text[context])
            + b"candidates%d" % len(candidates)
            + b"".join(sorted(text[row] for row in candidates))
            + media[place]
        ).digest()
        for question, context, candidates, place in zip(
            dataset.question.tolist(),
            dataset.context.tolist(),
            dataset.candidates.lists(),
            dataset.media.tolist(),
            strict=True,
        )
    ]


def dataset_digest(dataset: FeatureDataset) -> str:
    """A sha256 in hex over samples, candidates and answers, all in their order.

    What is learned from a dataset depends on nothing else in it, the features aside.
    """
    text = {row: key for key, row in dataset.tables["text"].rows.items()}
    digest = hashlib.sha256(dataset.answer.numpy().tobytes())
    for name, candidates in zip(sample_digests(dataset), dataset.candidates.lists(), strict=True):
        digest.update(name + b"".join(text[row] for row in candidates))
    return digest.hexdigest()
