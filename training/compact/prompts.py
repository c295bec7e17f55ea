"""What the promptable segmenter and the revision policy are trained and measured on: components, regions, clicks.

A component is an 8-connected piece of one finding's contour (paper, section 3.2). It is asked for by its box, jittered,
and then by clicks at the deepest point of the larger error (section 4.2), which is what a patient annotator would do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch
from torch import Tensor

from training.compact.pack import Pack
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click
from xflow_core.policies.compact_revision import GUARD
from xflow_core.segmenters.compact_region import MASK_SIDE, SIDE, Region, Turn, look, prompt_channels

cv2.setNumThreads(0)

MAIN = ("consolidation", "effusion", "atelectasis", "cardiomegaly")
AUXILIARY = ("fibrosis", "pleural_thickening", "nodule_mass")

SMALLEST = 4e-4
"""Share of the image under which a piece is the rounding of a contour, not a component."""

_HELD_OUT = 12  # Per cent of the train patients on whom thresholds are set; no network learns from them.


@dataclass(frozen=True, eq=False)
class Component:
    """One piece of one finding on one image; ``mask`` is bool ``[S, S]`` in the pack's square."""

    image: int
    finding: str
    patient: str
    mask: np.ndarray
    box: Box

    @property
    def size(self) -> tuple[int, int]:
        return self.mask.shape[0], self.mask.shape[1]


def held_out(patient: str) -> bool:
    """Whether a train patient is kept for setting thresholds."""
    return int(hashlib.sha256(f"held out {patient}".encode()).hexdigest(), 16) % 100 < _HELD_OUT


def components(pack: Pack, split: str, findings: Sequence[str]) -> list[Component]:
    """The components of a part of the pack.

    split: "dev", or one of the two parts of train: "learn" and "held".
    """
    found = []
    for index in pack.where("dev" if split == "dev" else "train"):
        record = pack.records[index]
        if split != "dev" and held_out(record.patient) != (split == "held"):
            continue
        for finding in findings:
            mask = pack.mask(index, finding)
            if not mask.any():
                continue
            count, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
            for label in range(1, count):
                if stats[label, cv2.CC_STAT_AREA] < SMALLEST * mask.size:
                    continue
                piece = labels == label
                box = Box.around(piece)
                assert box is not None
                found.append(Component(index, finding, record.patient, piece, box))
    return found


def jittered(box: Box, share: float, rng: np.random.Generator) -> Box:
    """Each coordinate moved by U(-share, share) times the box's side, inside the image."""
    moves = rng.uniform(-share, share, 4) * np.array([box.width, box.height, box.width, box.height])
    x1, y1, x2, y2 = np.clip(np.array([box.x1, box.y1, box.x2, box.y2]) + moves, 0.0, 1.0)
    return Box(float(x1), float(y1), float(x2), float(y2)) if x1 < x2 and y1 < y2 else box


@dataclass(frozen=True, eq=False)
class Case:
    """A component asked for: what the network sees, and the truth.

    theta: ``[2, 3]``, region to image. grey: ``[SIDE, SIDE]``. truth: share of the component per pixel,
    ``[MASK_SIDE, MASK_SIDE]``. box: None when only clicks are given. previous: bool ``[MASK_SIDE * 4] * 2``, the mask
    before the next answer, binary as the trace keeps it. guard: least distance of clicks, in mask pixels.
    """

    component: Component
    theta: Tensor
    grey: Tensor
    truth: np.ndarray
    box: Box | None
    guard: float
    clicks: tuple[Turn, ...] = ()
    previous: np.ndarray | None = None

    @property
    def true(self) -> np.ndarray:
        return self.truth > 0.5

    @property
    def mask(self) -> np.ndarray:
        """The previous mask at the network's resolution, bool ``[MASK_SIDE, MASK_SIDE]``; empty before any."""
        return np.zeros((MASK_SIDE, MASK_SIDE), bool) if self.previous is None else shrunk(self.previous) > 0.5

    def answered(self, probability: np.ndarray) -> Case:
        """After the network's answer ``[MASK_SIDE, MASK_SIDE]``."""
        return replace(self, previous=binary(probability))

    def clicked(self, row: float, column: float, positive: bool) -> Case:
        """With one more click, at the centre of a mask pixel."""
        x, y = self.to_image(row, column)
        return replace(self, clicks=(*self.clicks, (x, y, positive)))

    def to_image(self, row: float, column: float) -> tuple[float, float]:
        """Mask pixel to normalised image coordinates."""
        at = torch.tensor([column + 0.5, row + 0.5], dtype=torch.float32) / MASK_SIDE * 2 - 1
        x, y = ((self.theta[:, :2] @ at + self.theta[:, 2]) + 1) / 2
        return float(x), float(y)

    def from_image(self, x: float, y: float) -> tuple[float, float]:
        """Normalised image coordinates to ``(row, column)`` of the mask."""
        at = torch.tensor([x, y], dtype=torch.float32) * 2 - 1 - self.theta[:, 2]
        column, row = (torch.linalg.inv(self.theta[:, :2]) @ at + 1) / 2 * MASK_SIDE - 0.5
        return float(row), float(column)


