"""How the segmenter does on the way: components of the validation split, asked for as in use, at every save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from transformers import Sam3TrackerModel

from training.compact.prompts import jittered
from training.curation.oracle import Trajectory, oracle_click
from training.curation.paper import RevisionSettings
from training.curation.sources.problems import Problems
from training.segmenter.examples import Component, Examples, components_on
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.domain.trace import Click
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.recipes import recipe_grey
from xflow_core.segmenters.protocol import Prompt, PromptableSegmenter
from xflow_core.segmenters.sam3 import Sam3Segmenter

_SHOWN = 6  # trajectories in a picture
_TILE = 256
# Red, green, blue.
_TRUTH, _MASK, _BOX = (255, 220, 0), (0, 160, 255), (255, 60, 60)
_CLICK = {"positive": (0, 255, 0), "negative": (255, 0, 0)}


@dataclass(frozen=True, eq=False)
class Checked:
    """A component, the picture that it is on (uint8 ``[H, W]``), and what was answered."""

    grey: np.ndarray
    component: Component
    trajectory: Trajectory


class Checks:
    """The same components with the same boxes each time.

    Args:
        count: how many. seed: of the jitter.
    """

    def __init__(self, examples: Examples, revision: RevisionSettings, recipe: str, count: int, seed: int) -> None:
        self._examples, self._revision, self._recipe = examples, revision, recipe
        self._count, self._seed = count, seed
        self.shown: list[Checked] = []
        """The first of the last run."""

    @property
    def turns(self) -> int:
        """The box's, and the clicks'."""
        return self._revision.clicks + 1

    def run(self, tracker: Sam3TrackerModel) -> np.ndarray:
        """The mean IoU after the box and after each click, ``[1 + clicks]``."""
        found = list(self._checked(Sam3Segmenter(tracker, self._recipe)))
        ious = [padded(each.trajectory.ious, self.turns) for each in found]
        self.shown = found[:_SHOWN]
        return np.mean(ious, axis=0) if ious else np.zeros(self.turns)

    def _checked(self, segmenter: Sam3Segmenter) -> Iterator[Checked]:
        done = 0
        for number, marked in enumerate(self._examples.marked):
            if done >= self._count:
                return
            image = self._examples.read(number)
            there = components_on(marked, image.radiograph.size, self._examples.sources, Problems())
            for place, component in enumerate(there[: self._count - done]):
                rng = np.random.default_rng((self._seed, number, place))
                trajectory = clicked(segmenter, image, component.mask, self._revision, rng)
                yield Checked(recipe_grey(image, self._recipe), component, trajectory)
            done += len(there)


def clicked(
    segmenter: PromptableSegmenter,
    image: EncodedRadiograph,
    truth: np.ndarray,
    revision: RevisionSettings,
    rng: np.random.Generator,
) -> Trajectory:
    """A component's jittered box, then the oracle's clicks, whatever they lead to.

    Args:
        truth: bool ``[H, W]``, not empty.
    """
    true_box = Box.around(truth)
    if true_box is None:
        raise ValueError("a component has pixels")
    box = jittered(true_box, revision.jitter, rng)
    (current,) = segmenter.segment(image, [Prompt(box)])
    masks, clicks = [current.mask], list[Click]()
    while len(clicks) < revision.clicks:
        click = oracle_click(current.mask, truth, clicks, revision.guard_px)
        if click is None:
            break
        clicks.append(click)
        (current,) = segmenter.segment(image, [Prompt(box, tuple(clicks), current)])
        masks.append(current.mask)
    return Trajectory(box, tuple(masks), tuple(clicks), tuple(mask_iou(mask, truth) for mask in masks))


def padded(values: Sequence[float], length: int) -> list[float]:
    """With the last value repeated: where no click is left to make, the mask stays."""
    return [*values, *[values[-1]] * (length - len(values))]


def sheet(checked: Sequence[Checked], turns: int) -> np.ndarray:
    """A line a component: truth (yellow), box (red), mask (blue) and the next click, from turn to turn.

    Returns:
        uint8 ``[H, W, 3]``.
    """
    lines = []
    for each in checked:
        made = each.trajectory
        tiles = [_tile(each, turn) for turn in range(len(made.masks))]
        lines.append(np.hstack([*tiles, *[np.zeros_like(tiles[0])] * (turns - len(tiles))]))
    return np.vstack(lines)


def _tile(checked: Checked, turn: int) -> np.ndarray:
    made, grey = checked.trajectory, checked.grey
    scale = _TILE / max(grey.shape)
    width, height = round(grey.shape[1] * scale), round(grey.shape[0] * scale)
    small = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    tile = np.zeros((_TILE, _TILE, 3), np.uint8)
    tile[:height, :width] = small[..., None]
    _outline(tile, checked.component.mask, (width, height), _TRUTH)
    _outline(tile, made.masks[turn], (width, height), _MASK)
    box = made.box
    first, last = (round(box.x1 * width), round(box.y1 * height)), (round(box.x2 * width), round(box.y2 * height))
    cv2.rectangle(tile, first, last, _BOX, 1)
    if turn < len(made.clicks):
        click = made.clicks[turn]
        at = (round(click.point.x * width), round(click.point.y * height))
        cv2.circle(tile, at, 4, _CLICK[click.polarity], -1, cv2.LINE_AA)
    words = f"{', '.join(checked.component.findings)} {made.ious[turn]:.2f}"
    cv2.putText(tile, words, (4, _TILE - 6), cv2.FONT_HERSHEY_SIMPLEX, 0.4, _TRUTH, 1, cv2.LINE_AA)
    return tile


def _outline(tile: np.ndarray, mask: np.ndarray, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    small = cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST)
    found, _ = cv2.findContours(small, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(tile, found, -1, colour, 1)
