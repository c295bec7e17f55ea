"""The compact promptable segmenter with its shipped weights, on real radiographs."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from xflow_core.bundles.loading import load_engine
from xflow_core.domain.errors import BundleError, ValueRefused
from xflow_core.domain.geometry import Box, Point, mask_iou
from xflow_core.domain.trace import Click, Mask
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph, read_radiograph
from xflow_core.segmenters.compact import CompactSegmenter, encoded_grey
from xflow_core.segmenters.compact_region import Region
from xflow_core.segmenters.protocol import Prediction, Prompt

BOX = Box(0.2, 0.5, 0.42, 0.75)
BOXES = (BOX, Box(0.6, 0.3, 0.8, 0.6), Box(0.55, 0.7, 0.62, 0.78), Box(0.1, 0.1, 0.9, 0.95))


@pytest.fixture(scope="module")
def segmenter() -> CompactSegmenter:
    segmenter = load_engine("compact", "cpu").segmenter
    assert isinstance(segmenter, CompactSegmenter)
    return segmenter


@pytest.fixture(scope="module")
def image(rg1: Path) -> EncodedRadiograph:
    return EncodedRadiograph(read_radiograph(rg1))


def clicked(polarity: str, x: float, y: float) -> Click:
    return Click(polarity, Point(x, y))


def altered(image: EncodedRadiograph, values: np.ndarray) -> EncodedRadiograph:
    """The same radiograph with other pixels."""
    radiograph = image.radiograph
    size = (values.shape[0], values.shape[1])
    record = replace(radiograph.record, size=size)
    display = np.zeros(size, np.uint8)
    return EncodedRadiograph(Radiograph(values=values.astype(np.float32), display=display, record=record))


# Where it looks.


@pytest.mark.parametrize("size", [(512, 512), (2048, 1500), (700, 2500)])
def test_a_box_goes_into_its_region_and_back_without_a_shift(size: tuple[int, int]) -> None:
    height, width = size
    side = 0.3 * min(size)
    for left, top in ((0.0, 0.0), (0.31 * width, 0.27 * height), (width - side, height - side)):
        box = Box(left / width, top / height, (left + side) / width, (top + side) / height)
        filled = box.mask(size)
        region = Region.around(box, (), None, size)
        back = region.paste(region.cut(filled).numpy()) > 0.5
        assert mask_iou(back, filled) > 0.99
        shift = np.mean(np.nonzero(back), axis=1) - np.mean(np.nonzero(filled), axis=1)
        assert np.abs(shift).max() < 0.2 * region.side / 192


def test_the_region_follows_from_the_prompt_and_grows_for_a_click_outside() -> None:
    size = (1000, 800)
    alone = Region.around(BOX, (), None, size)
    assert Region.around(BOX, [clicked("positive", 0.3, 0.6)], None, size) == alone
    far = clicked("positive", 0.9, 0.1)
    grown = Region.around(BOX, [far], None, size)
    assert grown.side > alone.side
    assert grown.x < 0.9 * 800 < grown.x + grown.side
    assert grown.y < 0.1 * 1000 < grown.y + grown.side
    assert Region.around(None, [far], None, size).x < 0.9 * 800


def test_the_segmenters_own_mask_does_not_move_the_region(
    segmenter: CompactSegmenter, image: EncodedRadiograph
) -> None:
    size = image.radiograph.size
    for box in BOXES:
        (first,) = segmenter.segment(image, [Prompt(box)])
        assert Region.around(box, (), first.mask, size) == Region.around(box, (), None, size)


# What it answers.


def test_masks_have_the_sources_size_and_an_estimate_of_their_iou(
    segmenter: CompactSegmenter, image: EncodedRadiograph
) -> None:
    predictions = segmenter.segment(image, [Prompt(box) for box in BOXES])
    assert len(predictions) == len(BOXES)
    for prediction in predictions:
        assert prediction.mask.shape == image.radiograph.size
        assert prediction.mask.dtype == bool
        assert prediction.predicted_iou is not None
        assert 0 <= prediction.predicted_iou <= 1
    assert segmenter.segment(image, []) == []


def test_equal_inputs_give_equal_masks(segmenter: CompactSegmenter, image: EncodedRadiograph, rg1: Path) -> None:
    again = EncodedRadiograph(read_radiograph(rg1))
    prompt = Prompt(BOX, (clicked("negative", 0.3, 0.55),))
    (one,) = segmenter.segment(image, [prompt])
    (two,) = segmenter.segment(again, [prompt])
    assert np.array_equal(one.mask, two.mask)
    assert one.predicted_iou == two.predicted_iou


def test_a_batch_of_prompts_answers_as_each_prompt_alone(segmenter: CompactSegmenter, image: EncodedRadiograph) -> None:
    prompts = [Prompt(box) for box in BOXES] * 5
    for prompt, together in zip(prompts, segmenter.segment(image, prompts), strict=True):
        (alone,) = segmenter.segment(image, [prompt])
        assert np.count_nonzero(alone.mask ^ together.mask) <= 1e-4 * alone.mask.size
        assert alone.predicted_iou == pytest.approx(together.predicted_iou, abs=1e-3)


def test_the_picture_is_prepared_once(segmenter: CompactSegmenter, rg1: Path) -> None:
    image = EncodedRadiograph(read_radiograph(rg1))
    grey = encoded_grey(image)
    segmenter.segment(image, [Prompt(BOX)])
    assert encoded_grey(image) is grey


def test_what_was_answered_without_a_mask_is_not_computed_again_for_a_revision(
    segmenter: CompactSegmenter, rg1: Path
) -> None:
    image = EncodedRadiograph(read_radiograph(rg1))
    passes: list[int] = []
    hook = segmenter._net.register_forward_hook(lambda *_: passes.append(1))
    try:
        ((_, fresh, _),) = segmenter.probabilities(image, [Prompt(BOX)])
        first = Prediction(BOX.mask(image.radiograph.size))
        assert np.array_equal(segmenter.unaided(image, Prompt(BOX, (), first)), fresh)
        assert len(passes) == 1
        segmenter.unaided(image, Prompt(BOX, (clicked("positive", 0.3, 0.6),), first))
        assert len(passes) == 2
    finally:
        hook.remove()


def test_the_mask_before_may_come_from_a_trace(segmenter: CompactSegmenter, image: EncodedRadiograph) -> None:
    (first,) = segmenter.segment(image, [Prompt(BOX)])
    clicks = (clicked("positive", 0.25, 0.7),)
    (live,) = segmenter.segment(image, [Prompt(BOX, clicks, first)])
    stored = Mask.of(first.mask).array
    (loaded,) = segmenter.segment(image, [Prompt(BOX, clicks, Prediction(stored))])
    assert np.array_equal(live.mask, loaded.mask)
    assert live.state is None


def test_the_answer_without_help_looks_where_the_mask_lies_and_not_at_the_mask(
    segmenter: CompactSegmenter, image: EncodedRadiograph
) -> None:
    ((_, fresh, _),) = segmenter.probabilities(image, [Prompt(BOX)])
    drawn = BOX.mask(image.radiograph.size)
    assert np.array_equal(segmenter.unaided(image, Prompt(BOX, (), Prediction(drawn))), fresh)
    ((_, helped, _),) = segmenter.probabilities(image, [Prompt(BOX, (), Prediction(drawn))])
    assert not np.array_equal(helped, fresh)
    far = Box(0.1, 0.1, 0.9, 0.95).mask(image.radiograph.size)
    assert not np.array_equal(segmenter.unaided(image, Prompt(BOX, (), Prediction(far))), fresh)


@pytest.mark.parametrize("box", [Box(0.5, 0.5, 0.502, 0.502), Box(0, 0, 1, 1), Box(0, 0, 0.03, 1), Box(0.9, 0.9, 1, 1)])
def test_extreme_boxes_are_answered(segmenter: CompactSegmenter, image: EncodedRadiograph, box: Box) -> None:
    (prediction,) = segmenter.segment(image, [Prompt(box)])
    assert prediction.mask.shape == image.radiograph.size


@pytest.mark.parametrize("point", [(0.0, 0.0), (1.0, 1.0), (0.95, 0.02)])
def test_clicks_far_from_the_box_and_in_the_corners_are_answered(
    segmenter: CompactSegmenter, image: EncodedRadiograph, point: tuple[float, float]
) -> None:
    for polarity in ("positive", "negative"):
        (with_box,) = segmenter.segment(image, [Prompt(BOX, (clicked(polarity, *point),))])
        assert with_box.mask.shape == image.radiograph.size
    (without,) = segmenter.segment(image, [Prompt(None, (clicked("positive", *point),))])
    assert without.mask.shape == image.radiograph.size


def test_clicks_alone_make_a_mask_around_them(segmenter: CompactSegmenter, image: EncodedRadiograph) -> None:
    (prediction,) = segmenter.segment(image, [Prompt(None, (clicked("positive", 0.3, 0.62),))])
    assert prediction.mask[Point(0.3, 0.62).pixel(prediction.mask.shape)]
    assert prediction.mask.mean() < 0.2


def test_a_mask_drawn_far_beyond_the_box_is_looked_at_whole(
    segmenter: CompactSegmenter, image: EncodedRadiograph
) -> None:
    size = image.radiograph.size
    drawn = Box(0.15, 0.2, 0.45, 0.9).mask(size)
    region = Region.around(Box(0.2, 0.3, 0.25, 0.35), (), drawn, size)
    assert region.cut(drawn).sum() * (region.side / 192) ** 2 == pytest.approx(drawn.sum(), rel=0.02)


@pytest.mark.parametrize("value", [0.0, 4095.0])
def test_a_picture_of_one_value_gives_finite_answers(
    segmenter: CompactSegmenter, image: EncodedRadiograph, value: float
) -> None:
    flat = altered(image, np.full((400, 300), value))
    for prediction in segmenter.segment(flat, [Prompt(BOX), Prompt(None, (clicked("positive", 0.5, 0.5),))]):
        assert prediction.predicted_iou is not None
        assert np.isfinite(prediction.predicted_iou)


def test_any_shape_of_picture_is_answered(segmenter: CompactSegmenter, image: EncodedRadiograph) -> None:
    for size in ((64, 64), (64, 900), (1200, 70)):
        values = np.random.default_rng(0).random(size)
        (prediction,) = segmenter.segment(altered(image, values), [Prompt(BOX)])
        assert prediction.mask.shape == size


def test_a_linear_change_of_the_values_changes_no_mask(segmenter: CompactSegmenter, image: EncodedRadiograph) -> None:
    other = altered(image, image.radiograph.values * 3 + 500)
    for a, b in zip(
        segmenter.segment(image, [Prompt(b) for b in BOXES]),
        segmenter.segment(other, [Prompt(b) for b in BOXES]),
        strict=True,
    ):
        assert mask_iou(a.mask, b.mask) > 0.99


# What it refuses.


def test_a_prompt_without_box_and_click_is_refused(segmenter: CompactSegmenter, image: EncodedRadiograph) -> None:
    with pytest.raises(ValueRefused, match="neither"):
        segmenter.segment(image, [Prompt(None)])
    with pytest.raises(ValueRefused, match="neither"):
        segmenter.segment(image, [Prompt(None, (), Prediction(BOX.mask(image.radiograph.size)))])


def test_a_previous_mask_of_another_size_is_refused(segmenter: CompactSegmenter, image: EncodedRadiograph) -> None:
    with pytest.raises(ValueRefused, match="previous mask"):
        segmenter.segment(image, [Prompt(BOX, (), Prediction(np.zeros((10, 10), bool)))])


def test_weights_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "segmenter.safetensors"
    path.write_bytes(b"not weights")
    with pytest.raises(BundleError, match="segmenter"):
        CompactSegmenter.load(path)


# How well it follows.


def contoured(pack: Path, count: int) -> list[tuple[EncodedRadiograph, np.ndarray, Box]]:
    """Components of consolidation and effusion on the dev split's radiographs: the largest of each image."""
    with (pack / "manifest.csv").open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["split"] == "dev" and row["finding"] in ("consolidation", "effusion") and row["mask_file"]
        ]
    found = []
    for row in rows[:count]:
        mask = np.asarray(Image.open(pack / row["mask_file"]).convert("L")) > 127
        labels, _ = ndimage.label(mask, np.ones((3, 3)))
        areas = np.bincount(labels.ravel())
        areas[0] = 0
        largest = labels == areas.argmax()
        box = Box.around(largest)
        assert box is not None
        found.append((EncodedRadiograph(read_radiograph(pack / row["file"])), largest, box))
    return found


def test_clicks_do_what_they_ask_for_on_real_lesions(segmenter: CompactSegmenter, pack: Path) -> None:
    followed, before, after = [], [], []
    for image, truth, box in contoured(pack, 16):
        (first,) = segmenter.segment(image, [Prompt(box)])
        missed, excess = truth & ~first.mask, first.mask & ~truth
        polarity, error = ("positive", missed) if missed.sum() >= excess.sum() else ("negative", excess)
        depth = ndimage.distance_transform_edt(np.pad(error, 1))[1:-1, 1:-1]
        row, column = np.unravel_index(int(depth.argmax()), depth.shape)
        click = Click(polarity, Point.of_pixel(int(row), int(column), truth.shape))
        (second,) = segmenter.segment(image, [Prompt(box, (click,), first)])
        followed.append(bool(second.mask[row, column]) == (polarity == "positive"))
        before.append(mask_iou(first.mask, truth))
        after.append(mask_iou(second.mask, truth))
    assert np.mean(followed) >= 0.85
    assert np.mean(before) > 0.6
    assert np.mean(after) > np.mean(before) + 0.03