def binary(probability: np.ndarray) -> np.ndarray:
    """A probability map cut at 0.5 between its pixels, as pasting into the source does: four times the side."""
    side = probability.shape[0] * 4
    return cv2.resize(probability.astype(np.float32), (side, side), interpolation=cv2.INTER_LINEAR) > 0.5


def shrunk(previous: np.ndarray, side: int = MASK_SIDE) -> np.ndarray:
    return cv2.resize(previous.astype(np.float32), (side, side), interpolation=cv2.INTER_AREA)


def case_of(
    picture: Tensor,
    component: Component,
    box: Box,
    rng: np.random.Generator | None = None,
) -> Case:
    """A component in its region.

    Args:
        picture: float ``[1, 1, S, S]``, the component's image.
        box: the box it is asked for with.
        rng: for training: turns, mirrors, shifts and changes of grey. None gives the region of run time.
    """
    region = Region.around(box, (), None, component.size)
    theta = region.theta()
    if rng is not None:
        zoom = math.exp(rng.uniform(math.log(0.87), math.log(1.25)))
        angle = math.radians(rng.uniform(-12, 12))
        turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]) * zoom
        if rng.random() < 0.5:
            turn = turn @ torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
        shift = torch.tensor(rng.uniform(-0.08, 0.08, 2), dtype=torch.float32)
        theta = torch.cat([theta[:, :2] @ turn, (theta[:, 2] + theta[:, :2] @ shift)[:, None]], dim=1)
    side = math.sqrt(abs(float(torch.linalg.det(theta[:, :2]))))
    grey = look(picture, theta[None])[0, 0]
    if rng is not None:
        grey = torch.from_numpy(other_grey(grey.numpy(), rng))
    mask = torch.from_numpy(component.mask.astype(np.float32))[None, None]
    truth = look(mask, theta[None], MASK_SIDE, 4)[0, 0].numpy()
    return Case(component, theta, grey, truth, box, GUARD / side * MASK_SIDE)


