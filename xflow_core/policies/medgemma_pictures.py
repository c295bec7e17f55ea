"""The pictures that MedGemma is shown: the radiograph padded to a square, and a mask laid over it.

Training draws with these functions, too. No torch is imported here.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from .transcript import SquareFrame

TINT = (255, 0, 0)
SHARE = 0.4
"""A mask's colour, and its share in the pixels that it covers. The paper shows masks laid over the radiograph without
their colour's numbers (A.3, Figure 5); these are XFlow's."""


def squared(grey: np.ndarray, side: int) -> np.ndarray:
    """The radiograph in the middle of a black square, at the model's size.

    Args:
        grey: uint8 ``[H, W]``, the source image frame. side: pixels of the square's side.

    Returns:
        uint8 ``[side, side, 3]``.
    """
    small = Image.fromarray(_padded(grey)).resize((side, side), Image.Resampling.BILINEAR)
    return np.repeat(np.asarray(small)[:, :, None], 3, axis=2)


def overlaid(square: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The squared radiograph with a mask laid over it in red.

    Args:
        square: uint8 ``[S, S, 3]`` of :func:`squared`. mask: bool ``[H, W]``, the source image frame.

    Returns:
        uint8 ``[S, S, 3]``.
    """
    side = square.shape[0]
    shrunk = Image.fromarray(_padded(mask.astype(np.uint8) * 255)).resize((side, side), Image.Resampling.BILINEAR)
    covered = np.asarray(shrunk) > 127
    picture = square.copy()
    mixed = (1 - SHARE) * square[covered] + SHARE * np.asarray(TINT, np.float64)
    picture[covered] = np.rint(mixed).astype(np.uint8)
    return picture


def _padded(array: np.ndarray) -> np.ndarray:
    height, width = array.shape
    frame = SquareFrame((height, width))
    left, top = frame.margins
    square = np.zeros((frame.side, frame.side), np.uint8)
    square[top : top + height, left : left + width] = array
    return square
