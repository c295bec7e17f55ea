"""From lung masks to lungs: pieces, holes, the midline."""

from __future__ import annotations

import numpy as np
from scipy import ndimage


def largest_piece(mask: np.ndarray) -> np.ndarray:
    """The largest 4-connected piece of a bool mask, its holes filled; all false for an empty mask."""
    labels, count = ndimage.label(mask)
    if count == 0:
        return np.zeros(mask.shape, bool)
    sizes = np.bincount(labels.ravel())[1:]
    return np.asarray(ndimage.binary_fill_holes(labels == int(sizes.argmax()) + 1), bool)


def midline(right: np.ndarray, left: np.ndarray) -> int:
    """The column between two lung masks ``[S, S]``; the middle one where a lung is missing or they make no sense."""
    side = right.shape[1]
    right_columns, left_columns = np.flatnonzero(right.any(0)), np.flatnonzero(left.any(0))
    if right_columns.size and left_columns.size:
        between = (int(right_columns[-1]) + 1 + int(left_columns[0])) // 2
        if 0.3 * side < between < 0.7 * side:
            return between
    return side // 2
