"""Boxes and points are normalised, cannot be wrong, and go to pixels and back exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from xflow_core.domain.errors import ValueRefused, XFlowError
from xflow_core.domain.geometry import Box, Point, mask_iou

unit = st.floats(0, 1)
sizes = st.tuples(st.integers(1, 4000), st.integers(1, 4000))


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    x1, x2 = sorted(draw(st.lists(unit, min_size=2, max_size=2, unique=True)))
    y1, y2 = sorted(draw(st.lists(unit, min_size=2, max_size=2, unique=True)))
    return Box(x1, y1, x2, y2)


@st.composite
def pixel_boxes(draw: st.DrawFn) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    height, width = draw(sizes)
    x1, y1 = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    x2, y2 = draw(st.integers(x1 + 1, width)), draw(st.integers(y1 + 1, height))
    return (x1, y1, x2, y2), (height, width)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf, -math.inf, 512, "0.5", None, [0.5]])
def test_a_coordinate_outside_the_image_is_refused_with_its_number(value: object) -> None:
    for make in (lambda: Point(value, 0.5), lambda: Point(0.5, value), lambda: Box(0.1, 0.1, value, 0.9)):  # type: ignore[arg-type]
        with pytest.raises(ValueRefused) as refused:
            make()
        assert repr(value) in str(refused.value)


@pytest.mark.parametrize("box", [(0.5, 0.1, 0.5, 0.9), (0.6, 0.1, 0.5, 0.9), (0.1, 0.9, 0.5, 0.2)])
def test_a_box_without_inside_is_refused_with_its_numbers(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueRefused) as refused:
        Box(*box)
    assert all(str(number) in str(refused.value) for number in box)
    assert isinstance(refused.value, XFlowError)


def test_a_box_is_a_value_of_plain_floats() -> None:
    box = Box(np.float32(0.25), 0, np.float64(0.5), 1)
    assert box == Box(0.25, 0.0, 0.5, 1.0)
    assert {type(number) for number in box.to_json()} == {float}
    assert len({box, Box(0.25, 0.0, 0.5, 1.0)}) == 1
    assert box.centre == Point(0.375, 0.5)
    assert box.area == 0.25


@given(pixel_boxes())
def test_pixels_to_box_to_pixels_is_exact(case: tuple[tuple[int, int, int, int], tuple[int, int]]) -> None:
    edges, size = case
    assert Box.of_pixels(edges, size).pixels(size) == edges


@given(sizes, st.data())
def test_a_pixel_s_centre_lies_in_that_pixel(size: tuple[int, int], data: st.DataObject) -> None:
    row, column = data.draw(st.integers(0, size[0] - 1)), data.draw(st.integers(0, size[1] - 1))
    assert Point.of_pixel(row, column, size).pixel(size) == (row, column)


@given(unit, unit, sizes)
def test_any_point_lies_in_a_pixel_of_the_image(x: float, y: float, size: tuple[int, int]) -> None:
    row, column = Point(x, y).pixel(size)
    assert 0 <= row < size[0]
    assert 0 <= column < size[1]


@given(boxes(), st.tuples(st.integers(1, 60), st.integers(1, 60)))
def test_a_box_covers_at_least_one_pixel_and_stays_inside(box: Box, size: tuple[int, int]) -> None:
    x1, y1, x2, y2 = box.pixels(size)
    assert 0 <= x1 < x2 <= size[1]
    assert 0 <= y1 < y2 <= size[0]
    filled = box.mask(size)
    assert filled.shape == size
    assert filled.sum() == (x2 - x1) * (y2 - y1)
    around = Box.around(filled)
    assert around is not None
    assert around.pixels(size) == (x1, y1, x2, y2)


@given(arrays.arrays(bool, st.tuples(st.integers(1, 30), st.integers(1, 30))))
def test_the_box_around_a_mask_is_tight(mask: np.ndarray) -> None:
    box = Box.around(mask)
    if not mask.any():
        assert box is None
        return
    assert box is not None
    x1, y1, x2, y2 = box.pixels(mask.shape)
    assert mask[y1:y2, x1:x2].sum() == mask.sum()
    assert mask[y1].any()
    assert mask[y2 - 1].any()
    assert mask[:, x1].any()
    assert mask[:, x2 - 1].any()


def test_pixel_edges_beyond_the_image_are_clipped_to_it() -> None:
    assert Box.of_pixels((-20, -5, 120, 50), (100, 100)) == Box(0, 0, 1, 0.5)
    with pytest.raises(ValueRefused):
        Box.of_pixels((120, 0, 140, 50), (100, 100))


@given(boxes(), boxes())
def test_iou_is_a_share_the_same_both_ways_and_one_for_itself(first: Box, second: Box) -> None:
    assert 0.0 <= first.iou(second) <= 1.0
    assert first.iou(second) == second.iou(first)
    assert first.iou(first) == 1.0
    common = first.intersect(second)
    assert common == second.intersect(first)
    if common is not None:
        assert first.contains(common.centre)
        assert second.contains(common.centre)


def test_iou_of_two_halves_that_share_a_quarter() -> None:
    assert Box(0, 0, 0.5, 1).iou(Box(0.25, 0, 0.75, 1)) == pytest.approx(1 / 3)
    assert Box(0, 0, 0.5, 1).iou(Box(0.5, 0, 1, 1)) == 0.0


@given(boxes(), st.floats(0, 2))
def test_a_grown_box_contains_the_box_and_stays_in_the_image(box: Box, share: float) -> None:
    grown = box.grown(share)
    assert grown.x1 <= box.x1 < box.x2 <= grown.x2
    assert grown.y1 <= box.y1 < box.y2 <= grown.y2


def test_mask_iou_counts_pixels() -> None:
    first, second = np.zeros((4, 4), bool), np.zeros((4, 4), bool)
    assert mask_iou(first, second) == 1.0
    first[0], second[0, :2] = True, True
    assert mask_iou(first, second) == 0.5
    assert mask_iou(first, np.zeros((4, 4), bool)) == 0.0
