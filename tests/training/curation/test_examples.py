"""The examples: varied questions, the targets' parts, Algorithm 1's trajectories, D_eval as an evaluation set."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from brush import Brush
from hypothesis import given, settings
from hypothesis import strategies as st

from training.__main__ import main
from training.curation.components import components_of, on_the_side
from training.curation.instructions import write_instructions
from training.curation.oracle import depths, oracle_click, revise
from training.curation.paper import RevisionSettings, read_settings
from training.curation.pictures import examples
from training.curation.sources.problems import Problems
from training.curation.templates import phrased
from training.evaluation.rows import read_rows
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import CHEST, FINDINGS, HEART, LUNGS, ZONES
from xflow_core.domain.geometry import Box, Point, mask_iou
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import Click

if TYPE_CHECKING:
    from conftest import Miniature, Revised

REVISION = RevisionSettings(clicks=4, guard_px=25, jitter=0.1, starts=3)


# Sentences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finding", FINDINGS)
def test_xflow_reads_every_phrasing_as_it_was_meant(finding: str) -> None:
    places: list[tuple[str, ...]] = [(HEART,)]
    if finding != "cardiomegaly":
        places = [(CHEST,), *((lung,) for lung in LUNGS), *((zone,) for zone in ZONES), (ZONES[2], ZONES[3])]
    for regions in places:
        texts = {phrased(finding, regions, f"s{number}") for number in range(40)}
        assert len(texts) == 6
        for text in texts:
            (read,) = parse_instruction(text)
            assert (read.finding, read.regions, read.negated) == (finding, regions, False), text


def test_a_phrasing_is_the_studys_own() -> None:
    assert phrased("edema", (CHEST,), "s1") == phrased("edema", (CHEST,), "s1")


# Algorithm 1 -----------------------------------------------------------------------------------------------------

masks = st.tuples(st.integers(3, 12), st.integers(3, 12)).flatmap(
    lambda size: st.lists(st.booleans(), min_size=size[0] * size[1], max_size=size[0] * size[1]).map(
        lambda bits: np.array(bits).reshape(size)
    )
)


def brute_depths(region: np.ndarray) -> np.ndarray:
    """Each pixel's distance to every pixel outside, a frame of which lies around the image."""
    outside = np.argwhere(~np.pad(region, 1)) - 1
    found = np.zeros(region.shape)
    for row, column in np.argwhere(region):
        found[row, column] = np.sqrt(((outside - (row, column)) ** 2).sum(1).min())
    return found


@given(masks)
@settings(max_examples=80, deadline=None)
def test_depths_are_those_of_a_brute_force(region: np.ndarray) -> None:
    assert np.allclose(depths(region), brute_depths(region), atol=1e-4)


