"""The outline of a mask: closed lines along pixel edges, exact, holes included."""

from __future__ import annotations

import numpy as np


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """The closed lines around the true pixels of a mask, and around the holes in them, the longest first.

    The lines run along pixel edges: filled by the even-odd rule they give the mask back, pixel for pixel. Pixels that
    touch at a corner alone belong together, as in the domain's components.

    Args:
        mask: bool ``[H, W]``.

    Returns:
        For each line an int ``[n, 2]`` array of its corners ``(x, y)``, the first of them again at the end. ``x``
        counts columns and ``y`` rows from the outer corner of the top left pixel: they reach from 0 to W and to H.
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if rows.size == 0:
        return []
    top, left = int(rows[0]), int(columns[0])
    inside = np.pad(mask[top : rows[-1] + 1, left : columns[-1] + 1].astype(bool), 1)
    x, y, first_down = _corners(inside)
    across, along = _partners(x, y, first_down)

    xy = np.stack([x + left, y + top], axis=1)
    lines = []
    seen = np.zeros(len(x), bool)
    across_list, along_list = across.tolist(), along.tolist()
    for start in range(len(x)):
        if seen[start]:
            continue
        line = []
        corner = start
        while True:
            turned = across_list[corner]
            line += [corner, turned]
            corner = along_list[turned]
            if corner == start:
                break
        seen[line] = True
        lines.append(xy[[*line, start]])
    return sorted(lines, key=_length, reverse=True)


def _corners(inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the outline turns: ``x``, ``y`` in reading order, and whether the first of a double corner leads down.

    Where two pixels touch at a corner alone, two lines turn there; such a corner stands twice, first as the end of the
    edge on its left, then as the start of the edge on its right.
    """
    upper_left, upper_right = inside[:-1, :-1], inside[:-1, 1:]
    lower_left, lower_right = inside[1:, :-1], inside[1:, 1:]
    left_edge, right_edge = upper_left != lower_left, upper_right != lower_right
    upper_edge = upper_left != upper_right
    # One edge of the two that go on straight is missing, or all four edges meet.
    double = left_edge & right_edge & upper_edge & (upper_left == lower_right)
    turns = (left_edge != right_edge) | double
    y, x = np.nonzero(turns)
    times = 1 + double[y, x]
    # The line goes around the pixel that is not true, so that the two true ones stay together.
    first_down = upper_left[y, x]
    return np.repeat(x, times), np.repeat(y, times), np.repeat(first_down, times)


def _partners(x: np.ndarray, y: np.ndarray, first_down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each corner, in reading order, the other end of its edge across, and of its edge along the column."""
    count = len(x)
    number = np.arange(count)
    across = number ^ 1  # corners of a row bound its edges two by two
    second = np.zeros(count, bool)
    second[1:] = (x[1:] == x[:-1]) & (y[1:] == y[:-1])
    # In a column the copy whose edge leads up comes first.
    order = np.lexsort((second ^ first_down, y, x))
    along = np.empty(count, np.intp)
    along[order] = order[number ^ 1]
    return across, along


def _length(line: np.ndarray) -> int:
    return int(np.abs(np.diff(line, axis=0)).sum())
