"""What a believable pair of lungs looks like: the rule by which the network's own lungs are taken for training."""

from __future__ import annotations

import numpy as np
from scipy import ndimage
from skimage.morphology import convex_hull_image


def plausible_lungs(shares: np.ndarray) -> np.ndarray | None:
    """Both lungs of maps ``[2, S, S]`` (right, left; probabilities), bool of that shape; None when they look like none.

    A pair is plausible when on each side the largest piece above 0.5 holds 93 % of that side's area, covers 5-30 % of
    the picture, fills four fifths of its convex hull, and has its centre on its own side.
    """
    lungs = np.zeros(shares.shape, bool)
    for side in (0, 1):
        mask = shares[side] > 0.5
        if not mask.any():
            return None
        labels, _ = ndimage.label(mask)
        sizes = np.bincount(labels.ravel())[1:]
        piece = labels == int(sizes.argmax()) + 1
        centre = float(np.nonzero(piece)[1].mean()) / piece.shape[1]
        own_side = centre < 0.52 if side == 0 else centre > 0.48
        if not own_side or not 0.05 < piece.mean() < 0.3 or sizes.max() <= 0.93 * sizes.sum():
            return None
        hull = convex_hull_image(piece)  # type: ignore[no-untyped-call]
        if piece.sum() <= 0.8 * hull.sum():
            return None
        lungs[side] = ndimage.binary_fill_holes(piece)
    return lungs