@given(masks, st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_the_oracle_clicks_the_deepest_point_of_the_larger_error(truth: np.ndarray, seed: int) -> None:
    mask = np.random.default_rng(seed).random(truth.shape) < 0.5
    click = oracle_click(mask, truth, (), guard_px=0)
    missed, extra = truth & ~mask, mask & ~truth
    if not missed.any() and not extra.any():
        assert click is None
        return
    assert click is not None
    positive = missed.sum() >= extra.sum()
    assert click.polarity == ("positive" if positive else "negative")
    depth = brute_depths(missed if positive else extra)
    assert depth[click.point.pixel(truth.shape)] == pytest.approx(depth.max(), abs=1e-4)


@given(masks, st.integers(0, 2**32 - 1), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_four_clicks_are_those_of_algorithm_1(truth: np.ndarray, seed: int, guard: int) -> None:
    """Against a search over all pixels: the deepest of the larger region that keeps the guard, else of the other."""
    mask, size = np.random.default_rng(seed).random(truth.shape) < 0.5, truth.shape
    clicks: list[Click] = []
    for _ in range(4):
        click = oracle_click(mask, truth, clicks, guard_px=guard * 1024 / max(size))
        regions = {"positive": truth & ~mask, "negative": mask & ~truth}
        larger = "positive" if regions["positive"].sum() >= regions["negative"].sum() else "negative"
        wanted = None
        for polarity in (larger, *(set(regions) - {larger})):
            depth = brute_depths(regions[polarity])
            for row, column in np.ndindex(size):
                for other in clicks:
                    if (
                        other.polarity == polarity
                        and np.hypot(*np.subtract((row, column), other.point.pixel(size))) < guard
                    ):
                        depth[row, column] = 0
            if depth.max() > 0:
                wanted = polarity, depth
                break
        assert (click is None) == (wanted is None)
        if click is None or wanted is None:
            return
        assert click.polarity == wanted[0]
        assert wanted[1][click.point.pixel(size)] == pytest.approx(wanted[1].max(), abs=1e-4)
        clicks.append(click)


def test_clicks_of_one_polarity_stay_apart_in_the_1024_pixel_frame() -> None:
    truth = np.zeros((512, 512), bool)
    truth[100:200, 100:400] = True
    empty = np.zeros_like(truth)
    clicks: list[Click] = []
    for _ in range(12):
        click = oracle_click(empty, truth, clicks, guard_px=25)
        assert click is not None
        clicks.append(click)
    places = np.array([click.point.pixel(truth.shape) for click in clicks])
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    assert apart[~np.eye(len(places), dtype=bool)].min() >= 12.5
    # An earlier click of the other polarity does not stand in the way.
    first = oracle_click(empty, truth, [], guard_px=25)
    assert first is not None
    assert oracle_click(empty, truth, [Click("negative", first.point)], guard_px=25) == first


def test_where_the_guard_leaves_no_place_the_smaller_error_is_corrected() -> None:
    truth, mask = np.zeros((2, 64, 64), bool)
    truth[10:14, 10:14] = True
    mask[50:52, 50:52] = True
    earlier = [Click("positive", Point.of_pixel(12, 12, truth.shape))]
    click = oracle_click(mask, truth, earlier, guard_px=200)
    assert click is not None and click.polarity == "negative"
    assert oracle_click(mask, truth, [*earlier, Click("negative", Point.of_pixel(50, 50, mask.shape))], 200) is None


def component() -> np.ndarray:
    rows, columns = np.ogrid[:96, :96]
    return ((rows - 40) / 18) ** 2 + ((columns - 50) / 26) ** 2 <= 1


def test_a_trajectory_goes_from_the_perturbed_box_to_a_better_mask() -> None:
    truth = component()
    (made,) = revise(Brush(), None, [truth], REVISION, [np.random.default_rng(0)])  # type: ignore[arg-type]
    assert made is not None
    assert len(made.masks) == len(made.clicks) + 1 == len(made.ious) <= 5
    assert made.ious[-1] > made.ious[0]
    true = Box.around(truth)
    assert true is not None and made.box != true
    for got, wanted, side in zip(made.box.to_json(), true.to_json(), (true.width, true.height) * 2, strict=True):
        assert abs(got - wanted) <= 0.1 * side + 1e-9
    for before, click, iou in zip(made.masks, made.clicks, made.ious, strict=False):
        row, column = click.point.pixel(truth.shape)
        assert truth[row, column] == (click.polarity == "positive") != before[row, column]
        assert iou == mask_iou(before, truth)


def test_a_trajectory_that_does_not_improve_is_not_shown() -> None:
    rngs = [np.random.default_rng(0)]
    assert revise(Brush(deaf=True), None, [component()], REVISION, rngs) == [None]  # type: ignore[arg-type]


def test_or_it_shows_that_the_mask_is_to_be_left_as_it_is() -> None:
    rngs = [np.random.default_rng(0)]
    kept = replace(REVISION, left_alone=1.0)
    (made,) = revise(Brush(deaf=True), None, [component()], kept, rngs)  # type: ignore[arg-type]
    assert made is not None
    assert made.clicks == () and len(made.masks) == len(made.ious) == 1
    # One that improves is the same either way.
    (dropped,), (shown,) = (
        revise(Brush(), None, [component()], each, [np.random.default_rng(0)])  # type: ignore[arg-type]
        for each in (REVISION, kept)
    )
    assert dropped is not None and shown is not None and dropped.clicks == shown.clicks != ()


def test_a_trajectory_may_end_where_its_later_clicks_add_too_little() -> None:
    def shown(**changed: float) -> Any:
        asked = replace(REVISION, **changed)
        (made,) = revise(Brush(), None, [component()], asked, [np.random.default_rng(0)])  # type: ignore[arg-type]
        return made

    whole = shown()
    best = max(whole.ious)
    # Just too much for the first click that is left off, just enough for the last one that is shown.
    end = next(end for end, iou in enumerate(whole.ious) if best - iou < 0.05)
    cut = shown(least_gain=0.05)
    assert 0 < end < len(whole.clicks)
    assert (cut.clicks, cut.ious) == (whole.clicks[:end], whole.ious[: end + 1])
    assert len(cut.masks) == end + 1 and cut.ious[-1] > best - 0.05 >= cut.ious[-2]
    # One whose clicks all together add too little does not improve.
    assert shown(least_gain=1.0) is None
    left = shown(least_gain=1.0, left_alone=1.0)
    assert left.clicks == () and left.ious == whole.ious[:1]


def test_components_are_revised_side_by_side_as_they_would_be_alone() -> None:
    truths = [component(), np.roll(component(), (25, -20), (0, 1)), component()[::-1]]
    brush = Brush()
    together = revise(brush, None, truths, REVISION, [np.random.default_rng(k) for k in range(3)])  # type: ignore[arg-type]
    assert len(brush.asked) <= 1 + REVISION.clicks and brush.asked[0] == 3
    for number, (truth, made) in enumerate(zip(truths, together, strict=True)):
        rngs = [np.random.default_rng(number)]
        (alone,) = revise(Brush(), None, [truth], REVISION, rngs)  # type: ignore[arg-type]
        assert made is not None and alone is not None
        assert (made.box, made.clicks, made.ious) == (alone.box, alone.clicks, alone.ious)


# Masks -----------------------------------------------------------------------------------------------------------


def test_specks_are_no_components() -> None:
    mask = np.zeros((200, 200), bool)
    mask[10:60, 10:60] = mask[100:120, 100:120] = True
    mask[150, 150] = True
    mask[180:182, 180], mask[182, 181] = True, True  # one piece by its corner, under a ten-thousandth of the image
    assert [piece.sum() for piece in components_of(mask)] == [2500, 400]


def test_a_question_about_one_lung_sees_its_side_alone() -> None:
    lungs = {"right lung": Box(0.1, 0.1, 0.45, 0.9), "left lung": Box(0.55, 0.1, 0.9, 0.9)}
    mask = np.ones((10, 20), bool)
    assert on_the_side(mask, ("right lung base",), lungs)[:, :10].all()
    assert not on_the_side(mask, ("right lung base",), lungs)[:, 10:].any()
    for regions in ((CHEST,), (HEART,), LUNGS):
        assert on_the_side(mask, regions, lungs).all()


# The stages on the miniature -------------------------------------------------------------------------------------


def rows_of(folder: Path, split: str) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob(f"{split}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_an_instructions_row_is_what_a_target_is_made_of(drawn: Miniature, instructions: Path) -> None:
    truth = {study["study"]: study for study in drawn.studies}
    checked: Counter[str] = Counter()
    for split in ("sft", "rl"):
        rows = rows_of(instructions, split)
        assert len({row["id"] for row in rows}) == len(rows) > 20
        for row in rows:
            study = truth[row["study"]]
            (read,) = parse_instruction(row["instruction"])
            assert (read.finding, list(read.regions), read.level) == (row["finding"], row["regions"], row["level"])
            true = set(study["present"].get(row["finding"], ()))
            sides = {region.split()[0] for region in row["regions"]} & {"right", "left"} or {"right", "left"}
            assert {label.split()[0] for label in row["grounded"]} == sides
            assert [lung["label"] for lung in row["lungs"]] == list(LUNGS) and row["lung_source"] == "chexmask"
            for verdict in row["verdicts"]:
                inside = {region for region in true if _within(region, verdict["region"])}
                assert verdict["present"] == bool(inside), row["id"]
            assert bool(row["boxes"]) == row["present"] == any(v["present"] for v in row["verdicts"])
            if row["present"] and row["level"] == "lung":
                side = {lung["label"]: lung["box"] for lung in row["lungs"]}[row["regions"][0]]
                for x1, y1, x2, y2 in row["boxes"]:
                    assert side[0] - 0.03 <= x1 < x2 <= side[2] + 0.03 and side[1] - 0.03 <= y1 < y2 <= side[3] + 0.03
            checked[f"{row['level']} {row['present']}"] += 1
    assert min(checked.values()) > 2 and len(checked) == 6


def _within(region: str, asked: str) -> bool:
    return asked in ("chest", region) or (asked in LUNGS and region.split()[0] == asked.split()[0])


def test_what_is_dropped_is_counted_by_reason(drawn: Miniature, instructions: Path) -> None:
    manifest = json.loads((instructions / "manifest.json").read_text())
    dropped = {reason: count for reason, count in manifest["counts"]["sft"].items() if reason.startswith("dropped")}
    assert set(dropped) == {"dropped: no lung boxes", "dropped: mask unusable"}
    assert manifest["problems"].keys() >= {"mask_missing", "mask_empty", "mask_aspect", "low_quality", "rle_odd"}
    assert manifest["counts"]["sft"]["rows"] == len(rows_of(instructions, "sft"))


def test_a_stage_shows_some_of_its_rows(drawn: Miniature, instructions: Path) -> None:
    sheet = cv2.imread(str(instructions / "examples.png"))
    assert sheet.shape[1] == 4 * 320 and sheet.std() > 20
    rows = examples(instructions, ("sft", "rl"))
    assert len({row["finding"] for row in rows}) >= 5 and len({row["study"] for row in rows}) == len(rows) == 12
    assert Counter((row["level"], row["present"]) for row in rows) == dict.fromkeys(
        ((level, present) for level in ("chest", "lung", "zone") for present in (True, False)), 2
    )


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    drawn: Miniature, splits: Path, instructions: Path, tmp_path: Path
) -> None:
    from shutil import copytree

    out = tmp_path / "again"
    copytree(instructions, out)
    before = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    (out / "sft-00000.parquet").unlink()
    (out / "manifest.json").unlink()
    main(["instructions", "--data", str(drawn.root), "--splits", str(splits), "--out", str(out)])
    assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == before
    other = replace(read_settings(), revision=REVISION)
    with pytest.raises(CallError, match="of another run"):
        write_instructions(drawn.sources, splits, out, other, Problems(), masks=True)


@pytest.mark.parametrize("source", ["cxas", "chexmask"])
def test_lungs_come_from_the_source_that_is_named(drawn: Miniature, splits: Path, tmp_path: Path, source: str) -> None:
    chosen = read_settings()
    chosen = replace(chosen, lungs=replace(chosen.lungs, source=source))
    report = write_instructions(drawn.sources, splits, tmp_path, chosen, Problems(), masks=False)
    assert report["lung_source"] == source
    rows = rows_of(tmp_path, "sft")
    assert {row["lung_source"] for row in rows} == {source}
    assert all((row["boxes"] is None) == row["present"] for row in rows)
    # CXAS has every radiograph; CheXmask's table has flaws.
    assert ("dropped: no lung boxes" in report["counts"]["sft"]) == (source == "chexmask")


def test_trajectories_are_made_component_by_component(instructions: Path, revised: Revised) -> None:
    made, asked = rows_of(revised.folder, "sft"), rows_of(instructions, "sft")
    components = sum(len(row["boxes"]) for row in asked if row["present"])
    unreadable = revised.report["counts"]["sft"].get("dropped: radiograph unreadable", 0)
    assert 10 < len(made) <= components
    assert unreadable > 0  # the drawn miniature has broken downloads
    for row in made:
        size = tuple(row["size"])
        truth = rle.decode(row["truth"], size)
        ious = [mask_iou(rle.decode(mask, size), truth) for mask in row["masks"]]
        assert ious == pytest.approx(row["ious"], abs=1e-6) and len(row["clicks"]) + 1 == len(ious) <= 5
        assert not row["clicks"] or ious[-1] > ious[0]
    assert max(len(row["clicks"]) for row in made) == 4
    starts = rows_of(revised.folder, "rl")
    assert starts and all(len(row["masks"]) == 1 and not row["clicks"] for row in starts)
    per_component = Counter(row["id"].rsplit("_", 1)[0] for row in starts)
    assert set(per_component.values()) == {revised.starts}
    assert len({tuple(row["box"]) for row in starts}) > len(per_component)


def test_a_radiograph_is_encoded_once_and_asked_about_once_a_turn(revised: Revised) -> None:
    made = {split: rows_of(revised.folder, split) for split in ("sft", "sft_val", "rl")}
    assert set(revised.brush.encoded.values()) == {1}
    in_rl = Counter(row["image"] for row in made["rl"])
    radiographs = len(revised.brush.encoded)
    assert len(revised.brush.asked) <= 5 * (radiographs - len(in_rl)) + len(in_rl) < sum(map(len, made.values()))
    # All components and starting states of a radiograph of D_RL, whatever the question, in one call.
    assert revised.brush.asked[-len(in_rl) :] == list(in_rl.values()) and max(in_rl.values()) > revised.starts


def test_d_eval_is_an_evaluation_set(drawn: Miniature, splits: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    main(["evaluation-set", "--data", str(drawn.root), "--splits", str(splits), "--out", str(out)])
    rows = read_rows(out / "set.jsonl")
    truth = {study["dicom_id"]: study for study in drawn.studies}
    asked = [row for row in pq.read_table(splits / "questions.parquet").to_pylist() if row["split"] == "eval"]
    assert {row.id for row in rows} == {row["id"] for row in asked}
    assert any(row.mask for row in rows) and any(row.mask is None for row in rows)
    for row in rows:
        study = truth[row.image.stem]
        assert row.image.is_file()
        assert row.patient is not None and row.patient in str(row.image)
        mask = row.truth(tuple(study["size"]))
        assert mask.any() == (row.mask is not None)
        if row.mask is not None and row.instruction.level != "chest" and row.lungs is not None:
            (side,) = {region.split()[0] for region in row.instruction.regions}
            box = Box.around(mask)
            assert box is not None and box.intersect(row.lungs[f"{side} lung"]) is not None
