"""Algorithm 1 of the paper (A.3): from a perturbed box to a trajectory of masks and oracle clicks.

The oracle looks at two regions, what the mask misses and what it has too much of, and clicks the deepest point of the
larger one: the pixel whose distance to the nearest pixel outside the region is greatest. Nothing outside the image
belongs to a region. Masks are bool ``[H, W]`` in the radiograph's frame, one true component at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from training.compact.prompts import jittered
from training.curation.paper import RevisionSettings
from xflow_core.domain.geometry import Box, Point, mask_iou
from xflow_core.domain.trace import Click
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.segmenters.protocol import Prediction, Prompt, PromptableSegmenter

# The frame in which the paper counts the guard's pixels (F_seg's input, A.4).
_FRAME = 1024


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One component's revision. masks: one more than clicks; ``ious`` of each with the truth."""

    box: Box
    masks: tuple[np.ndarray, ...]
    clicks: tuple[Click, ...]
    ious: tuple[float, ...]


def depths(region: np.ndarray) -> np.ndarray:
    """Every pixel's distance to the nearest pixel outside the region, float32 ``[H, W]``; 0 outside it."""
    padded = np.pad(region, 1).astype(np.uint8)
    return cv2.distanceTransform(padded, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]


def oracle_click(mask: np.ndarray, truth: np.ndarray, clicks: Sequence[Click], guard_px: float) -> Click | None:
    """The click that best repairs the mask; None where nothing is wrong, or no place keeps the guard.

    A positive click where the missed region is at least as large as the other, a negative one otherwise; where the
    guard leaves no place in that region, the other one is taken. Of equally deep points, the first by rows.

    Args:
        clicks: the earlier ones. guard_px: how far clicks of one polarity stay apart, on a 1024-pixel frame.
    """
    size = (truth.shape[0], truth.shape[1])
    guard = guard_px * max(size) / _FRAME
    errors = {"positive": truth & ~mask, "negative": mask & ~truth}
    order = sorted(errors, key=lambda polarity: np.count_nonzero(errors[polarity]), reverse=True)
    rows, columns = np.ogrid[: size[0], : size[1]]
    for polarity in order:
        depth = depths(errors[polarity])
        for click in clicks:
            if click.polarity == polarity:
                row, column = click.point.pixel(size)
                depth[(rows - row) ** 2 + (columns - column) ** 2 < guard**2] = 0
        if depth.max() > 0:
            deepest = np.unravel_index(int(depth.argmax()), size)
            return Click(polarity, Point.of_pixel(int(deepest[0]), int(deepest[1]), size))
    return None


def start(
    segmenter: PromptableSegmenter, image: EncodedRadiograph, truth: np.ndarray, jitter: float, rng: np.random.Generator
) -> tuple[Box, Prediction]:
    """A starting state: the true component's box, perturbed, and the mask that it gives.

    Args:
        truth: bool ``[H, W]``, not empty.
    """
    true_box = Box.around(truth)
    if true_box is None:
        raise ValueError("a component has pixels")
    box = jittered(true_box, jitter, rng)
    (prediction,) = segmenter.segment(image, [Prompt(box)])
    return box, prediction


def revise(
    segmenter: PromptableSegmenter,
    image: EncodedRadiograph,
    truth: np.ndarray,
    settings: RevisionSettings,
    rng: np.random.Generator,
) -> Trajectory | None:
    """The trajectory of one true component; None where it clicked without improving its mask.

    Args:
        truth: bool ``[H, W]``, not empty.

    Raises:
        EngineError: the segmenter failed.
    """
    box, current = start(segmenter, image, truth, settings.jitter, rng)
    masks: list[np.ndarray] = [current.mask]
    clicks: list[Click] = []
    while len(clicks) < settings.clicks:
        click = oracle_click(current.mask, truth, clicks, settings.guard_px)
        if click is None:
            break
        clicks.append(click)
        previous: Prediction = current
        (current,) = segmenter.segment(image, [Prompt(box, tuple(clicks), previous)])
        masks.append(current.mask)
    ious = tuple(mask_iou(mask, truth) for mask in masks)
    if clicks and ious[-1] <= ious[0]:
        return None
    return Trajectory(box, tuple(masks), tuple(clicks), ious)