def other_grey(grey: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same region by another machine: gamma, contrast, blur or sharpening, noise, slow shading."""
    grey = grey.astype(np.float32)
    if rng.random() < 0.8:
        grey = np.clip(grey, 1e-4, 1) ** math.exp(rng.uniform(-0.55, 0.55))
    if rng.random() < 0.7:
        mean = grey.mean()
        grey = (grey - mean) * rng.uniform(0.65, 1.4) + mean + rng.uniform(-0.12, 0.12)
    if rng.random() < 0.25:
        smooth = cv2.GaussianBlur(grey, (0, 0), rng.uniform(0.5, 1.4))
        grey = smooth if rng.random() < 0.6 else grey + (grey - smooth)
    if rng.random() < 0.2:
        side = int(grey.shape[0] * rng.uniform(0.4, 0.8))
        small = cv2.resize(grey, (side, side), interpolation=cv2.INTER_AREA)
        grey = cv2.resize(small, grey.shape[::-1], interpolation=cv2.INTER_LINEAR)
    if rng.random() < 0.3:
        grey = grey + rng.standard_normal(grey.shape).astype(np.float32) * rng.uniform(0.005, 0.03)
    if rng.random() < 0.25:
        slow = rng.standard_normal((3, 3)).astype(np.float32)
        grey = grey + cv2.resize(slow, grey.shape[::-1], interpolation=cv2.INTER_CUBIC) * 0.05
    return np.clip(grey, 0, 1).astype(np.float32)


def batch_of(cases: Sequence[Case]) -> tuple[Tensor, Tensor]:
    """The network's two inputs for some cases."""
    previous = np.stack(
        [np.zeros((SIDE, SIDE), np.float32) if c.previous is None else shrunk(c.previous, SIDE) for c in cases]
    )
    boxes = [None if c.box is None else (c.box.x1, c.box.y1, c.box.x2, c.box.y2) for c in cases]
    theta = torch.stack([c.theta for c in cases])
    prompt = prompt_channels(theta, boxes, [c.clicks for c in cases], torch.from_numpy(previous))
    return torch.stack([c.grey for c in cases])[:, None], prompt


def deepest(
    error: np.ndarray, clicks: Sequence[tuple[float, float]], guard: float, rng: np.random.Generator | None = None
) -> tuple[tuple[int, int] | None, int]:
    """The deepest point of the largest piece of ``error`` that keeps the guard, and the piece's area.

    Args:
        error: bool ``[S, S]``.
        clicks: ``(row, column)`` of the earlier clicks of the same polarity.
        rng: any point of the piece instead of the deepest, as a hand might click.
    """
    _, labels, stats, _ = cv2.connectedComponentsWithStats(error.astype(np.uint8), connectivity=8)
    rows, columns = np.ogrid[: error.shape[0], : error.shape[1]]
    for label in (np.argsort(-stats[1:, cv2.CC_STAT_AREA], kind="stable") + 1)[:3]:
        piece = np.pad(labels == label, 1).astype(np.uint8)
        depth = cv2.distanceTransform(piece, cv2.DIST_L2, 5)[1:-1, 1:-1].copy()
        for row, column in clicks:
            depth[(rows - row) ** 2 + (columns - column) ** 2 < guard**2] = 0
        if depth.max() > 0:
            if rng is not None:
                depth = (depth > 0) * rng.random(depth.shape)
            row, column = np.unravel_index(int(depth.argmax()), depth.shape)
            return (int(row), int(column)), int(stats[label, cv2.CC_STAT_AREA])
    return None, 0


def with_oracle_click(case: Case, rng: np.random.Generator | None = None) -> Case | None:
    """The case with the click that a person who knows the truth would make; None when nothing is left to correct.

    It is not the oracle of the paper (:mod:`training.curation.oracle`), with which masks are measured, and on purpose:
    it lives in the network's window, not in the radiograph; it goes to the largest single piece of the error, which is
    what a person sees first, and is sometimes careless. So the networks learn from other clicks than they are measured
    with.

    rng: one click in four falls anywhere in the error, not at its deepest point.
    """
    careless = rng if rng is not None and rng.random() < 0.25 else None
    mask, true = case.mask, case.true
    places = {}
    for positive, error in ((True, true & ~mask), (False, mask & ~true)):
        earlier = [case.from_image(x, y) for x, y, p in case.clicks if p == positive]
        places[positive] = deepest(error, earlier, case.guard, careless)
    positive = places[True][1] >= places[False][1]
    place, _ = places[positive]
    return None if place is None else case.clicked(*place, positive)


def damaged(truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A mask as a person or another model might have left it: grown, shrunk, moved, bitten, with strangers."""
    side = truth.shape[0]
    mask = (truth > 0.5).astype(np.uint8)
    reach = int(rng.integers(1, 9))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach))
    mask = (cv2.dilate if rng.random() < 0.5 else cv2.erode)(mask, kernel)
    move = np.array([[1, 0, rng.uniform(-6, 6)], [0, 1, rng.uniform(-6, 6)]], np.float32)
    mask = cv2.warpAffine(mask, move, (side, side))
    for _ in range(int(rng.integers(0, 3))):
        centre = (int(rng.integers(15, side - 15)), int(rng.integers(15, side - 15)))
        axes = (int(rng.integers(4, 16)), int(rng.integers(4, 16)))
        cv2.ellipse(mask, centre, axes, 0, 0, 360, int(rng.random() < 0.5), -1)
    return binary(cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 1.5))


def click_of(turn: Turn) -> Click:
    """A click as the domain has it."""
    x, y, positive = turn
    return Click("positive" if positive else "negative", Point(min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)))
