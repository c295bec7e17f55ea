"""A lesion mask's components, and what of a mask belongs to a question's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage

from xflow_core.domain.findings import LUNGS, lung_of
from xflow_core.domain.geometry import Box
from xflow_core.workflow.session import Limits


def components_of(mask: np.ndarray) -> list[np.ndarray]:
    """The 8-connected pieces of a bool ``[H, W]`` mask that are no specks, largest first."""
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    areas = np.bincount(labels.ravel(), minlength=count + 1)[1:]
    least = Limits().speck_share * mask.size
    order = np.argsort(-areas, kind="stable")
    return [labels == number + 1 for number in order if areas[number] >= least]


def on_the_side(mask: np.ndarray, regions: Sequence[str], lungs: Mapping[str, Box]) -> np.ndarray:
    """The mask's pixels in the lungs that the regions lie in; all of it for the chest, the heart or both lungs.

    A pixel belongs to the lung on its side of the line halfway between the two boxes.
    """
    sides = {lung_of(region) for region in regions}
    if None in sides or len(sides) == 2:
        return mask
    middle = round((lungs[LUNGS[0]].x2 + lungs[LUNGS[1]].x1) / 2 * mask.shape[1])
    kept = np.zeros_like(mask)
    columns = slice(None, middle) if sides == {LUNGS[0]} else slice(middle, None)
    kept[:, columns] = mask[:, columns]
    return kept
