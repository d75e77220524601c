"""Looking at a large image several times, and joining neighbouring patches to wider ones."""

from __future__ import annotations

import numpy as np
from PIL import Image

VIEWS_OF_A_TILED_IMAGE = 5


def is_tiled(size: tuple[int, int], tile_from: int | None) -> bool:
    """Whether an image of this width and height is looked at in quadrants as well."""
    return tile_from is not None and max(size) >= tile_from and min(size) >= 2


def views(image: Image.Image, tile_from: int | None) -> list[Image.Image]:
    """The whole image and, if its longer side has at least `tile_from` pixels, its quadrants.

    The quadrants come row by row; with an odd side the right or lower ones are a pixel larger.

    Args:
        image: RGB.
        tile_from: in pixels; None never tiles.
    """
    if not is_tiled(image.size, tile_from):
        return [image]
    width, height = image.size
    x, y = width // 2, height // 2
    boxes = [(0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height)]
    return [image, *(image.crop(box) for box in boxes)]


def merge_patches(patches: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Join each 2 x 2 square of patches to one token: [V, rows * columns, D] -> [V, n / 4, 4 * D].

    A token holds its upper left, upper right, lower left and lower right patch, in that order.
    """
    count, _, dim = patches.shape
    squares = patches.reshape(count, rows // 2, 2, columns // 2, 2, dim)
    return squares.transpose(0, 1, 3, 2, 4, 5).reshape(count, -1, 4 * dim)


def patch_positions(counts: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The position (view, row, column) of every patch of a batch of images.

    Args:
        counts: views of each image, int64 [images].

    Returns:
        int16 [sum(counts) * rows * columns, 3]; view 0 is the whole image.
    """
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
    cells = grid.reshape(-1, 2)
    view = np.concatenate([np.arange(count) for count in counts])
    positions = np.empty((len(view), len(cells), 3), np.int16)
    positions[..., 0] = view[:, None]
    positions[..., 1:] = cells
    return positions.reshape(-1, 3)
