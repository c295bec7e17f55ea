"""Outlines of masks run along pixel edges, and hold everything that the mask holds."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import ndimage

from xflow_core.export.outline import outlines

masks = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.booleans())


def filled(lines: list[np.ndarray], size: tuple[int, int]) -> np.ndarray:
    """The pixels whose centres lie inside an odd number of closed lines; every edge has to follow pixel edges."""
    crossed = np.zeros((size[0], size[1] + 1), int)
    for line in lines:
        for (x, y), (to_x, to_y) in itertools.pairwise(line.tolist()):
            assert (x == to_x) != (y == to_y)
            if x == to_x:
                crossed[min(y, to_y) : max(y, to_y), x] += 1
    return np.cumsum(crossed, axis=1)[:, :-1] % 2 == 1


@given(masks)
@settings(max_examples=150, deadline=None)
def test_the_outlines_filled_are_the_mask(mask: np.ndarray) -> None:
    assert np.array_equal(filled(outlines(mask), mask.shape), mask)


@given(masks)
@settings(max_examples=150, deadline=None)
def test_every_component_and_every_hole_has_one_closed_line(mask: np.ndarray) -> None:
    lines = outlines(mask)
    _, components = ndimage.label(mask, np.ones((3, 3)))
    _, background = ndimage.label(~np.pad(mask, 1))
    assert len(lines) == components + background - 1
    assert all(np.array_equal(line[0], line[-1]) for line in lines)


def test_a_rectangle_has_its_four_corners_and_no_more() -> None:
    mask = np.zeros((9, 7), bool)
    mask[2:6, 1:5] = True
    (line,) = outlines(mask)
    assert {tuple(corner) for corner in line.tolist()} == {(1, 2), (5, 2), (5, 6), (1, 6)}
    assert len(line) == 5


def test_a_whole_image_is_outlined_at_its_edge_and_nothing_has_no_outline() -> None:
    (line,) = outlines(np.ones((4, 6), bool))
    assert (line.min(), *line.max(axis=0)) == (0, 6, 4)
    assert outlines(np.zeros((4, 6), bool)) == []


def test_the_longest_outline_comes_first() -> None:
    mask = np.zeros((40, 40), bool)
    mask[1:3, 1:3] = mask[10:30, 10:30] = True
    mask[15:18, 15:18] = False
    assert [int(np.ptp(line[:, 0])) for line in outlines(mask)] == [20, 3, 2]
