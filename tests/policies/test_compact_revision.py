"""The compact revision policy with its shipped weights, on real radiographs."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from xflow_core.bundles.loading import load_engine
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.geometry import Box, Point, mask_iou
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import Click, LesionBox
from xflow_core.policies.compact_revision import GUARD, CompactRevisionPolicy, RevisionSettings
from xflow_core.policies.protocols import Done
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph, read_radiograph
from xflow_core.segmenters.compact import CompactSegmenter
from xflow_core.segmenters.protocol import Prediction, Prompt

BOX = Box(0.2, 0.5, 0.42, 0.75)
OPACITY = Instruction("Segment the opacity", "opacity", ("chest",), "chest")
COMPONENT = LesionBox(0, "opacity", BOX, "right lung")


@pytest.fixture(scope="module")
def policy() -> CompactRevisionPolicy:
    policy = load_engine("compact", "cpu").revision_policy
    assert isinstance(policy, CompactRevisionPolicy)
    return policy


@pytest.fixture(scope="module")
def segmenter() -> CompactSegmenter:
    segmenter = load_engine("compact", "cpu").segmenter
    assert isinstance(segmenter, CompactSegmenter)
    return segmenter


@pytest.fixture(scope="module")
def image(rg1: Path) -> EncodedRadiograph:
    return EncodedRadiograph(read_radiograph(rg1))


def lesions(pack: Path, count: int) -> list[tuple[EncodedRadiograph, Instruction, LesionBox, np.ndarray]]:
    """Components of consolidation and effusion on the dev split: the largest of each image, with its true mask."""
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
        instruction = Instruction(f"Segment the {row['finding']}", row["finding"], ("chest",), "chest")
        component = LesionBox(0, row["finding"], box, "chest")
        found.append((EncodedRadiograph(read_radiograph(pack / row["file"])), instruction, component, largest))
    return found


def half(mask: np.ndarray) -> np.ndarray:
    """The upper half of a mask: a lesion of which a part was missed."""
    rows = np.flatnonzero(mask.any(axis=1))
    kept = mask.copy()
    kept[(rows[0] + rows[-1]) // 2 :] = False
    return kept


def test_a_decision_is_a_click_in_the_image_or_done_and_always_the_same(
    policy: CompactRevisionPolicy, segmenter: CompactSegmenter, image: EncodedRadiograph
) -> None:
    (first,) = segmenter.segment(image, [Prompt(BOX)])
    decisions = [policy.revise(image, OPACITY, COMPONENT, [first.mask], (), seed=seed) for seed in (0, 0, 7)]
    assert decisions[0] == decisions[1] == decisions[2]
    assert isinstance(decisions[0].value, (Click, Done))
    assert decisions[0].text is None


def test_a_click_lands_in_what_is_wrong_and_corrects_it_on_most_halved_lesions(
    policy: CompactRevisionPolicy, segmenter: CompactSegmenter, pack: Path
) -> None:
    landed, gains = [], []
    for image, instruction, component, truth in lesions(pack, 14):
        given = half(truth)
        masks, clicks = [given], []
        while len(clicks) < 4:
            decision = policy.revise(image, instruction, component, masks, clicks, seed=0).value
            if isinstance(decision, Done):
                break
            if not clicks:
                inside = truth[decision.point.pixel(truth.shape)]
                landed.append(bool(inside) == (decision.polarity == "positive"))
            clicks.append(decision)
            prompt = Prompt(component.box, tuple(clicks), Prediction(masks[-1]))
            masks.append(segmenter.segment(image, [prompt])[0].mask)
        gains.append(mask_iou(masks[-1], truth) - mask_iou(given, truth))
    assert len(landed) >= 7
    assert np.mean(landed) > 0.7
    assert np.mean(gains) > 0.05


def test_clicks_of_one_polarity_keep_their_distance(segmenter: CompactSegmenter, pack: Path) -> None:
    weights = find_bundle("compact").file("revision.safetensors")
    eager = CompactRevisionPolicy.load(weights, segmenter, RevisionSettings(least_gain=0.0, trust=0.0))
    seen = 0
    for image, instruction, component, truth in lesions(pack, 6):
        height, width = truth.shape
        masks, clicks = [half(truth)], []
        while len(clicks) < 4:
            # The mask is left as it was, so that the same error asks for a click again and again.
            decision = eager.revise(image, instruction, component, [*masks] * (len(clicks) + 1), clicks, seed=0).value
            if isinstance(decision, Done):
                break
            for other in clicks:
                if other.polarity == decision.polarity:
                    dx = (other.point.x - decision.point.x) * width
                    dy = (other.point.y - decision.point.y) * height
                    assert math.hypot(dx, dy) >= GUARD * max(height, width) * 0.999
                    seen += 1
            clicks.append(decision)
    assert seen > 0


def test_own_revision_of_own_masks_does_no_harm(
    policy: CompactRevisionPolicy, segmenter: CompactSegmenter, pack: Path
) -> None:
    gains = []
    for image, instruction, component, truth in lesions(pack, 20):
        masks = [segmenter.segment(image, [Prompt(component.box)])[0].mask]
        clicks: list[Click] = []
        while len(clicks) < 4:
            decision = policy.revise(image, instruction, component, masks, clicks, seed=0).value
            if isinstance(decision, Done):
                break
            clicks.append(decision)
            prompt = Prompt(component.box, tuple(clicks), Prediction(masks[-1]))
            masks.append(segmenter.segment(image, [prompt])[0].mask)
        gains.append(mask_iou(masks[-1], truth) - mask_iou(masks[0], truth))
    assert np.mean(gains) > -0.01


@pytest.mark.parametrize("mask", ["empty", "full"])
def test_a_hopeless_mask_is_answered(policy: CompactRevisionPolicy, image: EncodedRadiograph, mask: str) -> None:
    given = np.full(image.radiograph.size, mask == "full")
    assert isinstance(policy.revise(image, OPACITY, COMPONENT, [given], (), seed=0).value, (Click, Done))


def test_a_black_picture_is_answered(policy: CompactRevisionPolicy, image: EncodedRadiograph) -> None:
    size = (300, 400)
    record = replace(image.radiograph.record, size=size)
    black = EncodedRadiograph(
        Radiograph(values=np.zeros(size, np.float32), display=np.zeros(size, np.uint8), record=record)
    )
    assert isinstance(policy.revise(black, OPACITY, COMPONENT, [BOX.mask(size)], (), seed=0).value, (Click, Done))


def test_a_users_clicks_and_drawn_mask_are_taken_as_they_are(
    policy: CompactRevisionPolicy, image: EncodedRadiograph
) -> None:
    drawn = Box(0.5, 0.1, 0.95, 0.6).mask(image.radiograph.size)
    clicks = [Click("positive", Point(0.02, 0.98)), Click("negative", Point(0.99, 0.01))]
    decision = policy.revise(image, OPACITY, COMPONENT, [drawn], clicks, seed=0).value
    assert isinstance(decision, (Click, Done))


def test_a_finding_that_no_open_data_contour_is_looked_at_all_the_same(
    policy: CompactRevisionPolicy, image: EncodedRadiograph
) -> None:
    instruction = Instruction("Segment the pneumonia", "pneumonia", ("chest",), "chest")
    component = LesionBox(0, "pneumonia", BOX, "right lung")
    mask = BOX.mask(image.radiograph.size)
    assert isinstance(policy.revise(image, instruction, component, [mask], (), seed=0).value, (Click, Done))


def test_what_cannot_be_revised_is_refused(policy: CompactRevisionPolicy, image: EncodedRadiograph) -> None:
    with pytest.raises(ValueRefused, match="mask"):
        policy.revise(image, OPACITY, COMPONENT, [], (), seed=0)
    with pytest.raises(ValueRefused, match="previous mask"):
        policy.revise(image, OPACITY, COMPONENT, [np.zeros((5, 5), bool)], (), seed=0)


def test_a_belief_is_the_networks_and_the_segmenters_by_their_shares(
    segmenter: CompactSegmenter, image: EncodedRadiograph
) -> None:
    weights = find_bundle("compact").file("revision.safetensors")
    prompt = Prompt(BOX, (), Prediction(BOX.mask(image.radiograph.size)))

    def believed(share: float, trust: float = 1.0) -> np.ndarray:
        settings = RevisionSettings(trust=trust, segmenter_share=share)
        policy = CompactRevisionPolicy.load(weights, segmenter, settings)
        return policy.belief(image, "opacity", prompt)[1].numpy()

    own, other = believed(0.0), segmenter.unaided(image, prompt)
    assert np.allclose(believed(1.0), other, atol=1e-6)
    assert np.allclose(believed(0.5), (own + other) / 2, atol=1e-5)
    assert np.allclose(believed(0.0, 0.5), (own + believed(0.0, 0.0)) / 2, atol=1e-4)


@pytest.mark.parametrize(
    "wrong", [{"least_gain": -0.1}, {"trust": 1.5}, {"segmenter_share": -0.1}, {"least_gain": math.nan}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueRefused):
        RevisionSettings(**wrong)
