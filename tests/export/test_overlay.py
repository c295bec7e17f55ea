"""The overlay, pixel by pixel: what is drawn, where, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import BoxesStep, Click, ClickStep, LesionBox, Result
from xflow_core.export.overlay import (
    _BOX,
    _MASK,
    _NEGATIVE,
    _POSITIVE,
    _TEXT,
    LONGEST_SIDE,
    draw_overlay,
    radiograph_rectangle,
)

SIZE = (300, 240)


def radiograph(overlay, trace):
    """The part of the overlay that the radiograph takes, RGB."""
    return np.asarray(overlay.crop(radiograph_rectangle(trace)), int)


def foot(overlay, trace):
    """The band below the radiograph, RGB."""
    return np.asarray(overlay, int)[radiograph_rectangle(trace)[3] :]


def shown(display, trace):
    """The radiograph as the overlay shows it before anything is drawn, RGB."""
    left, top, right, bottom = radiograph_rectangle(trace)
    grey = Image.fromarray(display).resize((right - left, bottom - top), Image.Resampling.BICUBIC)
    return np.asarray(grey.convert("RGB"), int)


def is_colour(pixels, colour):
    return (pixels == np.array(colour)).all(axis=-1)


def longest_bar(pixels):
    """The longest horizontal run of the text's colour."""
    best = 0
    for row in is_colour(pixels, _TEXT):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(int), [0]))))
        best = max([best, *(edges[1::2] - edges[::2])])
    return best


def test_the_contour_lies_on_the_masks_edge_all_the_way_round(make_trace, display, disc):
    trace = make_trace(disc(SIZE, 150, 120, 60))
    pixels = radiograph(draw_overlay(display, trace), trace)
    scale = LONGEST_SIDE / SIZE[0]
    rows, columns = np.nonzero(is_colour(pixels, _MASK))
    # The disc's pixels, and so its edge, are steps of one source pixel.
    away = np.hypot(rows - 150.5 * scale, columns - 120.5 * scale) - 60 * scale
    assert np.abs(away).max() < 1.5 * scale
    angles = np.degrees(np.arctan2(rows - 150.5 * scale, columns - 120.5 * scale)).astype(int)
    assert len(set(angles)) >= 359


def test_away_from_the_marks_the_radiograph_is_untouched(make_trace, display, disc):
    trace = make_trace(disc(SIZE, 150, 120, 60))
    pixels, before = radiograph(draw_overlay(display, trace), trace), shown(display, trace)
    rows, columns = np.mgrid[: pixels.shape[0], : pixels.shape[1]]
    scale = LONGEST_SIDE / SIZE[0]
    outside = np.hypot(rows - 150.5 * scale, columns - 120.5 * scale) > 61 * scale + 6
    assert outside.mean() > 0.5
    assert np.array_equal(pixels[outside], before[outside])


def test_an_answer_without_a_mark_leaves_every_pixel_alone(make_trace, display):
    trace = make_trace(None)
    assert np.array_equal(radiograph(draw_overlay(display, trace), trace), shown(display, trace))


def test_under_the_fill_the_anatomy_stays_visible(make_trace, rg1, disc):
    import pydicom

    pixels = pydicom.dcmread(rg1).pixel_array
    display = 255 - (pixels / pixels.max() * 255).astype(np.uint8)
    height, width = display.shape
    trace = make_trace(disc(display.shape, height / 2, width / 3, height / 8), size=display.shape)
    drawn, before = radiograph(draw_overlay(display, trace), trace), shown(display, trace)
    scale = LONGEST_SIDE / height
    inside = disc(drawn.shape[:2], height / 2 * scale, width / 3 * scale, height / 8 * scale - 8)
    assert np.corrcoef(drawn[inside].mean(axis=1), before[inside].mean(axis=1))[0, 1] > 0.99
    assert 0 < np.abs(drawn[inside] - before[inside]).mean() < 25


def test_a_mask_of_one_pixel_in_a_large_image_is_seen(make_trace):
    size = (4000, 3000)
    mask = np.zeros(size, bool)
    mask[1234, 567] = True
    trace = make_trace(mask, size=size)
    marked = is_colour(radiograph(draw_overlay(np.zeros(size, np.uint8), trace), trace), _MASK)
    rows, columns = np.nonzero(marked)
    assert marked.any() and abs(rows.mean() - 1234 * 0.3) < 2 and abs(columns.mean() - 567 * 0.3) < 2


def test_a_mask_at_the_border_is_closed_along_it(make_trace, display):
    mask = np.zeros(SIZE, bool)
    mask[:50, :40] = True
    trace = make_trace(mask)
    marked = is_colour(radiograph(draw_overlay(display, trace), trace), _MASK)
    assert marked[0, 5:150].all() and marked[5:190, 0].all()


