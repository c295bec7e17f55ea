"""The compact bundle's first stage and guard with their shipped weights, on real radiographs."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.errors import BundleError, EngineError
from xflow_core.domain.findings import CHEST, HEART, LUNGS, ZONES, lung_of, region_band
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import GroundedLung, Verdict
from xflow_core.policies.compact import (
    BoxRule,
    CompactGuard,
    CompactInitPolicy,
    CompactSettings,
    Seen,
    boxes_in,
    cardiothoracic_ratio,
    evidence_in,
    kept_boxes,
    load_survey,
)
from xflow_core.policies.compact_network import CLASSES, MAPS
from xflow_core.radiograph.display import stretch
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph, read_radiograph


@pytest.fixture(scope="module")
def stage() -> tuple[CompactInitPolicy, CompactGuard]:
    bundle = find_bundle("compact")
    return load_survey(bundle.file("survey.safetensors"), bundle.settings["survey"])


@pytest.fixture(scope="module")
def policy(stage: tuple[CompactInitPolicy, CompactGuard]) -> CompactInitPolicy:
    return stage[0]


@pytest.fixture(scope="module")
def guard(stage: tuple[CompactInitPolicy, CompactGuard]) -> CompactGuard:
    return stage[1]


@pytest.fixture(scope="module")
def demo(rg1: Path) -> Radiograph:
    return read_radiograph(rg1)


@pytest.fixture(scope="module")
def image(demo: Radiograph) -> EncodedRadiograph:
    return EncodedRadiograph(demo)


def asking(finding: str) -> Instruction:
    region = HEART if finding == "cardiomegaly" else CHEST
    return Instruction(f"Segment the {finding}", finding, (region,), "chest")


def changed(radiograph: Radiograph, values: np.ndarray) -> EncodedRadiograph:
    """The radiograph with other pixels, as an encoded image of its own."""
    shape = (int(values.shape[0]), int(values.shape[1]))
    display = (stretch(values, float(values.min()), float(values.max())) * 255).astype(np.uint8)
    record = replace(radiograph.record, size=shape)
    return EncodedRadiograph(replace(radiograph, values=values, display=display, record=record, padding=None))


def grounded(policy: CompactInitPolicy, image: EncodedRadiograph) -> tuple[GroundedLung, ...]:
    return policy.ground_lungs(image, asking("opacity"), LUNGS, seed=0).value


def dev_files(pack: Path, source: str, *findings: str) -> list[Path]:
    """Files of the dev split that carry one of the findings, each once."""
    with (pack / "manifest.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["split"] == "dev" and r["source"].startswith(source)]
    return [pack / name for name in dict.fromkeys(row["file"] for row in rows if row["finding"] in findings)]


def encoded(path: Path) -> EncodedRadiograph:
    return EncodedRadiograph(read_radiograph(path))


# The guard.


def test_the_demo_radiograph_is_accepted(guard: CompactGuard, image: EncodedRadiograph) -> None:
    assert guard.inspect(image).refusals == ()


@pytest.mark.parametrize(
    ("quarters", "said"), [(1, "counter-clockwise"), (2, "upside down"), (3, "by 90 degrees clockwise")]
)
def test_a_turned_radiograph_is_refused_and_the_turn_is_named(
    guard: CompactGuard, demo: Radiograph, quarters: int, said: str
) -> None:
    (reason,) = guard.inspect(changed(demo, np.rot90(demo.values, quarters).copy())).refusals
    assert said in reason


def test_an_inverted_radiograph_is_refused(guard: CompactGuard, demo: Radiograph) -> None:
    (reason,) = guard.inspect(changed(demo, demo.values.max() - demo.values)).refusals
    assert "inverted" in reason


def test_a_leg_is_refused_by_its_pixels_alone(guard: CompactGuard, pack: Path) -> None:
    assert guard.inspect(encoded(pack / "dicom" / "real" / "RG3_J2KR.dcm")).refusals


def test_a_lateral_is_refused_by_its_pixels_alone(guard: CompactGuard, pack: Path) -> None:
    assert guard.inspect(encoded(pack / "dicom" / "derived" / "reference_lateral_8bit.png")).refusals


def test_noise_is_refused(guard: CompactGuard) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "PNG")
    assert guard.inspect(EncodedRadiograph(read_radiograph(stream.getvalue()))).refusals


def test_sick_and_normal_frontal_radiographs_are_accepted(guard: CompactGuard, pack: Path) -> None:
    files = dev_files(pack, "nih_chestxdet", "effusion", "consolidation")[:8]
    files += dev_files(pack, "nih_normal", "no_finding")[:4]
    assert [path.name for path in files if guard.inspect(encoded(path)).refusals] == []


# The lungs.


def test_the_lungs_of_the_demo_radiograph_lie_on_their_sides(
    policy: CompactInitPolicy, image: EncodedRadiograph
) -> None:
    right, left = grounded(policy, image)
    assert right.box.centre.x < 0.5 < left.box.centre.x
    for lung in (right, left):
        assert 0.2 < lung.box.width < 0.5 and 0.4 < lung.box.height < 0.95
        assert lung.confidence is not None and lung.confidence > 0.8


def test_lungs_are_given_in_the_order_asked(policy: CompactInitPolicy, image: EncodedRadiograph) -> None:
    asked = ("left lung", "right lung")
    found = policy.ground_lungs(image, asking("opacity"), asked, seed=0).value
    assert tuple(lung.label for lung in found) == asked


def test_lung_boxes_meet_the_radiologists_lungs(policy: CompactInitPolicy, pack: Path) -> None:
    overlaps = []
    for path in dev_files(pack, "montgomery", "lung")[:6]:
        drawn = np.asarray(Image.open(pack / "montgomery_lung_512" / "masks" / f"{path.stem}__lung.png")) > 127
        half = drawn.shape[1] // 2
        sides = (np.pad(drawn[:, :half], ((0, 0), (0, half))), np.pad(drawn[:, half:], ((0, 0), (half, 0))))
        for lung, side in zip(grounded(policy, encoded(path)), sides, strict=True):
            truth = Box.around(side)
            assert truth is not None
            overlaps.append(lung.box.iou(truth))
    assert np.mean(overlaps) > 0.88


def test_a_white_lung_still_gets_a_box_on_its_side(
    policy: CompactInitPolicy, demo: Radiograph, image: EncodedRadiograph
) -> None:
    _, left = grounded(policy, image)
    white = demo.values.copy()
    inside = left.box.grown(0.05).mask(demo.size)
    white[inside] = 0.1 * white[inside] + 0.9 * np.percentile(white, 90)
    right, placed = grounded(policy, changed(demo, white))
    assert right.box.x2 <= placed.box.x1 + 0.05
    assert placed.box.iou(left.box) > 0.5
    assert placed.confidence is not None and right.confidence is not None
    assert placed.confidence < right.confidence


def test_both_lungs_are_given_for_any_picture(policy: CompactInitPolicy, demo: Radiograph) -> None:
    ramp = np.add.outer(np.arange(300.0), np.arange(260.0)).astype(np.float32)
    assert [lung.label for lung in grounded(policy, changed(demo, ramp))] == list(LUNGS)


# The verdicts.


def test_opacities_are_seen_in_the_demo_radiograph(policy: CompactInitPolicy, image: EncodedRadiograph) -> None:
    verdicts = policy.judge(image, asking("opacity"), LUNGS, grounded(policy, image), seed=0).value
    assert any(verdict.present for verdict in verdicts)


def test_effusions_are_called_more_often_where_radiologists_drew_them(policy: CompactInitPolicy, pack: Path) -> None:
    def called(files: list[Path]) -> float:
        found = []
        for path in files:
            image = encoded(path)
            verdicts = policy.judge(image, asking("effusion"), LUNGS, grounded(policy, image), seed=0).value
            found.append(any(verdict.present for verdict in verdicts))
        return float(np.mean(found))

    drawn = called(dev_files(pack, "nih_chestxdet", "effusion")[:12])
    clear = called(dev_files(pack, "nih_chestxdet", "none_annotated")[:12])
    assert drawn >= 0.5 and drawn > clear + 0.3


def test_a_confidence_is_the_probability_of_what_is_stated(policy: CompactInitPolicy, image: EncodedRadiograph) -> None:
    settings = CompactSettings.from_json(find_bundle("compact").settings["survey"])
    lungs = grounded(policy, image)
    for finding, fitted in settings.findings.items():
        regions = (HEART,) if finding == "cardiomegaly" else LUNGS
        for verdict in policy.judge(image, asking(finding), regions, lungs, seed=0).value:
            assert verdict.confidence is not None
            probability = verdict.confidence if verdict.present else 1 - verdict.confidence
            assert verdict.present == (probability >= fitted.lung.threshold)


def test_no_lung_holds_a_consolidation_without_an_opacity(policy: CompactInitPolicy, pack: Path) -> None:
    for path in dev_files(pack, "nih_chestxdet", "consolidation", "effusion")[:12]:
        image = encoded(path)
        lungs = grounded(policy, image)
        regions = (*LUNGS, *ZONES)
        narrow, wide = (
            policy.judge(image, asking(finding), regions, lungs, seed=0).value
            for finding in ("consolidation", "opacity")
        )
        assert [n.region for n, w in zip(narrow, wide, strict=True) if n.present and not w.present] == []


# The boxes.


def test_every_present_region_is_boxed_inside_itself_even_against_the_models_opinion(
    policy: CompactInitPolicy, image: EncodedRadiograph
) -> None:
    lungs = grounded(policy, image)
    bands = {label: lung.box for label, lung in zip(LUNGS, lungs, strict=True)}
    for finding in ("effusion", "consolidation", "opacity"):
        verdicts = [Verdict(region, True) for region in (*LUNGS, *ZONES)]
        boxes = policy.localise(image, asking(finding), lungs, verdicts, seed=0).value
        assert {box.region for box in boxes} == {*LUNGS, *ZONES}
        assert [box.component for box in boxes] == list(range(len(boxes)))
        for box in boxes:
            label = lung_of(box.region)
            assert label is not None
            band = region_band(box.region, bands[label])
            common = box.box.intersect(band)
            assert common is not None and common.iou(box.box) > 0.999
            assert box.confidence is not None


def test_an_absent_region_is_not_boxed(policy: CompactInitPolicy, image: EncodedRadiograph) -> None:
    verdicts = [Verdict("right lung", False), Verdict("left lung", True)]
    boxes = policy.localise(image, asking("opacity"), grounded(policy, image), verdicts, seed=0).value
    assert {box.region for box in boxes} == {"left lung"}


def test_a_verdict_is_sought_in_the_lung_that_the_user_placed(
    policy: CompactInitPolicy, image: EncodedRadiograph
) -> None:
    mine = GroundedLung("left lung", Box(0.55, 0.05, 0.9, 0.3))
    verdict = Verdict("left lung", True)
    for box in policy.localise(image, asking("opacity"), [mine], [verdict], seed=0).value:
        assert box.box.y2 <= 0.3


# All of it.


def test_the_radiograph_goes_through_the_network_once_whatever_is_asked(
    policy: CompactInitPolicy, guard: CompactGuard, demo: Radiograph
) -> None:
    passes: list[int] = []
    hook = policy.survey.net.register_forward_hook(lambda *_: passes.append(1))
    try:
        image = EncodedRadiograph(demo)
        guard.inspect(image)
        for finding in policy.findings:
            regions = (HEART,) if finding == "cardiomegaly" else LUNGS
            lungs = grounded(policy, image)
            policy.judge(image, asking(finding), regions, lungs, seed=0)
            policy.localise(image, asking(finding), lungs, [Verdict(r, True) for r in regions], seed=0)
    finally:
        hook.remove()
    assert len(passes) == 1


def test_a_mirrored_radiograph_gives_the_mirrored_answer(
    policy: CompactInitPolicy, demo: Radiograph, image: EncodedRadiograph
) -> None:
    mirrored = changed(demo, demo.values[:, ::-1].copy())
    straight, mirror = (
        policy.judge(i, asking("opacity"), LUNGS, grounded(policy, i), seed=0).value for i in (image, mirrored)
    )
    assert straight[0].confidence == pytest.approx(mirror[1].confidence, abs=0.02)
    assert straight[1].confidence == pytest.approx(mirror[0].confidence, abs=0.02)


def test_a_finding_without_settings_is_not_answered(policy: CompactInitPolicy, image: EncodedRadiograph) -> None:
    settings = CompactSettings.from_json(find_bundle("compact").settings["survey"])
    fewer = replace(settings, findings={n: f for n, f in settings.findings.items() if n != "edema"})
    with pytest.raises(EngineError, match="edema"):
        CompactInitPolicy(policy.survey, fewer).judge(image, asking("edema"), LUNGS, grounded(policy, image), seed=0)


def test_peaks_are_two_lesions_where_the_map_sinks_between_them() -> None:
    rows, columns = np.mgrid[:128, :128].astype(np.float32)
    bumps = [np.exp(-((rows - 64) ** 2 + (columns - x) ** 2) / (2 * 12**2)) for x in (44, 84)]
    maps = np.zeros((len(MAPS), 128, 128), np.float32)
    maps[MAPS.index("opacity")] = 0.9 * np.maximum(*bumps) + 0.05
    seen = Seen(maps, np.zeros((2, len(CLASSES)), np.float32), np.zeros(3, np.float32), np.zeros(4, np.float32))
    joined = boxes_in(seen, "opacity", None, BoxRule(share=0.15, most=8))
    apart = boxes_in(seen, "opacity", None, BoxRule(share=0.15, most=8, split=0.8))
    assert len(joined) == 1 and len(apart) == 2
    assert sorted(round(box.centre.x * 128) for box, _ in apart) == [44, 84]
    fewer_than_three = boxes_in(seen, "opacity", None, BoxRule(share=0.15, most=8, split=0.8, several=3))
    assert fewer_than_three == joined


def test_boxes_beside_the_strongest_are_kept_by_their_peak_and_number() -> None:
    boxes = [(Box(0.1 * n, 0.1, 0.1 * n + 0.05, 0.2), peak) for n, peak in enumerate((0.8, 0.5, 0.3))]
    whole = [(Box(0.1, 0.1, 0.4, 0.2), 0.8)]
    assert kept_boxes(boxes, whole, BoxRule(most=3, keep=0.5)) == boxes[:2]
    assert kept_boxes(boxes, whole, BoxRule(most=1)) == boxes[:1]
    assert kept_boxes(boxes, whole, BoxRule(most=3, keep=0.5, several=3)) == whole
    assert kept_boxes(boxes, whole, BoxRule(most=3, several=3)) == boxes
    assert kept_boxes([], whole, BoxRule()) == whole


def chest_with(heart: np.ndarray) -> Seen:
    """Lungs from a tenth to nine tenths of the width, and a heart's map."""
    maps = np.zeros((len(MAPS), 128, 128), np.float32)
    maps[MAPS.index("right lung"), 20:100, 13:58] = maps[MAPS.index("left lung"), 20:100, 70:115] = 1
    maps[MAPS.index("cardiomegaly")] = heart
    return Seen(maps, np.zeros((2, len(CLASSES)), np.float32), np.zeros(3, np.float32), np.zeros(4, np.float32))


