"""The square picture that the compact networks look at; training and run time share it."""

from __future__ import annotations

import numpy as np
from PIL import Image


def to_square(grey: np.ndarray, side: int) -> np.ndarray:
    """The whole picture stretched to a square.

    Both axes keep their normalised coordinates, so a box in the square is a box in the source. Shrinking averages over
    the pixels that it merges (Pillow's triangle filter), so fine detail does not alias.

    Args:
        grey: ``[H, W]``, uint8, or float in [0, 1].
        side: pixels of the square's side.

    Returns:
        float32 ``[side, side]`` in [0, 1].
    """
    scale = 255.0 if grey.dtype == np.uint8 else 1.0
    picture = Image.fromarray(np.asarray(grey, np.float32))
    square = np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR), np.float32)
    return np.clip(square / scale, 0.0, 1.0)