def test_boxes_and_clicks_stand_where_the_trace_says(effusion, display):
    pixels = radiograph(draw_overlay(display, effusion), effusion)
    height, width = pixels.shape[:2]
    amber = is_colour(pixels, _BOX)
    assert amber[round(0.6 * height) + 1, round(0.65 * width) : round(0.85 * width)].all()
    for colour, (x, y) in ((_POSITIVE, (0.75, 0.75)), (_NEGATIVE, (0.62, 0.62))):
        around = is_colour(pixels, colour)[
            round(y * height) - 16 : round(y * height) + 16, round(x * width) - 16 : round(x * width) + 16
        ]
        rows, columns = np.nonzero(around)
        assert rows.size > 40 and abs(rows.mean() - 15.5) < 1.5 and abs(columns.mean() - 15.5) < 1.5


def test_pixels_that_are_not_square_are_drawn_at_their_true_proportions(make_trace):
    trace = make_trace(None, size=(400, 100), spacing=(0.1, 0.4), kind="detector")
    left, top, right, bottom = radiograph_rectangle(trace)
    assert (right - left, bottom - top) == (LONGEST_SIDE, LONGEST_SIDE)
    overlay = draw_overlay(np.zeros((400, 100), np.uint8), trace)
    assert radiograph(overlay, trace).shape == (LONGEST_SIDE, LONGEST_SIDE, 3)


@pytest.mark.parametrize(("spacing", "centimetres"), [((1.0, 1.0), 5), ((1.0, 0.5), 5), ((0.2, 0.2), 2)])
def test_a_scale_bar_has_its_length_and_lies_below_the_image(make_trace, display, spacing, centimetres):
    trace = make_trace(None, spacing=spacing, kind="patient")
    left, _, right, _ = radiograph_rectangle(trace)
    expected = centimetres * 10 / spacing[1] * (right - left) / SIZE[1]
    assert abs(longest_bar(foot(draw_overlay(display, trace), trace)) - expected) <= 3


def test_c13_without_a_spacing_there_is_no_scale_bar(make_trace, display):
    trace = make_trace(None)
    assert longest_bar(foot(draw_overlay(display, trace), trace)) < 30


def test_not_for_clinical_use_stands_under_every_answer(effusion, no_effusion, display):
    for trace in (effusion, no_effusion):
        band = is_colour(foot(draw_overlay(display, trace), trace), _BOX)
        # The frame around the words, on the right.
        assert band[:, band.shape[1] // 2 :].sum() > 400


def test_the_picture_carries_no_hidden_text(effusion, display):
    assert draw_overlay(display, effusion).info == {}


@pytest.mark.parametrize("size", [(1, 1), (64, 64), (20, 3000), (3000, 20), (4096, 4096)])
def test_every_size_of_image_gives_a_picture_of_sensible_size(make_trace, size):
    mask = np.ones(size, bool)
    trace = make_trace(mask, size=size, spacing=(0.1, 0.1), kind="detector")
    overlay = draw_overlay(np.full(size, 90, np.uint8), trace)
    assert 700 <= overlay.width <= 1300 and overlay.height <= 1700 and overlay.mode == "RGB"


def test_long_questions_and_many_boxes_and_foreign_letters_are_drawn(make_trace, display, disc):
    boxes = tuple(
        LesionBox(n, "effusion", Box(n / 50, n / 50, n / 50 + 0.1, n / 50 + 0.1), "chest", 0.5) for n in range(40)
    )
    corners = [Click("positive", Point(x, y)) for x in (0.0, 1.0) for y in (0.0, 1.0)]
    clicks = [ClickStep(component=0, turn=n + 1, click=click) for n, click in enumerate(corners)]
    trace = make_trace(
        disc(SIZE, 150, 120, 60),
        BoxesStep(boxes=boxes),
        *clicks,
        text="Œdème — где? 影 " * 200 + "x" * 100_000,
        warnings=tuple(f"Warning {n}." for n in range(20)),
    )
    overlay = draw_overlay(display, trace)
    assert overlay.height < 2600


def test_equal_traces_give_equal_pictures(effusion, display):
    assert draw_overlay(display, effusion).tobytes() == draw_overlay(display, effusion).tobytes()


@pytest.mark.parametrize("status", ["refused", "unsupported", "failed"])
def test_c26_without_an_answer_there_is_no_overlay(effusion, display, status):
    with pytest.raises(ValueRefused, match=f"Only an answer has an overlay; this trace is {status}"):
        draw_overlay(display, replace(effusion, result=Result(status)))


def test_a_display_of_another_size_or_type_is_refused(effusion, display):
    for wrong in (display[:-1], display.astype(np.float32), np.stack([display] * 3, -1)):
        with pytest.raises(ValueRefused, match="as uint8 of"):
            draw_overlay(wrong, effusion)
