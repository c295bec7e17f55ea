"""The oracle of interactive segmentation, and Algorithm 1 of the paper (A.3): from perturbed boxes to trajectories.

The oracle looks at two regions, what the mask misses and what it has too much of, and clicks the deepest point of the
larger one: the pixel whose distance to the nearest pixel outside the region is greatest. Nothing outside the image
belongs to a region. Masks are bool ``[H, W]`` in the radiograph's frame, one true component at a time. Trajectories are
built with it, and ``evaluate-prompts`` measures with it.

Components of one radiograph are revised side by side, so that the segmenter is asked once a turn for all of them. What
one gives hangs on nothing of the others.
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

GUARD_PX = 25
"""How far clicks of one polarity stay apart (A.3), in the frame of :data:`FRAME` pixels."""

FRAME = 1024
"""The frame in which the paper counts the guard's pixels (F_seg's input, A.4)."""

# Prompts that go to the segmenter together: each has a mask of the radiograph's size, 8 MB on a large one.
_AT_ONCE = 64


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


def oracle_click(
    mask: np.ndarray, truth: np.ndarray, clicks: Sequence[Click], guard_px: float = GUARD_PX
) -> Click | None:
    """The click that best repairs the mask; None where nothing is wrong, or no place keeps the guard.

    A positive click where the missed region is at least as large as the other, a negative one otherwise; where the
    guard leaves no place in that region, the other one is taken. Of equally deep points, the first by rows.

    Args:
        clicks: the earlier ones. guard_px: how far clicks of one polarity stay apart, on a 1024-pixel frame.
    """
    size = (truth.shape[0], truth.shape[1])
    guard = guard_px * max(size) / FRAME
    errors = {"positive": truth & ~mask, "negative": mask & ~truth}
    for polarity in sorted(errors, key=lambda polarity: np.count_nonzero(errors[polarity]), reverse=True):
        near = [click.point.pixel(size) for click in clicks if click.polarity == polarity]
        deepest = _deepest(errors[polarity], near, guard)
        if deepest is not None:
            return Click(polarity, Point.of_pixel(*deepest, size))
    return None


def _deepest(region: np.ndarray, near: Sequence[tuple[int, int]], guard: float) -> tuple[int, int] | None:
    """``(row, column)`` of the deepest pixel that is ``guard`` pixels away from all of ``near``."""
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    if not rows.size:
        return None
    # Everything around the region's own window is outside of it, so the window's depths are the whole image's.
    top, left = int(rows[0]), int(columns[0])
    depth = depths(region[top : rows[-1] + 1, left : columns[-1] + 1])
    down, across = np.ogrid[top : top + depth.shape[0], left : left + depth.shape[1]]
    for row, column in near:
        depth[(down - row) ** 2 + (across - column) ** 2 < guard**2] = 0
    if not depth.max() > 0:
        return None
    row, column = np.unravel_index(int(depth.argmax()), depth.shape)
    return top + int(row), left + int(column)


def starts(
    segmenter: PromptableSegmenter,
    image: EncodedRadiograph,
    truths: Sequence[np.ndarray],
    jitter: float,
    rngs: Sequence[np.random.Generator],
) -> list[tuple[Box, Prediction]]:
    """Starting states: each true component's box, perturbed, and the mask that it gives.

    Args:
        truths: bool ``[H, W]``, not empty. rngs: one for each.

    Raises:
        EngineError: the segmenter failed.
    """
    boxes = []
    for truth, rng in zip(truths, rngs, strict=True):
        true_box = Box.around(truth)
        if true_box is None:
            raise ValueError("a component has pixels")
        boxes.append(jittered(true_box, jitter, rng))
    return list(zip(boxes, _segment(segmenter, image, [Prompt(box) for box in boxes]), strict=True))


def revise(
    segmenter: PromptableSegmenter,
    image: EncodedRadiograph,
    truths: Sequence[np.ndarray],
    settings: RevisionSettings,
    rngs: Sequence[np.random.Generator],
) -> list[Trajectory | None]:
    """The trajectories of true components on one radiograph, up to the last click that is worth showing
    (``settings.least_gain``); for one that clicks without improving its mask None, or the mask that it begins with and
    no click (``settings.left_alone``).

    The segmenter is asked once for all boxes, and once a turn for all that are not finished.

    Args:
        truths: bool ``[H, W]``, not empty. rngs: one for each.

    Raises:
        EngineError: the segmenter failed.
    """
    begun = starts(segmenter, image, truths, settings.jitter, rngs)
    current = [prediction for _, prediction in begun]
    masks = [[prediction.mask] for prediction in current]
    clicks: list[list[Click]] = [[] for _ in truths]
    for _ in range(settings.clicks):
        asked = []
        # One that had no place to click has none later either: its mask stays the same.
        for number, truth in enumerate(truths):
            click = oracle_click(current[number].mask, truth, clicks[number], settings.guard_px)
            if click is not None:
                clicks[number].append(click)
                asked.append(number)
        prompts = [Prompt(begun[number][0], tuple(clicks[number]), current[number]) for number in asked]
        for number, prediction in zip(asked, _segment(segmenter, image, prompts), strict=True):
            current[number] = prediction
            masks[number].append(prediction.mask)
    made: list[Trajectory | None] = []
    for (box, _), truth, held, clicked, rng in zip(begun, truths, masks, clicks, rngs, strict=True):
        ious = tuple(mask_iou(mask, truth) for mask in held)
        end = _worth(ious, settings.least_gain)
        if not clicked or (end and ious[end] > ious[0]):
            made.append(Trajectory(box, tuple(held[: end + 1]), tuple(clicked[:end]), ious[: end + 1]))
        else:
            shown = rng.random() < settings.left_alone
            made.append(Trajectory(box, (held[0],), (), ious[:1]) if shown else None)
    return made


def _worth(ious: Sequence[float], least_gain: float) -> int:
    """Up to which click a trajectory is worth showing (``settings.least_gain``)."""
    best = max(ious)
    return len(ious) - 1 if not least_gain else next(end for end, iou in enumerate(ious) if best - iou < least_gain)


def _segment(segmenter: PromptableSegmenter, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
    found: list[Prediction] = []
    for first in range(0, len(prompts), _AT_ONCE):
        found += segmenter.segment(image, prompts[first : first + _AT_ONCE])
    return found
