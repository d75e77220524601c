"""Looking at media once, when data is loaded: is it whole, and have its pixels been seen before?"""

from __future__ import annotations

import hashlib
from pathlib import Path

from arbiter.errors import MediaError
from arbiter.media import audio_key, image_key, load_image
from arbiter.sample import ImageRef, Sample


class MediaCheck:
    """Decodes every medium of a sample and names its content.

    Nothing cheaper finds a picture that breaks off in the middle. Each distinct reference is
    decoded once, and only its key is kept.
    """

    def __init__(self) -> None:
        self._known: dict[object, tuple[bytes, bool] | MediaError] = {}

    def keys(self, sample: Sample) -> frozenset[bytes]:
        """The content keys of everything in a sample that marks its group.

        A video frame of one plain colour marks nothing: fades to black link no clips.

        Raises:
            MediaError: something in it cannot be decoded.
        """
        found = {self._image(image)[0] for image in sample.images}
        for frame in sample.video:
            key, plain = self._image(frame)
            if not plain:
                found.add(key)
        if sample.audio is not None:
            found.add(audio_key(sample.audio))
        return frozenset(found)

    def _image(self, ref: ImageRef) -> tuple[bytes, bool]:
        """The key of an image, and whether it is of one colour."""
        if isinstance(ref, bytes):
            name: object = hashlib.sha256(ref).digest()
        elif isinstance(ref, (str, Path)):
            name = str(ref)
        else:
            return _look(ref)  # already decoded, so nothing is saved by remembering it
        if name not in self._known:
            try:
                self._known[name] = _look(ref)
            except MediaError as error:
                self._known[name] = error
        known = self._known[name]
        if isinstance(known, MediaError):
            raise known
        return known


def _look(ref: ImageRef) -> tuple[bytes, bool]:
    image = load_image(ref)
    return image_key(image), all(low == high for low, high in image.getextrema())
