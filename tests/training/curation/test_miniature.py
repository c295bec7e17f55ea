"""The miniature: every set's layout, chests whose anatomy, lesions, reports and labels agree."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

from training.__main__ import main
from training.curation.miniature import write_miniature
from training.curation.report_parsing import RuleParser
from training.curation.synthetic.anatomy import APEX, make_anatomy
from training.curation.synthetic.lesions import BANDS, Lesion
from training.curation.synthetic.picture import draw
from training.curation.synthetic.study import DIRTY, DIRTY_IMAGES, FLAWS, Plan
from training.curation.synthetic.words import report_text, sentences
from training.curation.verdicts import verdicts_of
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import CHEST, FINDINGS, HEART, LUNGS

if TYPE_CHECKING:
    from conftest import Miniature

LESIONS = {
    "effusion": Lesion("effusion", "left lung", ("base",)),
    "consolidation": Lesion("consolidation", "right lung", ("mid",)),
    "pneumonia": Lesion("pneumonia", "left lung", ("mid", "base")),
    "atelectasis": Lesion("atelectasis", "right lung", ("base",)),
    "opacity": Lesion("opacity", "left lung", ("mid",)),
    "edema": Lesion("edema", "right lung", BANDS),
}


def digest(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        write_miniature(Plan(20, seed, images=True, side=96, flawed=0.5), tmp_path / name)
    one, again, other = (digest(tmp_path / name) for name in ("one", "again", "other"))
    assert one == again
    ils = "mimic-cxr-ext-ils/1.0.0/mimic_ils_instruction_answer.json"
    assert one[ils] != other[ils]


def test_every_layout_is_the_publishers(drawn: Miniature) -> None:
    sources = drawn.sources
    study = next(entry for entry in drawn.studies if entry["flaw"] is None and entry["reviewed"] and entry["present"])
    subject, name, dicom_id = study["subject"], study["study"], study["dicom_id"]
    assert (sources.images / subject[:3] / subject / name / f"{dicom_id}.jpg").read_bytes()[:2] == b"\xff\xd8"
    with gzip.open(sources.metadata, "rt") as file:
        row = next(row for row in csv.DictReader(file) if row["dicom_id"] == dicom_id)
    assert (int(row["Rows"]), int(row["Columns"])) == tuple(study["size"])
    assert row["subject_id"] == subject[1:]
    with gzip.open(sources.official_split, "rt") as file:
        assert {row["split"] for row in csv.DictReader(file)} == {"train", "validate", "test"}
    record = json.loads(sources.instructions.read_text())["train"][name]
    assert record["image_path"] == f"{subject[:3]}/{subject}/{name}/{dicom_id}.jpg"
    pair = record["instruction_answer_pairs"]["positive_pairs"][0]
    assert pair["seg_mask_path"].startswith(f"lesion_mask/{name}/{name}_{pair['target']}_")
    assert set(np.unique(cv2.imread(str(sources.mimic_ils / pair["seg_mask_path"]), cv2.IMREAD_GRAYSCALE))) <= {0, 255}
    reviews = json.loads(sources.reviews.read_text())
    key = next(key for key in reviews if name in key)
    assert reviews[key]["dicom_id"] == dicom_id
    assert (sources.chexpercept / "chexpercept" / key / "detection_qa" / "xray.png").is_file()
    with zipfile.ZipFile(sources.scene_graphs) as archive:
        graph = json.loads(archive.read(f"scene_graph/{dicom_id}_SceneGraph.json"))
    assert {entry["bbox_name"] for entry in graph["objects"]} >= {
        "left lung",
        "right mid lung zone",
        "cardiac silhouette",
    }
    with zipfile.ZipFile(sources.reports) as archive:
        assert b"FINDINGS" in archive.read(f"files/{subject[:3]}/{subject}/{name}.txt")
    for organ in (*LUNGS, "heart"):
        assert (sources.cxas / dicom_id / f"{organ}.png").is_file()
    assert {path.name for path in sources.chexlocalize.glob("*.json")} == {
        "gt_segmentations_val.json",
        "gt_annotations_val.json",
        "gt_segmentations_test.json",
        "gt_annotations_test.json",
        "hb_segmentations_test.json",
    }


def test_chexpercepts_contours_are_shown_as_they_are_or_to_be_changed(drawn: Miniature) -> None:
    reviews, seen = json.loads(drawn.sources.reviews.read_text()), set()
    for key, entry in reviews.items():
        contour = entry.get("contour_qa")
        if contour is None or not (drawn.sources.chexpercept / "chexpercept" / key).is_dir():
            continue
        folder = drawn.sources.chexpercept
        shown = cv2.imread(str(folder / contour["contour_eval_qa"]["relative_path"]))
        assert shown is not None and contour["no_deformation"] == (contour["contour_eval_qa"]["answer"] == "Yes")
        if contour["no_deformation"]:
            assert not (folder / "chexpercept" / key / "contour_qa" / "contour_revision_qa").exists()
            continue
        asked = {name: contour[f"contour_revision_qa_{name}"] for name in ("expansion", "contraction")}
        (change,) = (name for name, question in asked.items() if question["answer"] != "None of the above")
        result = contour["contour_revision_qa_revision_result"]
        pictures = [cv2.imread(str(folder / option["relative_path"])) for option in result["answer_options"]]
        right, before = (int((picture[..., 0] < picture[..., 1]).sum()) for picture in (pictures[0], shown))
        assert len(pictures) == 4 and (right > before) == (change == "expansion")
        assert (folder / "chexpercept" / key / "contour_qa/contour_revision_qa/xray_with_mask_and_points.png").is_file()
        seen.add(change)
    assert seen == {"expansion", "contraction"}


def test_chest_imagenomes_gold_tables_are_of_radiographs_to_avoid(annotated: Miniature) -> None:
    silver = annotated.sources.scene_graphs.parent
    gold = silver.parent / "gold_dataset"
    with open(silver / "splits" / "images_to_avoid.csv") as file:
        avoided = {row["dicom_id"] for row in csv.DictReader(file)}
    truth = {study["dicom_id"]: study for study in annotated.studies}
    assert 2 < len(avoided) <= 20 and all(truth[name]["split"] != "train" for name in avoided)
    with open(gold / "gold_bbox_coordinate_annotations_1000images.csv") as file:
        boxes = list(csv.DictReader(file))
    with open(gold / "gold_object_attribute_with_coordinates.txt") as file:
        stated = list(csv.DictReader(file, delimiter="\t"))
    with open(gold / "gold_bbox_scaling_factors_original_to_224x224.csv") as file:
        scales = {row["image_id"]: row for row in csv.DictReader(file)}
    assert {row["image_id"] for row in boxes} == set(scales) == {f"{name}.dcm" for name in avoided}
    assert {row["context"] for row in stated} <= {"yes", "no"} and stated
    for row in boxes:
        scale = scales[row["image_id"]]
        for side, small, border in (("original_x1", "x1", "left"), ("original_y1", "y1", "top")):
            assert abs(float(row[side]) * float(scale["ratio"]) + float(scale[border]) - float(row[small])) <= 1.1


def test_a_patient_stays_in_one_split(annotated: Miniature) -> None:
    splits = defaultdict(set)
    for study in annotated.studies:
        splits[study["subject"]].add(study["split"])
    assert all(len(names) == 1 for names in splits.values())
    assert len(splits) < len(annotated.studies)
    assert len({study["study"] for study in annotated.studies}) == len(annotated.studies) == annotated.plan.studies


def test_every_finding_and_every_flaw_comes_up(annotated: Miniature, drawn: Miniature) -> None:
    assert {finding for study in annotated.studies for finding in study["present"]} == set(FINDINGS)
    told = {flaw["kind"] for flaw in annotated.flaws}
    assert told == (set(FLAWS) - set(DIRTY_IMAGES)) | {"review_unknown"}
    assert {flaw["kind"] for flaw in drawn.flaws} >= {*DIRTY, *DIRTY_IMAGES}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("finding", LESIONS)
def test_a_lesion_fills_the_zones_that_it_names_and_no_other(finding: str, seed: int) -> None:
    from random import Random

    lesion = LESIONS[finding]
    anatomy = make_anatomy(Random(seed), (180, 150), False)
    picture = draw(anatomy, [lesion], np.random.default_rng(seed))
    mask = picture.findings[finding]
    _, y = anatomy.frame.grid()
    third = (y - APEX) / anatomy.lungs[lesion.lung].height * 3
    for number, band in enumerate(BANDS):
        inside = mask & (third >= number) & (third < number + 1)
        assert inside.any() == (band in lesion.bands), f"{band} of {lesion.bands}"
    assert not (mask & ~picture.organs[lesion.lung]).any()
    assert mask.sum() > 0.01 * picture.organs[lesion.lung].sum()


@pytest.mark.parametrize("finding", LESIONS)
def test_a_lesion_is_brighter_than_the_same_place_without_it(finding: str) -> None:
    from random import Random

    anatomy = make_anatomy(Random(1), (180, 150), False)
    sick = draw(anatomy, [LESIONS[finding]], np.random.default_rng(1))
    well = draw(anatomy, [], np.random.default_rng(1))
    where = sick.findings[finding]
    assert sick.grey[where].mean() > well.grey[where].mean() + 12


def test_a_big_heart_is_more_than_half_as_wide_as_the_chest() -> None:
    from random import Random

    for seed in range(12):
        for big in (False, True):
            anatomy = make_anatomy(Random(seed), (256, 212), big)
            heart, right, left = (anatomy.contour(label)[:, 0] for label in ("heart", *LUNGS))
            ratio = np.ptp(heart) / (left.max() - right.min())
            assert ratio > 0.53 if big else ratio < 0.5, (seed, big, ratio)


def test_the_right_lung_is_on_the_images_left() -> None:
    from random import Random

    anatomy = make_anatomy(Random(0), (256, 212), False)
    assert anatomy.contour("right lung")[:, 0].max() < anatomy.contour("left lung")[:, 0].min()


def test_a_report_says_what_is_there() -> None:
    parser = RuleParser()
    for study in Plan(60, seed=9, images=False, side=96, flawed=0.0):
        if study.flaw is not None:
            continue
        stated = parser.parse(report_text(study, sentences(study))).stated
        assert stated is not None
        for finding, regions in study.present.items():
            assert stated[finding][0] == set(regions)
        for finding in study.denied:
            assert stated[finding] == ({*()}, {HEART} if finding == "cardiomegaly" else {CHEST})
            assert not any(verdicts_of(finding, *stated[finding]).values())


def test_what_cannot_be_made_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(CallError, match="not empty"):
        write_miniature(Plan(20), tmp_path / "full")
    with pytest.raises(CallError, match="at least 20"):
        write_miniature(Plan(3), tmp_path / "few")
    with pytest.raises(CallError, match="side of 20 pixels"):
        write_miniature(Plan(20, side=20), tmp_path / "tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_command_writes_annotations_alone(tmp_path: Path) -> None:
    out = tmp_path / "sets"
    main(["miniature", "--studies", "20", "--annotations-only", "--side", "96", "--out", str(out)])
    assert not (out / "cxas").exists()
    assert not list(out.rglob("*.jpg"))
    assert (out / "truth" / "flaws.jsonl").is_file()
