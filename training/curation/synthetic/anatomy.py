"""The chest of a synthetic study: two lungs and a heart as contours, before any pixel is drawn.

Contours are made in a *chest frame*: X to the image's right, Y downwards, the midline at X = 0, the lungs' apices at
Y = -0.5 and a lung about one unit high. :class:`Frame` carries them into an image. The patient's right lung has X < 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np

# Points of a contour, as CheXmask has them: 44 right lung, 50 left lung, 26 heart.
POINTS = {"right lung": 44, "left lung": 50, "heart": 26}
APEX = -0.5
SIDE = {"right lung": -1, "left lung": 1}


@dataclass(frozen=True)
class Frame:
    """Where the chest lies in an image of ``size`` ``(height, width)``: midline and middle in pixels, pixels a unit."""

    size: tuple[int, int]
    x: float
    y: float
    scale: float
    turn: float

    def pixels(self, points: np.ndarray) -> np.ndarray:
        """Chest points ``[N, 2]`` (X, Y) as pixel coordinates ``[N, 2]`` (x, y)."""
        cosine, sine = math.cos(self.turn), math.sin(self.turn)
        x, y = points[:, 0] * self.scale, points[:, 1] * self.scale
        return np.stack([self.x + x * cosine - y * sine, self.y + x * sine + y * cosine], axis=1)

    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """The chest coordinates X and Y of every pixel, float32 ``[H, W]``."""
        height, width = self.size
        y, x = np.mgrid[:height, :width].astype(np.float32)
        x, y = (x + 0.5 - self.x) / self.scale, (y + 0.5 - self.y) / self.scale
        cosine, sine = math.cos(self.turn), math.sin(self.turn)
        return x * cosine + y * sine, y * cosine - x * sine


@dataclass(frozen=True)
class Lung:
    """One lung's measures in the chest frame, X as distance from the midline.

    lateral: the widest place. foot: Y of the costophrenic angle, its lowest point. dome: Y of the diaphragm's top.
    crown: X of the dome's top. inner: the mediastinum's edge above the heart. apex: X of the lung's top.
    """

    side: int
    lateral: float
    foot: float
    dome: float
    crown: float
    inner: float
    apex: float

    @property
    def height(self) -> float:
        return self.foot - APEX

    def outer_edge(self, y: np.ndarray) -> np.ndarray:
        """Distance of the lateral border from the midline at heights Y."""
        t = np.clip((y - APEX) / self.height, 0, 1)
        return (self.apex + (self.lateral - self.apex) * (1 - (1 - t) ** 2.9)) * (1 - 0.035 * t**5)

    def inner_edge(self, y: np.ndarray) -> np.ndarray:
        """Distance of the medial border from the midline at heights Y, the heart left out."""
        t = np.clip((y - APEX) / 0.2, 0, 1)
        return self.inner + (self.apex - self.inner) * (1 - t) ** 2.4 + 0.02 * np.exp(-(((y + 0.02) / 0.09) ** 2))

    def floor(self, x: np.ndarray) -> np.ndarray:
        """Y of the diaphragm at distances X from the midline."""
        outwards = np.clip((x - self.crown) / (self.lateral * 0.965 - self.crown), 0, 1)
        inwards = np.clip((self.crown - x) / self.crown, 0, 1)
        return self.dome + (self.foot - self.dome) * outwards**2.3 + 0.06 * inwards**2


@dataclass(frozen=True)
class Heart:
    """A tilted ellipse in the chest frame: centre, half axes, tilt."""

    x: float
    y: float
    long: float
    short: float
    tilt: float

    def edges(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """X of the heart's two borders at heights Y; NaN above and below it."""
        cosine, sine = math.cos(self.tilt), math.sin(self.tilt)
        a, b = self.long**-2, self.short**-2
        xx, xy, yy = a * cosine**2 + b * sine**2, (a - b) * cosine * sine, a * sine**2 + b * cosine**2
        dy = y - self.y
        with np.errstate(invalid="ignore"):
            root = np.sqrt((xy * dy) ** 2 - xx * (yy * dy**2 - 1))
        return self.x + (-xy * dy - root) / xx, self.x + (-xy * dy + root) / xx

    def contour(self, count: int = POINTS["heart"]) -> np.ndarray:
        angle = np.linspace(0, 2 * math.pi, count, endpoint=False)
        along, across = self.long * np.cos(angle), self.short * np.sin(angle)
        cosine, sine = math.cos(self.tilt), math.sin(self.tilt)
        return np.stack([self.x + along * cosine - across * sine, self.y + along * sine + across * cosine], axis=1)

    def distance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """1 on the border, smaller inside."""
        cosine, sine = math.cos(self.tilt), math.sin(self.tilt)
        dx, dy = x - self.x, y - self.y
        return np.hypot((dx * cosine + dy * sine) / self.long, (dy * cosine - dx * sine) / self.short)


