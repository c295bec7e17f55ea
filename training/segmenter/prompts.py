"""What a component is asked with in training: a box or points first, then the clicks of Algorithm 1's oracle.

All in the domain's words (:class:`Prompt`, :class:`Click`), so that SAM3's inputs come from xflow_core's own functions.
"""

from __future__ import annotations

import numpy as np

from training.compact.prompts import jittered
from training.curation.oracle import oracle_click
from training.curation.paper import RevisionSettings
from training.segmenter.settings import FirstPrompts
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click
from xflow_core.segmenters.protocol import Prediction, Prompt

_AROUND = 0.2  # How far from a box, in shares of its side, a point outside the region may lie.


def first_prompt(truth: np.ndarray, shares: FirstPrompts, rng: np.random.Generator) -> Prompt:
    """Before any answer: the jittered box as the policies give it; at times with points, or a point alone.

    Args:
        truth: bool ``[H, W]``, not empty.
    """
    true_box = Box.around(truth)
    if true_box is None:
        raise ValueError("a component has pixels")
    kind = rng.random()
    if kind < shares.point:
        return Prompt(None, (random_click(truth, "positive", rng),))
    box = jittered(true_box, shares.jitter, rng)
    if kind < shares.point + shares.box_and_points:
        return Prompt(box, points_about(truth, box, rng))
    return Prompt(box)


def points_about(truth: np.ndarray, box: Box, rng: np.random.Generator) -> tuple[Click, ...]:
    """One to three points, each as likely inside the region as outside it in or near the box."""
    near = np.zeros_like(truth)
    height, width = truth.shape
    rows = slice(
        max(int((box.y1 - _AROUND * box.height) * height), 0), int((box.y2 + _AROUND * box.height) * height) + 1
    )
    columns = slice(
        max(int((box.x1 - _AROUND * box.width) * width), 0), int((box.x2 + _AROUND * box.width) * width) + 1
    )
    near[rows, columns] = True
    outside = near & ~truth
    points = []
    for _ in range(int(rng.integers(1, 4))):
        inside = rng.random() < 0.5 or not outside.any()
        points.append(random_click(truth, "positive", rng) if inside else random_click(outside, "negative", rng))
    return tuple(points)


def random_click(region: np.ndarray, polarity: str, rng: np.random.Generator) -> Click:
    """A click anywhere in a region, bool ``[H, W]``, not empty."""
    places = np.flatnonzero(region)
    row, column = divmod(int(places[rng.integers(len(places))]), region.shape[1])
    return Click(polarity, Point.of_pixel(row, column, (region.shape[0], region.shape[1])))


def next_prompt(
    prompt: Prompt,
    mask: np.ndarray,
    truth: np.ndarray,
    shares: FirstPrompts,
    revision: RevisionSettings,
    rng: np.random.Generator,
) -> Prompt | None:
    """With one more click on ``mask``, which is fed back; None where the oracle finds no place for one.

    Args:
        mask, truth: bool ``[H, W]``; the answer to ``prompt``, and what it should have been.
    """
    click = oracle_click(mask, truth, prompt.clicks, revision.guard_px)
    if click is None:
        return None
    if rng.random() < shares.careless:
        error = truth & ~mask if click.polarity == "positive" else mask & ~truth
        click = random_click(error, click.polarity, rng)
    return Prompt(prompt.box, (*prompt.clicks, click), Prediction(mask))
