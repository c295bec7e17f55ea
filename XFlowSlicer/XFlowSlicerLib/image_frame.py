"""Where a pixel of the engine's image lies in the patient: normalised image coordinates, RAS and the volume's array.

Three frames meet here.

- The *image*: ``[row, column]``, row 0 at the top, points ``(x, y)`` normalised to [0, 1]; the centre of pixel column
  ``c`` of a W-wide image is at ``x = (c + 0.5) / W`` (xflow_core.domain.geometry).
- The *volume*: voxels ``(i, j, k)``, of which one axis is a single voxel thin; as an array ``[k, j, i]``.
- *RAS*, in mm: the volume's own, before any transform that it is under. Nodes that show something of the image are put
  under the same transform, so that all of them move together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from xflow_core.domain.errors import RadiographRefused, ValueRefused
from xflow_core.domain.geometry import Box, Point

# The two directions of a slice view's screen, right and down, in RAS, by the axis of RAS that it looks along: what
# vtkMRMLSliceNode's sagittal, coronal and axial orientations are.
_SCREENS = {
    0: ((0.0, -1.0, 0.0), (0.0, 0.0, -1.0)),
    1: ((-1.0, 0.0, 0.0), (0.0, 0.0, -1.0)),
    2: ((-1.0, 0.0, 0.0), (0.0, -1.0, 0.0)),
}


@dataclass(frozen=True)
class Along:
    """The axis of the volume (0, 1, 2 for i, j, k) that rows or columns are counted along, or against."""

    axis: int
    forward: bool = True

    def __post_init__(self) -> None:
        if self.axis not in (0, 1, 2):
            raise ValueRefused(f"A volume has the axes 0, 1 and 2, not {self.axis!r}.")


@dataclass(frozen=True)
class RoiBox:
    """A box as a region of interest: ``centre`` in RAS, ``axes`` 3 x 3 (columns: right, down, through), mm ``size``."""

    centre: np.ndarray
    axes: np.ndarray
    size: np.ndarray


@dataclass(frozen=True)
class ImageFrame:
    """An image of one slice, and where it lies.

    Attributes:
        ijk_to_ras: the volume's 4 x 4 matrix in rows, without the transform that it is under.
        dimensions: the volume's, ``(I, J, K)``.
        columns: the axis along which the image's columns are counted (x).
        rows: the same for its rows (y).
    """

    ijk_to_ras: tuple[tuple[float, ...], ...]
    dimensions: tuple[int, int, int]
    columns: Along
    rows: Along

    def __post_init__(self) -> None:
        matrix = np.array(self.ijk_to_ras, float)
        if matrix.shape != (4, 4) or not np.isfinite(matrix).all() or tuple(matrix[3]) != (0.0, 0.0, 0.0, 1.0):
            raise ValueRefused("An image's place is a 4 x 4 matrix of numbers that ends in 0 0 0 1.")
        # By the lengths of the axes: a spacing of a micrometre is none the less a place.
        lengths = np.linalg.norm(matrix[:3, :3], axis=0)
        if not lengths.all() or abs(np.linalg.det(matrix[:3, :3] / lengths)) < 1e-6:
            raise ValueRefused("The volume's directions do not span space; load the image again.")
        object.__setattr__(self, "ijk_to_ras", tuple(tuple(row) for row in matrix.tolist()))
        object.__setattr__(self, "dimensions", tuple(int(length) for length in self.dimensions))
        if len(self.dimensions) != 3 or min(self.dimensions) < 1:
            raise ValueRefused(f"A volume of {self.dimensions} voxels cannot be.")
        if self.columns.axis == self.rows.axis:
            raise ValueRefused("Rows and columns run along two axes of the volume.")
        if self.dimensions[self.thin] != 1:
            raise RadiographRefused(
                f"The volume has {self.dimensions[self.thin]} slices, and XFlow reads single radiographs; "
                "choose a volume of one slice."
            )

    @classmethod
    def stored(cls, ijk_to_ras: np.ndarray, dimensions: Sequence[int]) -> ImageFrame:
        """The image is the stored pixel matrix: columns along i, rows along j, as Slicer reads DICOM."""
        return cls(_rows(ijk_to_ras), tuple(dimensions), Along(0), Along(1))  # type: ignore[arg-type]

    @classmethod
    def shown(
        cls, ijk_to_ras: np.ndarray, dimensions: Sequence[int], transform: np.ndarray | None = None
    ) -> ImageFrame:
        """The image is what a slice view shows, the right way up.

        Columns run to the patient's left and rows to posterior (axial), or inferior (coronal); of a sagittal slice,
        columns run to posterior. An oblique slice is taken as the nearest of these.

        Args:
            transform: 4 x 4, of the transform that the volume is under; None for none.
        """
        matrix = np.asarray(ijk_to_ras, float)
        thin = _thin_axis(dimensions)
        directions = (matrix if transform is None else np.asarray(transform, float) @ matrix)[:3, :3]
        directions = directions / np.maximum(np.linalg.norm(directions, axis=0), 1e-300)
        first, second = (axis for axis in range(3) if axis != thin)
        normal = np.cross(directions[:, first], directions[:, second])
        # Of equal components (45 degrees) the first in this order: axial, coronal, sagittal.
        looks_along = max((2, 1, 0), key=lambda axis: round(abs(float(normal[axis])), 6))
        right, down = (np.array(direction) for direction in _SCREENS[looks_along])

        def fit(choice: tuple[tuple[int, ...], tuple[bool, ...]]) -> float:
            (column, row), (along, downwards) = choice
            across = directions[:, column] @ right * (1 if along else -1)
            below = directions[:, row] @ down * (1 if downwards else -1)
            return round(float(across + below), 6)

        choices = product(permutations((first, second)), product((True, False), repeat=2))
        (column, row), (along, downwards) = max(choices, key=fit)
        return cls(_rows(matrix), tuple(dimensions), Along(column, along), Along(row, downwards))  # type: ignore[arg-type]

    @property
    def size(self) -> tuple[int, int]:
        """The image's ``(height, width)``."""
        return self.dimensions[self.rows.axis], self.dimensions[self.columns.axis]

    @property
    def thin(self) -> int:
        """The axis of the single slice."""
        return 3 - self.columns.axis - self.rows.axis

    @property
    def spacing_mm(self) -> tuple[float, float]:
        """``(row, column)``: the distance of two rows, and of two columns."""
        lengths = np.linalg.norm(self._matrix[:3, :3], axis=0)
        return float(lengths[self.rows.axis]), float(lengths[self.columns.axis])

    @property
    def is_stored(self) -> bool:
        """Whether the image is the stored matrix as it is: neither flipped nor turned."""
        return (self.columns, self.rows) == (Along(0), Along(1))

    # Points.

    def ras(self, point: Point) -> np.ndarray:
        """Where a point lies: ``[3]`` in mm, in the middle of the slice's thickness."""
        return self._ras_of(point.x, point.y)

    def xy(self, ras: Sequence[float]) -> tuple[float, float]:
        """``(x, y)`` of the foot of a place on the slice, also outside the image (below 0 or above 1)."""
        ijk = np.linalg.solve(self._matrix, np.array([*ras, 1.0], float))[:3]
        return self._normalised(ijk, self.columns), self._normalised(ijk, self.rows)

    def point(self, ras: Sequence[float]) -> Point:
        """The image's point nearest to a place, along the volume's axes."""
        x, y = self.xy(ras)
        return Point(min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0))

    def holds(self, ras: Sequence[float]) -> bool:
        """Whether a place lies on the image, its edge included, at any distance from the slice."""
        return all(-1e-9 <= value <= 1.0 + 1e-9 for value in self.xy(ras))

    # Boxes.

    def roi(self, box: Box) -> RoiBox:
        """A box as a region of interest that straddles the slice: two slices thick, so that it is cut wherever the
        slice is shown."""
        corner, across, below = (self._ras_of(x, y) for x, y in ((box.x1, box.y1), (box.x2, box.y1), (box.x1, box.y2)))
        sides = np.stack([across - corner, below - corner], axis=1)
        size = np.linalg.norm(sides, axis=0)
        # Of the image, not of the box: a thin box must not lose its direction in the rounding.
        plane = self._directions
        through = np.cross(plane[:, 0], plane[:, 1])
        thickness = abs(float(through @ self._matrix[:3, self.thin]))
        axes = np.stack([plane[:, 0], np.cross(through, plane[:, 0]), through], axis=1)
        centre = self._ras_of((box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2)
        return RoiBox(centre, axes, np.array([size[0], size[1], 2.0 * thickness]))

    def box(self, corners: np.ndarray) -> Box:
        """The box around ``corners`` ``[n, 3]`` in RAS, cut at the image's edge.

        One that lies outside is moved inside. At least a pixel wide and high.
        """
        xy = np.array([self.xy(corner) for corner in np.asarray(corners, float)])
        sides = []
        for low, high, count in zip(xy.min(axis=0), xy.max(axis=0), self.size[::-1], strict=True):
            pixel = 1.0 / count
            first, last = max(float(low), 0.0), min(float(high), 1.0)
            if last - first < pixel - 1e-9:
                length = min(max(float(high - low), pixel), 1.0)
                first = min(max(float(low), 0.0), 1.0 - length)
                last = min(first + length, 1.0)
            sides.append((first, last))
        (x1, x2), (y1, y2) = sides
        return Box(x1, y1, x2, y2)

    # Pixels.

    def to_image(self, array: np.ndarray) -> np.ndarray:
        """The image ``[H, W]`` in a volume's array ``[K, J, I]``: a view, flipped and turned as needed."""
        if array.shape != self.dimensions[::-1]:
            raise ValueRefused(f"The volume's array is {self.dimensions[::-1]}, this one is {array.shape}.")
        return self._turned(array)

    def to_volume(self, image: np.ndarray) -> np.ndarray:
        """The reverse: an image ``[H, W]`` as the volume's array ``[K, J, I]``: a view."""
        if image.shape != self.size:
            raise ValueRefused(f"The image is {self.size}, this one is {image.shape} pixels.")
        return self._unturned(image)

    def part_of_volume(self, part: np.ndarray, top: int, left: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """A rectangle of the image as a block of the volume: the block ``[k, j, i]`` (a view), and the voxels that it
        fills as VTK's extent ``(i0, i1, j0, j1, k0, k1)``, last included.

        Args:
            part: ``[h, w]``, of which the first pixel is the image's row ``top`` and column ``left``.
        """
        height, width = self.size
        bottom, right = top + part.shape[0], left + part.shape[1]
        if not (0 <= top < bottom <= height and 0 <= left < right <= width):
            raise ValueRefused(f"Rows {top} to {bottom} and columns {left} to {right} are not in {self.size} pixels.")
        extent = [0] * 6
        for along, first, last in ((self.rows, top, bottom - 1), (self.columns, left, right - 1)):
            if not along.forward:
                count = self.dimensions[along.axis]
                first, last = count - 1 - last, count - 1 - first
            extent[2 * along.axis], extent[2 * along.axis + 1] = first, last
        return self._unturned(part), tuple(extent)

    def part_of_image(self, block: np.ndarray, extent: Sequence[int]) -> tuple[np.ndarray, int, int]:
        """The reverse: ``part`` (a view), ``top``, ``left`` of a block ``[k, j, i]`` at a VTK extent inside the
        volume."""
        corner = []
        for along in (self.rows, self.columns):
            first, last = extent[2 * along.axis], extent[2 * along.axis + 1]
            corner.append(first if along.forward else self.dimensions[along.axis] - 1 - last)
        return self._turned(block), corner[0], corner[1]

    def _turned(self, array: np.ndarray) -> np.ndarray:
        plane = np.moveaxis(array, 2 - self.thin, 0)[0]
        if self.rows.axis < self.columns.axis:  # an array is [k, j, i]: of two axes the greater comes first
            plane = plane.T
        return plane[:: self._step(self.rows), :: self._step(self.columns)]

    def _unturned(self, image: np.ndarray) -> np.ndarray:
        plane = image[:: self._step(self.rows), :: self._step(self.columns)]
        if self.rows.axis < self.columns.axis:
            plane = plane.T
        return np.moveaxis(plane[np.newaxis], 0, 2 - self.thin)

    @staticmethod
    def _step(along: Along) -> int:
        return 1 if along.forward else -1

    @property
    def _matrix(self) -> np.ndarray:
        return np.array(self.ijk_to_ras)

    @property
    def _directions(self) -> np.ndarray:
        """Unit vectors to the right and down, ``[3, 2]``."""
        sides = [self._matrix[:3, along.axis] * self._step(along) for along in (self.columns, self.rows)]
        return np.stack([side / np.linalg.norm(side) for side in sides], axis=1)

    def _ras_of(self, x: float, y: float) -> np.ndarray:
        ijk = np.array([0.0, 0.0, 0.0, 1.0])
        for along, value in ((self.columns, x), (self.rows, y)):
            count = self.dimensions[along.axis]
            ijk[along.axis] = (value if along.forward else 1.0 - value) * count - 0.5
        return (self._matrix @ ijk)[:3]

    def _normalised(self, ijk: np.ndarray, along: Along) -> float:
        value = float((ijk[along.axis] + 0.5) / self.dimensions[along.axis])
        return value if along.forward else 1.0 - value


def _rows(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in np.asarray(matrix, float).tolist())


def _thin_axis(dimensions: Sequence[int]) -> int:
    """The axis of the single slice; of several, k before j before i."""
    thin = next((axis for axis in (2, 1, 0) if dimensions[axis] == 1), None)
    if thin is None:
        raise RadiographRefused(
            f"The volume has {dimensions[2]} slices, and XFlow reads single radiographs; choose a volume of one slice."
        )
    return thin