def test_doubt_beside_the_heart_is_no_width_of_it() -> None:
    heart = np.zeros((128, 128), np.float32)
    heart[60:100, 45:90] = 0.95
    assert cardiothoracic_ratio(chest_with(heart)) == pytest.approx(45 / 102, abs=0.02)
    heart[70:100, 90:112] = 0.6
    assert cardiothoracic_ratio(chest_with(heart)) == pytest.approx(67 / 102, abs=0.02)
    assert cardiothoracic_ratio(chest_with(heart), 0.8) == pytest.approx(45 / 102, abs=0.02)
    wide, narrow = (evidence_in(chest_with(heart), "cardiomegaly", HEART, None, 0.0, v) for v in (0.5, 0.8))
    assert wide > 0 > narrow


def test_a_heart_that_is_not_seen_or_fills_the_chest_is_not_measured() -> None:
    heart = np.zeros((128, 128), np.float32)
    assert cardiothoracic_ratio(chest_with(heart)) is None
    heart[60:100, 15:112] = 0.95
    assert cardiothoracic_ratio(chest_with(heart)) is None
    assert evidence_in(chest_with(heart), "cardiomegaly", HEART, None) < 0


def test_settings_come_back_as_they_were_written_and_older_ones_are_read() -> None:
    written = dict(find_bundle("compact").settings["survey"])
    settings = replace(CompactSettings.from_json(written), heart_level=0.7)
    assert CompactSettings.from_json(settings.to_json()) == settings
    written.pop("heart_level", None)
    assert CompactSettings.from_json(written).heart_level == 0.5
    with pytest.raises(BundleError, match="heart_level"):
        replace(settings, heart_level=1.0)


def test_settings_that_make_no_sense_are_refused() -> None:
    settings = find_bundle("compact").settings["survey"]
    assert CompactSettings.from_json(settings).to_json() == settings
    for broken in (
        {},
        {**settings, "findings": {"pneumothorax": {}}},
        {**settings, "guard": {"not_frontal": 0.5, "x": 1}},
    ):
        with pytest.raises(BundleError):
            CompactSettings.from_json(broken)