@dataclass(frozen=True)
class Anatomy:
    """A chest in its image."""

    frame: Frame
    lungs: dict[str, Lung]
    heart: Heart

    def medial_edge(self, label: str, y: np.ndarray) -> np.ndarray:
        """Distance of a lung's medial border from the midline at heights Y, pushed aside by the heart."""
        lung = self.lungs[label]
        edge = lung.inner_edge(y)
        border = self.heart.edges(y)[0 if lung.side < 0 else 1] * lung.side
        return np.fmax(edge, np.nan_to_num(border, nan=-1.0))

    def contour(self, label: str) -> np.ndarray:
        """A contour in pixels, float ``[POINTS, 2]`` (x, y), clipped to the image."""
        if label == "heart":
            points = self.heart.contour()
        else:
            lung, count = self.lungs[label], POINTS[label]
            outer, under = count * 2 // 5, count // 4
            inner = count - outer - under
            # Closer points at the apex, where the border turns fastest.
            down = APEX + lung.height * np.linspace(0, 1, outer) ** 1.6
            x = np.linspace(float(lung.outer_edge(down[-1:])[0]), 0.0, 60)
            foot = lung.floor(x)
            # The diaphragm is followed inwards until it meets the medial border.
            seen = x > self.medial_edge(label, foot)
            last = max(int(seen.sum()), 2)
            picks = np.linspace(1, last - 1, under).round().astype(int)
            up = np.linspace(float(foot[last - 1]), APEX, inner + 1)[:-1]
            points = np.concatenate([
                np.stack([lung.outer_edge(down), down], axis=1),
                np.stack([x[picks], foot[picks]], axis=1),
                np.stack([self.medial_edge(label, up), up], axis=1),
            ])  # fmt: skip
            points[:, 0] *= lung.side
        height, width = self.frame.size
        return np.clip(self.frame.pixels(points), 0.0, (width - 1, height - 1))


def make_anatomy(random: Random, size: tuple[int, int], big_heart: bool, raised: tuple[str, ...] = ()) -> Anatomy:
    """A chest for an image of ``size`` ``(height, width)``.

    Args:
        big_heart: a cardiothoracic ratio above 0.55 instead of below 0.5.
        raised: the lungs whose diaphragm stands high, as over an atelectasis.
    """
    draw = random.uniform
    height, width = size
    scale = min(height / 1.30, width / 1.12) * draw(0.92, 1.0)
    frame = Frame(size, width * draw(0.48, 0.52), height * draw(0.475, 0.5), scale, math.radians(draw(-2.5, 2.5)))
    lateral, dome = draw(0.425, 0.465), draw(0.30, 0.36)
    lungs = {}
    for label, side in SIDE.items():
        lift = draw(0.05, 0.08) if label in raised else 0.0
        own = dome - lift + (0.0 if side < 0 else draw(0.015, 0.04))
        lungs[label] = Lung(
            side=side,
            lateral=lateral * draw(0.98, 1.02),
            foot=own + draw(0.12, 0.15),
            dome=own,
            crown=draw(0.22, 0.26),
            inner=draw(0.07, 0.09),
            apex=draw(0.17, 0.2),
        )
    if big_heart:
        long, short, shift = draw(0.29, 0.32), draw(0.2, 0.22), draw(0.07, 0.09)
    else:
        long, short, shift = draw(0.185, 0.215), draw(0.14, 0.155), draw(0.05, 0.065)
    tilt = math.radians(draw(28, 38))
    reach = math.sqrt((long * math.sin(tilt)) ** 2 + (short * math.cos(tilt)) ** 2)
    bottom = min(lung.dome for lung in lungs.values()) + 0.05
    return Anatomy(frame, lungs, Heart(shift, bottom - reach, long, short, tilt))
