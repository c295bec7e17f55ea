"""What is wrong in a synthetic chest: which finding, in which zones, and how it looks there.

A lesion fills the zones that it names and stays inside them, so that its labels are known without drawing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import cv2
import numpy as np

from xflow_core.domain.findings import LUNGS

BANDS = ("upper", "mid", "base")
_ZONES = {"upper": "upper zone lung", "mid": "mid zone lung", "base": "lung base"}
# Densities from here on belong to the mask.
_SEEN = 0.3


@dataclass(frozen=True)
class Lesion:
    """A finding in neighbouring bands of one lung; ``heart`` with no band for cardiomegaly."""

    finding: str
    lung: str
    bands: tuple[str, ...]

    @property
    def regions(self) -> tuple[str, ...]:
        """The region names that it fills."""
        if self.lung == "heart":
            return ("heart",)
        return tuple(f"{self.lung.split()[0]} {_ZONES[band]}" for band in self.bands)


def make_lesions(random: Random, sick: bool) -> tuple[Lesion, ...]:
    """The lesions of one chest: none for a third of all chests, at least one where ``sick``."""
    chance = random.random
    if not sick and chance() < 0.33:
        return ()
    lesions: list[Lesion] = []
    while True:
        if chance() < 0.25:
            lesions.append(Lesion("cardiomegaly", "heart", ()))
        if chance() < 0.15:
            bands = BANDS if chance() < 0.3 else ("mid", "base")
            lesions += [Lesion("edema", lung, bands) for lung in LUNGS]
        if chance() < 0.3:
            for lung in _sides(random):
                depth = 1 if chance() < 0.7 else 2
                lesions.append(Lesion("effusion", lung, BANDS[3 - depth :]))
        for finding, share in (("consolidation", 0.16), ("pneumonia", 0.14), ("atelectasis", 0.22), ("opacity", 0.2)):
            if chance() < share:
                lesions += _focal(random, finding, lesions)
        if lesions or not sick:
            return tuple(lesions)


def _sides(random: Random) -> tuple[str, ...]:
    return LUNGS if random.random() < 0.25 else (random.choice(LUNGS),)


def _focal(random: Random, finding: str, others: Sequence[Lesion]) -> list[Lesion]:
    """One or two lesions that keep out of the bands that other focal lesions and effusions hold."""
    made = []
    for lung in _sides(random):
        held = {band for other in others if other.lung == lung and other.finding != "edema" for band in other.bands}
        choices: tuple[tuple[str, ...], ...] = (("base",), ("base",), ("mid",))
        if finding != "atelectasis":
            choices = (("upper",), ("mid",), ("base",), ("upper", "mid"), ("mid", "base"))
        free = [bands for bands in choices if not held & set(bands)]
        if free:
            made.append(Lesion(finding, lung, random.choice(free)))
    return made


def regions_by_finding(lesions: Sequence[Lesion]) -> dict[str, tuple[str, ...]]:
    """The regions of every present finding. A consolidation and a pneumonia are also an opacity."""
    found: dict[str, list[str]] = {}
    for lesion in lesions:
        names = [lesion.finding, "opacity"] if lesion.finding in ("consolidation", "pneumonia") else [lesion.finding]
        for name in names:
            held = found.setdefault(name, [])
            held += [region for region in lesion.regions if region not in held]
    return {finding: tuple(regions) for finding, regions in found.items()}


def cloud(shape: tuple[int, int], grain: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth noise in about [0, 1], float32 of ``shape``; ``grain`` patches across."""
    height, width = shape
    cells = rng.random((max(grain * height // width, 2), grain), np.float32)
    return cv2.resize(cells, (width, height), interpolation=cv2.INTER_CUBIC)


def density_of(lesion: Lesion, u: np.ndarray, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How much of the air a lesion has displaced, float32 ``[H, W]`` in [0, 1].

    Args:
        u: 0 on the lung's medial border, 1 on the lateral one.
        v: 0 at the apex, 1 at the costophrenic angle.
    """
    first, last = BANDS.index(lesion.bands[0]) / 3, (BANDS.index(lesion.bands[-1]) + 1) / 3
    drawn = _DRAWN[lesion.finding](u, v, first, last, rng)
    inside = (v >= first) & (v < (1.1 if last == 1 else last))
    return np.where(inside, np.clip(drawn, 0, 1), 0).astype(np.float32)


def mask_of(density: np.ndarray) -> np.ndarray:
    """The pixels that a reader would contour, bool ``[H, W]``."""
    return density >= _SEEN


def _window(v: np.ndarray, first: float, last: float, soft: float = 0.035) -> np.ndarray:
    """1 inside the bands, falling to 0 at their edges, where no edge of the lung does it."""
    window = np.ones_like(v)
    if first > 0:
        window = window * np.clip((v - first) / soft, 0, 1)
    if last < 1:
        window = window * np.clip((last - v) / soft, 0, 1)
    return window


def _patch(
    u: np.ndarray, v: np.ndarray, first: float, last: float, rng: np.random.Generator, rough: float
) -> np.ndarray:
    """A rounded area that fills most of the bands; positive inside, ragged by noise."""
    last = min(last, 0.93)
    centre, reach = (first + last) / 2, (last - first) * rng.uniform(0.48, 0.56)
    across, wide = rng.uniform(0.4, 0.65), rng.uniform(0.4, 0.55)
    inside = 1 - ((u - across) / wide) ** 2 - ((v - centre) / reach) ** 2
    return inside + rough * (cloud(u.shape, int(rng.integers(9, 16)), rng) - 0.5)


def _consolidation(u: np.ndarray, v: np.ndarray, first: float, last: float, rng: np.random.Generator) -> np.ndarray:
    area = _patch(u, v, first, last, rng, 1.2)
    dense = np.clip(area * 1.5 + 0.3, 0, 1) * rng.uniform(0.85, 0.95)
    # Air bronchograms: dark lines that run outwards through the dense area.
    slope, at = rng.uniform(0.15, 0.3), rng.uniform(0, 1)
    lines = np.abs(np.mod((v - slope * u) * 22 + at, 1) - 0.5) < 0.11
    return dense * (1 - 0.22 * lines * (area > 0.35)) * _window(v, first, last, 0.05)


def _pneumonia(u: np.ndarray, v: np.ndarray, first: float, last: float, rng: np.random.Generator) -> np.ndarray:
    dense = np.zeros_like(v)
    low, high = first + 0.05, min(last, 0.93) - 0.05
    for _ in range(int(rng.integers(4, 7))):
        reach = rng.uniform(0.08, 0.12)
        far = ((v - rng.uniform(low, high)) / reach) ** 2 + ((u - rng.uniform(0.25, 0.8)) / (reach * 2.3)) ** 2
        dense = np.maximum(dense, np.exp(-far))
    return np.clip(dense * (0.55 + 0.65 * cloud(u.shape, 22, rng)), 0, 0.85) * _window(v, first, last)


def _opacity(u: np.ndarray, v: np.ndarray, first: float, last: float, rng: np.random.Generator) -> np.ndarray:
    area = _patch(u, v, first, last, rng, 0.4)
    return np.clip(area * 1.4 + 0.25, 0, 1) * rng.uniform(0.5, 0.65) * _window(v, first, last)


def _atelectasis(u: np.ndarray, v: np.ndarray, first: float, last: float, rng: np.random.Generator) -> np.ndarray:
    dense = np.zeros_like(v)
    low, high = first + 0.07, min(last, 0.9) - 0.05
    for number in range(int(rng.integers(2, 4))):
        start = low + (high - low) * (number + rng.uniform(0.2, 0.8)) / 3
        tilt, bend = rng.uniform(-0.08, 0.08), rng.uniform(-0.05, 0.05)
        line = start + tilt * (u - 0.5) + bend * (u - 0.5) ** 2
        across = np.clip((0.38 - np.abs(u - rng.uniform(0.4, 0.6))) / 0.1, 0, 1)
        dense = np.maximum(dense, np.exp(-(((v - line) / rng.uniform(0.014, 0.022)) ** 4)) * across)
    return dense * rng.uniform(0.7, 0.9) * _window(v, first, last, 0.01)


def _effusion(u: np.ndarray, v: np.ndarray, first: float, last: float, rng: np.random.Generator) -> np.ndarray:
    """Fluid that fills the costophrenic angle; its surface curves up along the chest wall."""
    depth = 1 - first
    top = first + depth * rng.uniform(0.03, 0.12)
    surface = top + depth * rng.uniform(0.35, 0.5) * (1 - np.clip(u, 0, 1) ** 1.8)
    return np.clip((v - surface) / 0.03 + 0.5, 0, 1) * rng.uniform(0.88, 0.97) * _window(v, first, last, 0.02)


def _edema(u: np.ndarray, v: np.ndarray, first: float, last: float, rng: np.random.Generator) -> np.ndarray:
    """Haze about the hilum that thins out to the periphery, with short lines at the lateral base."""
    centre, reach = (first + last) / 2, (last - first) * 0.55
    haze = np.exp(-((np.clip(u, 0, 2) / rng.uniform(0.7, 0.9)) ** 2) - ((v - centre) / reach) ** 4)
    haze = haze * (0.5 + 0.55 * cloud(u.shape, 26, rng)) * rng.uniform(0.75, 0.95)
    lines = (np.abs(np.mod(v * 38 + rng.uniform(), 1) - 0.5) < 0.1) & (u > 0.86) & (u < 0.99) & (v > 0.7)
    return np.maximum(haze, 0.28 * lines) * _window(v, first, last, 0.06)


_DRAWN = {
    "consolidation": _consolidation,
    "pneumonia": _pneumonia,
    "opacity": _opacity,
    "atelectasis": _atelectasis,
    "effusion": _effusion,
    "edema": _edema,
}
