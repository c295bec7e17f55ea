"""Lesions drawn into lungs that hold none, since contours are few (nodules, atelectasis) or missing (edema, pneumonia).

A lesion moves the lung's grey a part of the way to that of soft tissue, as fluid in the lung does, so vessels fade
under it. Shapes are rough on purpose: they teach where a finding may lie and what brightening means, not its texture.
"""

from __future__ import annotations

import cv2
import numpy as np

_SHARES = {"consolidation": 0.3, "effusion": 0.1, "nodule_mass": 0.25, "edema": 0.2, "atelectasis": 0.15}


def draw_lesion(
    picture: np.ndarray, lungs: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """One kind of lesion drawn into a picture.

    Args:
        picture: uint8 ``[S, S]``, bones bright.
        lungs: bool ``[2, S, S]``, right and left.

    Returns:
        The picture, and the drawn pixels by finding, bool ``[S, S]``. A drawn consolidation is also a pneumonia.
    """
    kind = str(rng.choice(list(_SHARES), p=list(_SHARES.values())))
    if kind == "edema":
        density = np.maximum(_edema(lungs[0], False, rng), _edema(lungs[1], True, rng)) * rng.uniform(0.25, 0.6)
        level = 0.12
    else:
        both = rng.random() < 0.3
        first = int(rng.integers(2))
        sides = (0, 1) if both else (first,)
        draw = {
            "consolidation": _consolidation,
            "effusion": _effusion,
            "nodule_mass": _nodules,
            "atelectasis": _plates,
        }[kind]
        density = np.max([draw(lungs[side], side == 1, rng) for side in sides], axis=0)
        density *= rng.uniform(0.7, 0.95) if kind == "effusion" else rng.uniform(0.35, 0.85)
        level = 0.4 * float(density.max())
    body = picture[~lungs.any(0) & (picture > 20)]
    tissue = float(np.percentile(body, rng.uniform(60, 90))) if body.size else 200.0
    seen = picture.astype(np.float32)
    made = seen + density * np.maximum(tissue - seen, 0)
    where = density > max(level, 1e-3)
    if kind == "consolidation":
        return np.rint(made).astype(np.uint8), {"consolidation": where, "pneumonia": where}
    return np.rint(made).astype(np.uint8), {kind: where}


def _cloud(side: int, grain: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth noise in about [0, 1]; ``grain`` patches across."""
    return cv2.resize(rng.random((grain, grain), np.float32), (side, side), interpolation=cv2.INTER_CUBIC)


def _frame(lung: np.ndarray) -> tuple[int, int, int, int]:
    """Top, bottom, left, right."""
    rows, columns = np.flatnonzero(lung.any(1)), np.flatnonzero(lung.any(0))
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def _soft(lung: np.ndarray, sigma: float = 2.0) -> np.ndarray:
    return cv2.GaussianBlur(lung.astype(np.float32), (0, 0), sigma)


def _consolidation(lung: np.ndarray, left: bool, rng: np.random.Generator) -> np.ndarray:
    side = lung.shape[0]
    top, bottom, _, _ = _frame(lung)
    rows, columns = np.nonzero(lung)
    density = np.zeros(lung.shape, np.float32)
    y, x = np.mgrid[:side, :side].astype(np.float32)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(rows.size))
        reach = (bottom - top) * rng.uniform(0.08, 0.32)
        stretch = np.exp(rng.uniform(-0.4, 0.4))
        angle = rng.uniform(0, np.pi)
        dx, dy = x - columns[at], y - rows[at]
        along, across = dx * np.cos(angle) + dy * np.sin(angle), dy * np.cos(angle) - dx * np.sin(angle)
        far = (along / (reach * stretch)) ** 2 + (across * stretch / reach) ** 2
        patch = np.exp(-far) * (0.5 + 1.0 * _cloud(side, int(rng.integers(10, 40)), rng))
        density = np.maximum(density, np.clip((patch - 0.3) / 0.4, 0, 1))
    return density * _soft(lung)


def _edema(lung: np.ndarray, left: bool, rng: np.random.Generator) -> np.ndarray:
    """Haze that thins out from the hilum."""
    side = lung.shape[0]
    top, bottom, start, end = _frame(lung)
    height = bottom - top
    centre = (top + height * rng.uniform(0.45, 0.7), start + 5 if left else end - 5)
    y, x = np.mgrid[:side, :side].astype(np.float32)
    far = ((y - centre[0]) / (height * rng.uniform(0.35, 0.6))) ** 2
    far += ((x - centre[1]) / ((end - start) * rng.uniform(0.5, 1.0))) ** 2
    grain = 0.6 + 0.8 * _cloud(side, int(rng.integers(12, 50)), rng)
    return np.clip(np.exp(-far) * grain, 0, 1) * _soft(lung)


def _effusion(lung: np.ndarray, left: bool, rng: np.random.Generator) -> np.ndarray:
    """Fluid that fills the lung from below, its surface rising to the side."""
    side = lung.shape[0]
    top, bottom, start, end = _frame(lung)
    height, width = bottom - top, end - start
    depth = height * rng.uniform(0.06, 0.25) if rng.random() < 0.6 else height * rng.uniform(0.25, 0.7)
    rise = depth * rng.uniform(0.2, 1.0)
    outward = (np.arange(side) - start) / width
    outward = np.clip(outward if left else 1 - outward, 0, 1)
    surface = bottom - depth - rise * outward**2 + height * 0.05 * (_cloud(side, 6, rng)[0] - 0.5)
    reach = cv2.dilate(lung.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    filled = reach & (np.arange(side)[:, None] > surface[None, :])
    return _soft(filled, rng.uniform(1.5, 4.0))


def _nodules(lung: np.ndarray, left: bool, rng: np.random.Generator) -> np.ndarray:
    side = lung.shape[0]
    rows, columns = np.nonzero(lung)
    y, x = np.mgrid[:side, :side].astype(np.float32)
    density = np.zeros(lung.shape, np.float32)
    for _ in range(int(rng.choice([1, 1, 2, 3, 5, 8, 12]))):
        at = int(rng.integers(rows.size))
        reach = side * np.exp(rng.uniform(np.log(0.008), np.log(0.05)))
        far = np.hypot(x - columns[at], (y - rows[at]) * np.exp(rng.uniform(-0.2, 0.2)))
        density = np.maximum(density, np.clip((reach - far) / (0.35 * reach + 1) + 0.5, 0, 1) * rng.uniform(0.7, 1))
    return density * _soft(lung, 1.0)


def _plates(lung: np.ndarray, left: bool, rng: np.random.Generator) -> np.ndarray:
    """Bands in the lower half, as plate atelectasis leaves, or a dense wedge at the base."""
    top, bottom, start, end = _frame(lung)
    height, width = bottom - top, end - start
    drawn = np.zeros(lung.shape, np.float32)
    for _ in range(int(rng.integers(1, 4))):
        row = top + height * rng.uniform(0.5, 0.95)
        column = start + width * rng.uniform(0.2, 0.8)
        length, tilt = width * rng.uniform(0.2, 0.5), rng.uniform(-0.6, 0.6)
        dx, dy = length * np.cos(tilt), length * np.sin(tilt)
        ends = ((round(column - dx), round(row - dy)), (round(column + dx), round(row + dy)))
        cv2.line(drawn, *ends, 1.0, int(rng.integers(3, 14)))
    return _soft(drawn > 0, rng.uniform(1.0, 2.5)) * _soft(lung, 1.0)
