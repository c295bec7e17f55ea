"""``python -m training miniature --studies N --out DIR``: every restricted set in its own layout, synthetic.

Nobody needs PhysioNet's credentials to build or test what follows: MIMIC-CXR-JPG, MIMIC-ILS, CheXpercept, Chest
ImaGenome, the reports, CheXmask, CXAS and CheXlocalize are written as their publishers lay them out, filled with drawn
chests whose anatomy, lesions, reports and labels agree, but for a known share of disagreements, missing sources and
dirty records. The same seed gives the same bytes. Studies are made and written one by one: memory does not grow with
their number, but for the directories of the two archives (under a kilobyte a study).

``DIR/truth`` lies outside the layouts: ``studies.jsonl`` says what is in every study, ``flaws.jsonl`` what is wrong
with it. Nothing here shows a patient. Not for clinical use.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import logging
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import cv2
import numpy as np

from training.curation.sources.layout import Sources, image_path, report_path
from training.curation.synthetic.picture import Picture, draw
from training.curation.synthetic.records import (
    CHEXPERT_LABELS,
    GOLD_ATTRIBUTES,
    GOLD_BOXES,
    GOLD_SCALES,
    POINTS,
    chexmask_row,
    chexpert_row,
    contours,
    gold_rows,
    gold_scale,
    instruction_record,
    mask_file,
    mask_groups,
    reviews,
    revised,
    scene_graph,
    spoiled_pair,
)
from training.curation.synthetic.study import Plan, SyntheticStudy
from training.curation.synthetic.words import report_text, sentences
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.domain.findings import FINDINGS

LOG = logging.getLogger(__name__)

FEWEST = 20
# A review of a pair that MIMIC-ILS does not have.
ORPHAN = "effusion_s99999999_positive_0"
_CHEXLOCALIZE_TASKS = {
    "cardiomegaly": "Cardiomegaly",
    "opacity": "Airspace Opacity",
    "edema": "Edema",
    "consolidation": "Consolidation",
    "atelectasis": "Atelectasis",
    "effusion": "Pleural Effusion",
}
# The number of the first patient in a split, as CheXpert counts them.
_CHEXLOCALIZE_FIRST = {"val": 64541, "test": 64741}
_OTHER_TASKS = ("Enlarged Cardiomediastinum", "Lung Lesion", "Pneumothorax", "Support Devices")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--studies", type=int, required=True, help=f"how many, from {FEWEST}")
    parser.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet, or is empty")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--side", type=int, default=None, help="the radiographs' longer side in pixels (512; 160 without)"
    )
    parser.add_argument("--flawed", type=float, default=0.02, help="share of studies with a dirty record")
    parser.add_argument(
        "--finding", action="append", choices=FINDINGS, help="one that is drawn and named; may be repeated (all seven)"
    )
    parser.add_argument(
        "--reviewed", type=float, default=None, help="share of the studies that CheXpercept covers (its own, or 200)"
    )
    parser.add_argument(
        "--elsewhere",
        type=int,
        default=0,
        help="pairs that ask for a present finding where it is not, a finding; and for each lung that has it",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--images", action="store_true", help="draw the radiographs and masks too (the default)")
    kind.add_argument("--annotations-only", action="store_true", help="no pictures: for tens of thousands of studies")


def run(arguments: argparse.Namespace) -> None:
    images = not arguments.annotations_only
    side = arguments.side or (512 if images else 160)
    findings = tuple(finding for finding in FINDINGS if finding in (arguments.finding or FINDINGS))
    plan = Plan(
        arguments.studies,
        arguments.seed,
        images,
        side,
        arguments.flawed,
        findings,
        arguments.reviewed,
        arguments.elsewhere,
    )
    write_miniature(plan, arguments.out)
    LOG.info("%d synthetic studies in %s; not for clinical use", plan.studies, arguments.out)


def write_miniature(plan: Plan, out: Path) -> None:
    """Write the miniature of ``plan`` into the folder ``out``, whole or not at all.

    Raises:
        CallError: too few studies, a picture too small to draw, or ``out`` holds something already.
    """
    if plan.studies < FEWEST:
        raise CallError(f"A miniature has at least {FEWEST} studies, not {plan.studies}.")
    if not 96 <= plan.side <= 4096:
        raise CallError(f"A side of {plan.side} pixels cannot be drawn; choose 96 to 4096.")
    if not 0 <= plan.flawed <= 1:
        raise CallError(f"--flawed is a share between 0 and 1, not {plan.flawed}.")
    if plan.reviewed_share is not None and not 0 < plan.reviewed_share < 1:
        raise CallError(f"--reviewed is a share between 0 and 1, not {plan.reviewed_share}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CallError(f"{out} is there already and not empty; choose another folder or remove it.")
    part = out.with_name(f".{out.name}.{secrets.token_hex(6)}.part")
    try:
        part.mkdir(parents=True)
        with _Writer(part, plan) as writer:
            for number, study in enumerate(plan, start=1):
                writer.add(study)
                if number % 10_000 == 0:
                    LOG.info("%d of %d studies", number, plan.studies)
            writer.finish()
        if out.exists():
            out.rmdir()
        os.rename(part, out)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be written: {problem.strerror or problem}.") from problem
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _Writer:
    """All layouts, open at once; a study is written into each."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self._plan = plan
        self._root = root
        self._places = Sources().under(root)
        self._stack = ExitStack()
        self._split: str | None = None
        self._first = True

    def __enter__(self) -> _Writer:
        places, opened = self._places, self._stack.enter_context
        for folder in (
            places.mimic_cxr_jpg, places.mimic_ils, places.chexpercept, places.scene_graphs.parent / "splits",
            places.scene_graphs.parents[1] / "gold_dataset", places.reports.parent, places.chexmask.parent,
            places.chexlocalize, self._root / "truth",
        ):  # fmt: skip
            folder.mkdir(parents=True, exist_ok=True)
        jpg = places.mimic_cxr_jpg
        self._metadata = opened(_table(places.metadata, _METADATA))
        self._official = opened(_table(places.official_split, ("dicom_id", "study_id", "subject_id", "split")))
        labels = ("subject_id", "study_id", *CHEXPERT_LABELS)
        self._labels = [
            opened(_table(jpg / f"mimic-cxr-2.0.0-{name}.csv.gz", labels)) for name in ("chexpert", "negbio")
        ]
        self._chexmask = opened(_table(places.chexmask, _CHEXMASK))
        columns = ("", "subject_id", "study_id", "dicom_id", "path", "ViewPosition")
        splits = places.scene_graphs.parent / "splits"
        self._graph_splits = {
            name: opened(_table(splits / f"{name}.csv", columns)) for name in ("train", "valid", "test")
        }
        self._avoided = opened(_table(splits / "images_to_avoid.csv", columns[1:]))
        gold = places.scene_graphs.parents[1] / "gold_dataset"
        self._gold_boxes = opened(_table(gold / "gold_bbox_coordinate_annotations_1000images.csv", GOLD_BOXES))
        self._gold_scales = opened(_table(gold / "gold_bbox_scaling_factors_original_to_224x224.csv", GOLD_SCALES))
        self._gold_stated = opened(
            _table(gold / "gold_object_attribute_with_coordinates.txt", GOLD_ATTRIBUTES, delimiter="\t")
        )
        self._gold_left = _GOLD
        sheet = (
            "key_id",
            "dicom_id",
            "target",
            "pair_id",
            "mapped_location",
            "segmentation_source",
            "plot_path",
            "optimal?",
        )
        self._sheet = opened(_table(places.chexpercept / "labeling_sheet.csv", sheet))
        self._graphs = opened(zipfile.ZipFile(places.scene_graphs, "w"))
        self._reports = opened(zipfile.ZipFile(places.reports, "w"))
        self._instructions = opened(open(places.instructions, "w", encoding="utf-8"))
        self._reviews = opened(open(places.reviews, "w", encoding="utf-8"))
        self._truth = opened(open(self._root / "truth" / "studies.jsonl", "w", encoding="utf-8"))
        self._flaws = opened(open(self._root / "truth" / "flaws.jsonl", "w", encoding="utf-8"))
        self._instructions.write("{")
        self._reviews.write("{")
        self._no_review = True
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def add(self, study: SyntheticStudy) -> None:
        said = sentences(study)
        outlines = contours(study)
        self._instruct(study, instruction_record(study, said))
        rows = 2 if study.flaw == "metadata_repeated" else 1
        height, width = study.size
        subject, number = study.subject[1:], study.study[1:]
        for _ in range(rows):
            self._metadata([
                study.dicom_id, subject, number, "CHEST (PA AND LAT)", study.view, height, width,
                21800101 + study.index % 28, f"{120000 + study.index % 5000}.0", "CHEST (PA AND LAT)",
                "postero-anterior", "Erect",
            ])  # fmt: skip
        official = "validate" if study.split == "val" else study.split
        self._official([study.dicom_id, number, subject, official])
        for labels in self._labels:
            labels(chexpert_row(study))
        graph_split = "valid" if study.split == "val" else study.split
        path = image_path(study.subject, study.study, study.dicom_id)
        self._graph_splits[graph_split]([study.index, subject, number, study.dicom_id, f"files/{path}", study.view])
        self._chexmask(chexmask_row(study))
        if study.split != "train" and self._gold_left:
            self._gild(study, outlines, path)
        if study.flaw != "report_missing":
            _into(self._reports, report_path(study.subject, study.study), report_text(study, said))
        if study.flaw != "scene_graph_missing":
            text = json.dumps(scene_graph(study, outlines))
            broken = study.flaw == "scene_graph_broken"
            _into(
                self._graphs,
                f"scene_graph/{study.dicom_id}_SceneGraph.json",
                text[: len(text) // 2] if broken else text,
            )
        entries = reviews(study)
        for key, entry in entries.items():
            self._review(key, entry)
            finding = key.split("_")[0]
            where = "; ".join(study.present.get(finding, ()))
            shown = f"plots/{key}.png"
            optimal = "X" if finding in study.present and revised(study, finding) else "O"
            self._sheet([key, study.dicom_id, finding, entry["pair_id"], where, "mimic_ils", shown, optimal])
        if self._plan.images:
            self._draw(study, entries)
        self._tell(study, outlines)

    def _gild(self, study: SyntheticStudy, outlines: dict[str, np.ndarray], path: str) -> None:
        """Into Chest ImaGenome's gold set, whose radiographs are to be avoided in training."""
        self._gold_left -= 1
        boxes, stated = gold_rows(study, outlines)
        for row in boxes:
            self._gold_boxes(row)
        for row in stated:
            self._gold_stated(row)
        self._gold_scales(gold_scale(study))
        self._avoided([study.subject[1:], study.study[1:], study.dicom_id, f"files/{path}", study.view])

    def finish(self) -> None:
        """The ends of the JSON files, and what does not hang on a study."""
        zones = {"distribution": {"answer_zones": ["left lower zone lung"]}}
        pair = ORPHAN.split("_", 1)[1]
        orphan = {
            "pair_id": pair,
            "dicom_id": "none",
            "detection_qa": {"answer": "Yes"},
            "attribute_extraction_qa": zones,
        }
        self._review(ORPHAN, orphan)
        self._flaws.write(json.dumps({"kind": "review_unknown", "key": ORPHAN}) + "\n")
        self._instructions.write("}}\n")
        self._reviews.write("}\n")
        for split in _CHEXLOCALIZE_FIRST:
            _write_chexlocalize(self._places.chexlocalize, self._plan, split)

    def _instruct(self, study: SyntheticStudy, record: Any) -> None:
        if study.split != self._split:
            self._instructions.write(("" if self._split is None else "}, ") + f'"{study.split}": {{')
            self._split, self._first = study.split, True
        for _ in range(2 if study.flaw == "study_repeated" else 1):
            self._instructions.write(("" if self._first else ", ") + f'"{study.study}": {json.dumps(record)}')
            self._first = False

    def _review(self, key: str, entry: dict[str, Any]) -> None:
        self._reviews.write(("" if self._no_review else ",\n") + f'"{key}": {json.dumps(entry)}')
        self._no_review = False

    def _tell(self, study: SyntheticStudy, outlines: dict[str, np.ndarray]) -> None:
        boxes = {
            label: [*points.min(0).round(1).tolist(), *points.max(0).round(1).tolist()]
            for label, points in outlines.items()
        }
        told = {
            "study": study.study,
            "subject": study.subject,
            "dicom_id": study.dicom_id,
            "split": study.split,
            "size": list(study.size),
            "present": study.present,
            "denied": list(study.denied),
            "reviewed": list(study.reviewed),
            "flaw": study.flaw,
            "boxes": boxes,
        }
        self._truth.write(json.dumps(told) + "\n")
        if study.flaw:
            flaw = {
                "kind": study.flaw,
                "study": study.study,
                "dicom_id": study.dicom_id,
                "finding": study.flawed_finding,
            }
            flaw["pair"] = spoiled_pair(study)
            self._flaws.write(json.dumps(flaw) + "\n")

    def _draw(self, study: SyntheticStudy, entries: dict[str, dict[str, Any]]) -> None:
        picture = draw(study.anatomy, study.lesions, np.random.default_rng((study.seed, study.index)))
        jpeg = _encoded(".jpg", picture.grey, (cv2.IMWRITE_JPEG_QUALITY, 95))
        if study.flaw != "image_missing":
            kept = jpeg[: len(jpeg) * 2 // 3] if study.flaw == "image_truncated" else jpeg
            _write(self._places.images / image_path(study.subject, study.study, study.dicom_id), kept)
        for number, (finding, part, regions) in enumerate(mask_groups(study)):
            mask = _half(_within(study, picture, finding, regions))
            if number == 0 and study.flaw == "mask_missing":
                continue
            if number == 0 and study.flaw == "mask_empty":
                mask[:] = False
            if number == 0 and study.flaw == "mask_aspect":
                mask = cv2.resize(mask.astype(np.uint8), (256, 190), interpolation=cv2.INTER_NEAREST) > 0
            path = self._places.mimic_ils / mask_file(study, finding, part)
            _write(path, _encoded(".png", mask.astype(np.uint8) * 255))
        folder = self._places.cxas / study.dicom_id
        for label, mask in picture.organs.items():
            _write(folder / f"{label}.png", _one_bit(mask))
        for key in entries:
            pictures = self._places.chexpercept / "chexpercept" / key
            _write(pictures / "detection_qa" / "xray.png", _encoded(".png", picture.grey))
            finding = key.split("_")[0]
            if finding in picture.findings:
                _draw_contours(pictures / "contour_qa", picture, finding, revised(study, finding))


def _draw_contours(folder: Path, picture: Picture, finding: str, change: str | None) -> None:
    """CheXpercept's pictures of a reviewed contour: as it is shown, and, where it is to be changed, with points on it
    and with four contours to choose from (A is the right one)."""
    mask = picture.findings[finding]
    step = max(max(mask.shape) // 40, 1)
    shown = mask if change is None else _grown(mask, -step if change == "expansion" else step)
    _write(folder / "contour_eval_qa" / "xray_with_mask.png", _encoded(".png", _tinted(picture.grey, shown)))
    if change is None or not mask.any():
        return
    pointed = _tinted(picture.grey, shown)
    outlines, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    outline = max(outlines, key=len)[:, 0]
    for number, name in enumerate(POINTS):
        x, y = outline[len(outline) * number // len(POINTS)].tolist()
        cv2.circle(pointed, (x, y), 2, (255, 0, 0), -1)
        cv2.putText(pointed, name, (x + 3, y), cv2.FONT_HERSHEY_SIMPLEX, 0.35, (255, 0, 0), 1)
    options = (mask, shown, _grown(mask, 2 * step), _grown(mask, -2 * step))
    _write(folder / "contour_revision_qa" / "xray_with_mask_and_points.png", _encoded(".png", pointed))
    for name, option in zip(POINTS, options, strict=True):
        _write(folder / "contour_revision_qa" / f"option_{name}.png", _encoded(".png", _tinted(picture.grey, option)))


def _tinted(grey: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A radiograph with a mask in yellow, uint8 ``[H, W, 3]``."""
    shown = np.repeat(grey[..., None], 3, axis=2)
    shown[mask] = shown[mask] // 2 + np.array([127, 127, 0], np.uint8)
    return shown


def _grown(mask: np.ndarray, steps: int) -> np.ndarray:
    """The mask, wider by so many pixels, or narrower where they are negative."""
    kernel = np.ones((2 * abs(steps) + 1,) * 2, np.uint8)
    change = cv2.dilate if steps > 0 else cv2.erode
    return np.asarray(change(mask.astype(np.uint8), kernel) > 0)


# Chest ImaGenome's gold set has a thousand radiographs; a miniature's, at most these.
_GOLD = 20
_METADATA = (
    "dicom_id", "subject_id", "study_id", "PerformedProcedureStepDescription", "ViewPosition", "Rows", "Columns",
    "StudyDate", "StudyTime", "ProcedureCodeSequence_CodeMeaning", "ViewCodeSequence_CodeMeaning",
    "PatientOrientationCodeSequence_CodeMeaning",
)  # fmt: skip
_CHEXMASK = (
    "dicom_id", "Dice RCA (Mean)", "Dice RCA (Max)", "Landmarks", "Left Lung", "Right Lung", "Heart", "Height", "Width",
)  # fmt: skip


@contextmanager
def _table(path: Path, columns: tuple[str, ...], delimiter: str = ",") -> Iterator[Callable[[list[Any]], Any]]:
    """A CSV file, compressed where its name says so; gives the function that writes a row."""
    with ExitStack() as stack:
        file: TextIO
        if path.suffix == ".gz":
            raw = stack.enter_context(open(path, "wb"))
            # Neither a name nor a time in the header: equal content, equal bytes.
            packed = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=5, fileobj=raw, mtime=0))
            file = stack.enter_context(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
        else:
            file = stack.enter_context(open(path, "w", encoding="utf-8", newline=""))
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        yield writer.writerow


def _into(archive: zipfile.ZipFile, name: str, text: str) -> None:
    # ZipInfo's own default time is constant, unlike writestr's.
    entry = zipfile.ZipInfo(name)
    archive.writestr(entry, text, zipfile.ZIP_DEFLATED, 1)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _encoded(kind: str, picture: np.ndarray, options: tuple[int, ...] = ()) -> bytes:
    """The bytes of a picture file; colours are given red, green, blue."""
    stored = picture if picture.ndim == 2 else picture[..., ::-1]
    done, encoded = cv2.imencode(kind, np.ascontiguousarray(stored), list(options))
    if not done:
        raise NotWritten(f"A picture of {picture.shape} cannot be stored as {kind}.")
    return encoded.tobytes()


def _one_bit(mask: np.ndarray) -> bytes:
    """CXAS stores PNG of mode "1"."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    return buffer.getvalue()


def _within(study: SyntheticStudy, picture: Picture, finding: str, regions: tuple[str, ...]) -> np.ndarray:
    """The finding's mask in the lungs of the regions, bool ``[H, W]``."""
    mask = picture.findings[finding]
    if regions == ("heart",):
        return mask
    inside = np.zeros_like(mask)
    for side in {region.split()[0] for region in regions}:
        inside |= picture.organs[f"{side} lung"]
    return mask & inside


def _half(mask: np.ndarray) -> np.ndarray:
    """MIMIC-ILS's masks are smaller than the radiographs."""
    height, width = mask.shape
    small = cv2.resize(mask.astype(np.uint8), (width // 2, height // 2), interpolation=cv2.INTER_AREA)
    return small > 0


def _write_chexlocalize(folder: Path, plan: Plan, split: str) -> None:
    """Studies of their own, as CheXlocalize's splits: masks, polygons, labels, radiographs where drawn.

    The test split has the masks of a second group of radiologists too, who draw larger or smaller and miss some.
    """
    count = min(max(plan.studies // 20, 4), 200)
    masks: dict[str, Any] = {}
    second: dict[str, Any] = {}
    polygons: dict[str, Any] = {}
    lines = []
    seed = plan.seed + 1_000_003 + list(_CHEXLOCALIZE_FIRST).index(split)
    others = Plan(max(count, FEWEST), seed, plan.images, min(plan.side, 512), 0.0)
    pictures = {"val": "CheXpert-v1.0/valid", "test": "CheXpert-v1.0/test"}[split]
    for number, study in zip(range(count), others, strict=False):
        picture = draw(study.anatomy, study.lesions, np.random.default_rng((study.seed, study.index)))
        name = f"patient{_CHEXLOCALIZE_FIRST[split] + number}_study1_view1_frontal"
        size = list(study.size)
        found = {task: picture.findings.get(finding) for finding, task in _CHEXLOCALIZE_TASKS.items()}
        found |= dict.fromkeys(_OTHER_TASKS)
        masks[name] = {task: _localized(mask, study.size) for task, mask in found.items()}
        second[name] = {
            task: _localized(_redrawn(mask, (study.seed, study.index, place)), study.size)
            for place, (task, mask) in enumerate(found.items())
        }
        polygons[name] = {"img_size": size}
        for task, mask in found.items():
            if mask is not None:
                outlines, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
                polygons[name][task] = [outline[:, 0].tolist() for outline in outlines]
        path = f"{pictures}/{name.split('_')[0]}/study1/view1_frontal.jpg"
        labels = {_CHEXLOCALIZE_TASKS.get(finding, "Pneumonia") for finding in study.present}
        labels = {"Lung Opacity" if label == "Airspace Opacity" else label for label in labels}
        lines.append(
            [path, "Unknown", 60, "Frontal", study.view, *("1.0" if t in labels else "0.0" for t in CHEXPERT_LABELS)]
        )
        if plan.images:
            _write(folder / path, _encoded(".jpg", picture.grey, (cv2.IMWRITE_JPEG_QUALITY, 95)))
    (folder / f"gt_segmentations_{split}.json").write_text(json.dumps(masks), encoding="utf-8")
    (folder / f"gt_annotations_{split}.json").write_text(json.dumps(polygons), encoding="utf-8")
    if split == "test":
        (folder / "hb_segmentations_test.json").write_text(json.dumps(second), encoding="utf-8")
    table = folder / ("valid.csv" if split == "val" else "test_labels.csv")
    with _table(table, ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT_LABELS)) as write:
        for line in lines:
            write(line)


def _localized(mask: np.ndarray | None, size: tuple[int, int]) -> dict[str, Any]:
    return {"size": list(size), "counts": rle.encode(np.zeros(size, bool) if mask is None else mask)}


def _redrawn(mask: np.ndarray | None, seed: tuple[int, ...]) -> np.ndarray | None:
    """The mask as another person draws it: up to 4 % of the image wider or narrower; one in ten is missed."""
    rng = np.random.default_rng(seed)
    if mask is None or rng.random() < 0.1:
        return None
    return _grown(mask, int(rng.integers(-4, 5) * max(mask.shape) / 100))
