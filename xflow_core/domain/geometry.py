"""Boxes, points and masks in the source image frame.

Arrays are ``[row, column]``, row 0 at the top, exactly the stored pixel matrix. Boxes and points are
``x`` (columns, to the right) and ``y`` (rows, downwards), normalised to [0, 1] by the image's width and height:
pixel column ``c`` of a W-wide image spans ``[c/W, (c+1)/W]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .errors import ValueRefused


def _unit(name: str, value: float) -> float:
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number <= 1.0:  # not true of NaN, either
        raise ValueRefused(f"{name} is {value!r}; coordinates are normalised and lie between 0 and 1.")
    return number


@dataclass(frozen=True)
class Point:
    """A point ``(x, y)``, normalised to the image."""

    x: float
    y: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _unit("x", self.x))
        object.__setattr__(self, "y", _unit("y", self.y))

    @classmethod
    def of_pixel(cls, row: float, column: float, size: tuple[int, int]) -> Point:
        """The centre of pixel ``(row, column)`` of an image of ``size`` ``(height, width)``."""
        return cls((column + 0.5) / size[1], (row + 0.5) / size[0])

    def pixel(self, size: tuple[int, int]) -> tuple[int, int]:
        """``(row, column)`` of the pixel that holds the point, in an image of ``size`` ``(height, width)``."""
        height, width = size
        return min(int(self.y * height), height - 1), min(int(self.x * width), width - 1)

    def to_json(self) -> list[float]:
        return [self.x, self.y]


@dataclass(frozen=True)
class Box:
    """A box ``(x1, y1, x2, y2)``, normalised to the image, with positive width and height."""

    x1: float
    y1: float
    x2: float
    y2: float

    def __post_init__(self) -> None:
        for name in ("x1", "y1", "x2", "y2"):
            object.__setattr__(self, name, _unit(name, getattr(self, name)))
        if not (self.x1 < self.x2 and self.y1 < self.y2):
            raise ValueRefused(
                f"A box needs x1 < x2 and y1 < y2; got x1={self.x1}, x2={self.x2}, y1={self.y1}, y2={self.y2}."
            )

    @classmethod
    def of_pixels(cls, box: tuple[float, float, float, float], size: tuple[int, int]) -> Box:
        """From pixel edges ``(x1, y1, x2, y2)`` of an image of ``size`` ``(height, width)``, clipped to the image."""
        height, width = size
        x1, y1, x2, y2 = box
        return cls(
            min(max(x1 / width, 0.0), 1.0),
            min(max(y1 / height, 0.0), 1.0),
            min(max(x2 / width, 0.0), 1.0),
            min(max(y2 / height, 0.0), 1.0),
        )

    @classmethod
    def around(cls, mask: np.ndarray) -> Box | None:
        """The tight box around the true pixels of a ``[H, W]`` mask; None when there are none."""
        rows = np.flatnonzero(mask.any(axis=1))
        if rows.size == 0:
            return None
        columns = np.flatnonzero(mask.any(axis=0))
        return cls.of_pixels((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1), mask.shape)

    @property
    def width(self) -> float:
        return self.x2 - self.x1

    @property
    def height(self) -> float:
        return self.y2 - self.y1

    @property
    def area(self) -> float:
        """Area as a share of the image."""
        return self.width * self.height

    @property
    def centre(self) -> Point:
        return Point((self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2)

    def pixels(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Whole-pixel edges ``(x1, y1, x2, y2)``, half open, that cover the box; never empty."""
        height, width = size
        # 1e-6 of a pixel forgives the rounding of c / W * W, so that pixels -> box -> pixels is exact.
        x1 = min(math.floor(self.x1 * width + 1e-6), width - 1)
        y1 = min(math.floor(self.y1 * height + 1e-6), height - 1)
        x2 = max(math.ceil(self.x2 * width - 1e-6), x1 + 1)
        y2 = max(math.ceil(self.y2 * height - 1e-6), y1 + 1)
        return x1, y1, x2, y2

    def mask(self, size: tuple[int, int]) -> np.ndarray:
        """The box filled, as a bool mask ``[H, W]``."""
        x1, y1, x2, y2 = self.pixels(size)
        filled = np.zeros(size, bool)
        filled[y1:y2, x1:x2] = True
        return filled

    def contains(self, point: Point) -> bool:
        return self.x1 <= point.x <= self.x2 and self.y1 <= point.y <= self.y2

    def intersect(self, other: Box) -> Box | None:
        """The common box; None when the two do not overlap."""
        x1, y1 = max(self.x1, other.x1), max(self.y1, other.y1)
        x2, y2 = min(self.x2, other.x2), min(self.y2, other.y2)
        return Box(x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None

    def iou(self, other: Box) -> float:
        common = self.intersect(other)
        if common is None:
            return 0.0
        union = self.area + other.area - common.area
        return common.area / union if union else float(self == other)  # areas too small for a float

    def grown(self, share: float) -> Box:
        """Each side moved outwards by ``share`` of the box's own side, kept inside the image."""
        dx, dy = self.width * share, self.height * share
        return Box(max(self.x1 - dx, 0.0), max(self.y1 - dy, 0.0), min(self.x2 + dx, 1.0), min(self.y2 + dy, 1.0))

    def to_json(self) -> list[float]:
        return [self.x1, self.y1, self.x2, self.y2]


def mask_iou(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union of two bool masks of equal shape; 1.0 when both are empty."""
    union = np.count_nonzero(a | b)
    return np.count_nonzero(a & b) / union if union else 1.0
