"""A synthetic study as each set records it, flaws included. Records only; :mod:`training.curation.miniature` writes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from training.curation.sources.layout import image_path
from training.curation.sources.regions import thirds_of
from xflow_core.domain.findings import LUNGS

from .lesions import BANDS
from .picture import filled
from .study import Build, SyntheticStudy, lungs_of, other_side
from .words import Sentence, listed

CHEXPERT_LABELS = (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture", "Lung Lesion",
    "Lung Opacity", "No Finding", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices",
)  # fmt: skip
_CHEXPERT = {
    "atelectasis": "Atelectasis",
    "cardiomegaly": "Cardiomegaly",
    "consolidation": "Consolidation",
    "edema": "Edema",
    "opacity": "Lung Opacity",
    "effusion": "Pleural Effusion",
    "pneumonia": "Pneumonia",
}
# Chest ImaGenome's words.
_ATTRIBUTES = {
    "cardiomegaly": ("anatomicalfinding", "enlarged cardiac silhouette"),
    "pneumonia": ("disease", "pneumonia"),
    "atelectasis": ("anatomicalfinding", "atelectasis"),
    "opacity": ("anatomicalfinding", "lung opacity"),
    "consolidation": ("anatomicalfinding", "consolidation"),
    "edema": ("anatomicalfinding", "pulmonary edema/hazy opacity"),
    "effusion": ("anatomicalfinding", "pleural effusion"),
}
# CheXpercept's names for the points, and for the contours, to choose from.
POINTS = ("A", "B", "C", "D")
_ZONE_OBJECTS = {"upper zone lung": "upper lung zone", "mid zone lung": "mid lung zone", "lung base": "lower lung zone"}
_CHEXPERCEPT_ZONES = {
    "upper zone lung": "upper zone lung",
    "mid zone lung": "mid zone lung",
    "lung base": "lower zone lung",
}


def mask_groups(study: SyntheticStudy) -> list[tuple[str, int, tuple[str, ...]]]:
    """The lesion masks of a study as MIMIC-ILS numbers them: (finding, number, regions). Number 0 is the whole finding;
    one that lies in both lungs has a mask for each of them too."""
    groups = []
    for finding, regions in study.present.items():
        groups.append((finding, 0, regions))
        lungs = lungs_of(regions)
        if len(lungs) == 2:
            for number, lung in enumerate(lungs, start=1):
                groups.append((finding, number, tuple(r for r in regions if r.startswith(lung.split()[0]))))
    return groups


def _elsewhere(study: SyntheticStudy, finding: str) -> list[str]:
    """Lungs and zones that a present finding keeps out of, as many as the study's records name."""
    held = study.present[finding]
    if finding == "cardiomegaly":
        return []
    free = [lung for lung in LUNGS if lung not in lungs_of(held)]
    free += [zone for lung in LUNGS for zone in thirds_of(lung) if zone not in held]
    return study.random(f"elsewhere/{finding}").sample(free, min(study.elsewhere, len(free)))


def mask_file(study: SyntheticStudy, finding: str, number: int) -> str:
    return f"lesion_mask/{study.study}/{study.study}_{finding}_{number}.png"


def instruction_record(study: SyntheticStudy, said: list[Sentence]) -> Any:
    """The study's value in MIMIC-ILS's JSON."""
    if study.flaw == "study_malformed":
        return ["not", "an", "object"]
    random = study.random("instructions")
    old_spelling = random.random() < 0.5
    subject = (
        f"p{10_000_000 + (int(study.subject[1:]) + 1) % 9_999_991}"
        if study.flaw == "subject_differs"
        else study.subject
    )

    def located(regions: tuple[str, ...]) -> dict[str, Any]:
        if old_spelling:
            return {"reported_location": list(regions), "grounded_location": list(regions)}
        return {"location": list(regions)}

    def sentence_of(finding: str) -> str:
        for number, sentence in enumerate(said, start=1):
            if sentence.present == finding or finding in sentence.denied:
                return str(number)
        return "1"

    positive: list[dict[str, Any]] = []
    groups = mask_groups(study)
    split_up = {finding for finding, number, _ in groups if number}
    for finding, number, regions in groups:
        kinds = ["global"] if number == 0 else ["basic"]
        if number == 0 and finding not in split_up and finding != "cardiomegaly":
            kinds.append("basic")
        if number == 0 and random.random() < 0.12 and finding == "opacity":
            kinds.append("lesion_inference")
        asked_of = [(kind, regions) for kind in kinds]
        if study.elsewhere and len(lungs_of(regions)) == 1:
            asked_of.append(("basic", lungs_of(regions)))
        for kind, regions in asked_of:
            where = "" if kind == "global" else f" in the {listed(list(regions))}"
            ask = " and predict its type" if kind == "lesion_inference" else ""
            positive.append({
                "pair_id": f"{study.study}_positive_{len(positive)}",
                "instruction": f"Segment the {finding}{where}{ask}.",
                "answer": "[SEG]" if kind != "lesion_inference" else f"[SEG] The {finding} suggests pneumonia.",
                "type": kind,
                "target": finding,
                **located(regions),
                "sent_idx": sentence_of(finding),
                "seg": True,
                "seg_mask_path": mask_file(study, finding, number),
            })  # fmt: skip
    negative: list[dict[str, Any]] = []
    absent = [finding for finding in study.findings if finding not in study.present]
    asked = [(finding, "global") for finding in study.denied]
    asked += [(finding, "basic") for finding in random.sample(absent, min(2, len(absent))) if finding != "cardiomegaly"]
    asked += [(finding, place) for finding in study.present for place in _elsewhere(study, finding)]
    for finding, kind in asked:
        side = random.choice(("right", "left"))
        regions = {"cardiomegaly": ("heart",)}.get(finding, LUNGS)
        if kind == "basic":
            regions = (
                random.choice(
                    (f"{side} lung", f"{side} mid zone lung", f"{side} lung base", f"{side} apical zone lung")
                ),
            )
        elif kind != "global":
            kind, regions = "basic", (kind,)
        where = "" if kind == "global" else f" in the {regions[0]}"
        negative.append({
            "pair_id": f"{study.study}_negative_{len(negative)}",
            "instruction": f"Segment the {finding}{where}.",
            "answer": f"[SEG] There is no {finding}{where or ' in the image'}.",
            "type": kind,
            "target": finding,
            "location": list(regions),
            "sent_idx": sentence_of(finding),
            "seg": False,
            "seg_mask_path": None,
        })  # fmt: skip
    _spoil(study, positive, negative)
    return {
        "subject_id": subject,
        "dicom_id": study.dicom_id,
        "image_path": image_path(study.subject, study.study, study.dicom_id),
        "section_name": "findings",
        "section_content": " ".join(f"({n}) {sentence.text}" for n, sentence in enumerate(said, start=1)),
        "instruction_answer_pairs": {"positive_pairs": positive, "negative_pairs": negative},
    }


def spoiled_pair(study: SyntheticStudy) -> str | None:
    """The pair that the study's flaw spoils, where it spoils one."""
    if study.flaw in ("unknown_target", "unknown_location", "missing_field"):
        return f"{study.study}_negative_0"
    if study.flaw in ("no_mask_path", "seg_contradicts"):
        return f"{study.study}_positive_0"
    return None


def _spoil(study: SyntheticStudy, positive: list[dict[str, Any]], negative: list[dict[str, Any]]) -> None:
    if study.flaw == "unknown_target":
        negative[0]["target"] = "nodule"
    elif study.flaw == "unknown_location":
        negative[0]["location"] = ["right hilar area"]
    elif study.flaw == "missing_field":
        del negative[0]["instruction"]
    elif study.flaw == "no_mask_path":
        positive[0]["seg_mask_path"] = None
    elif study.flaw == "seg_contradicts":
        positive[0]["seg"] = False


def chexpert_row(study: SyntheticStudy) -> list[str]:
    """1, 0, -1 or blank for CheXpert's labels."""
    labels = {_CHEXPERT[finding]: "1.0" for finding in study.present}
    labels |= {_CHEXPERT[finding]: "0.0" for finding in study.denied}
    if not study.present:
        labels["No Finding"] = "1.0"
    return [study.subject[1:], study.study[1:], *(labels.get(label, "") for label in CHEXPERT_LABELS)]


def reviews(study: SyntheticStudy) -> dict[str, dict[str, Any]]:
    """The study's entries of chexpercept.json, by key."""
    entries: dict[str, dict[str, Any]] = {}
    if not study.reviewed:
        return entries
    positives = _pair_ids(study)
    for finding in study.reviewed:
        present = finding in study.present
        pair = positives[finding] if present else f"{study.study}_negative_{study.denied.index(finding)}"
        answer = "Yes" if present else "No"
        dicom_id = study.dicom_id
        mine = study.flawed_finding == finding
        if study.flaw == "review_answer" and mine:
            answer = "No" if present else "Yes"
        if study.flaw == "review_dicom" and mine:
            dicom_id = study.dicom_id[::-1]
        entry: dict[str, Any] = {
            "pair_id": pair,
            "dicom_id": dicom_id,
            "detection_qa": {
                "question": f"Is {finding} present in the image?",
                "answer_options": ["Yes", "No"],
                "answer": answer,
                "answer_index": 1 if answer == "Yes" else 2,
            },
        }
        if present:
            entry["contour_qa"] = _contour_questions(f"{finding}_{pair}", finding, revised(study, finding))
            if finding != "cardiomegaly":
                zones = [_chexpercept_zone(region) for region in study.present[finding]]
                if study.flaw == "review_zone" and mine:
                    zones[0] = "right hilum"
                entry["attribute_extraction_qa"] = _attribute_questions(finding, zones)
        entries[f"{finding}_{pair}"] = entry
    return entries


def _pair_ids(study: SyntheticStudy) -> dict[str, str]:
    """The global positive pair of every present finding."""
    record = instruction_record(study, [])
    if not isinstance(record, dict):
        return {}
    pairs = record["instruction_answer_pairs"]["positive_pairs"]
    return {pair["target"]: pair["pair_id"] for pair in pairs if pair["type"] == "global"}


def _chexpercept_zone(region: str) -> str:
    side, zone = region.split(" ", 1)
    return f"{side} {_CHEXPERCEPT_ZONES[zone]}"


def revised(study: SyntheticStudy, finding: str) -> str | None:
    """What CheXpercept asks to do with the contour that it shows of a reviewed finding: "expansion", "contraction", or
    None where it is shown as it is."""
    return study.random(f"revision/{finding}").choice((None, None, "expansion", "contraction"))


def _contour_questions(key: str, finding: str, change: str | None) -> dict[str, Any]:
    folder = f"chexpercept/{key}/contour_qa"
    questions = {
        "no_deformation": change is None,
        "initial_context": f"The mask marks the {finding}.",
        "revision_before_masks": [] if change is None else ["component_0_changed"],
        "revision_after_masks": ["component_0"],
        "true_masks": ["component_0"],
        "fake_masks": [] if change is None else ["component_0_changed"],
        "true_combination": ["component_0"],
        "fake_combinations": [] if change is None else [["component_0_changed"]],
        "contour_eval_qa": {
            "question": f"Does the contour follow the {finding}?",
            "answer_options": ["Yes", "No"],
            "answer": "Yes" if change is None else "No",
            "answer_index": 1 if change is None else 2,
            "relative_path": f"{folder}/contour_eval_qa/xray_with_mask.png",
        },
    }
    for asked in () if change is None else ("expansion", "contraction"):
        right = POINTS.index("D") if asked != change else 0
        questions[f"contour_revision_qa_{asked}"] = {
            "question": f"Which points call for {asked}?",
            "answer_options": [*POINTS[:3], "None of the above"],
            "answer": [*POINTS[:3], "None of the above"][right],
            "answer_index": [right + 1],
        }
    if change is not None:
        options = [
            {"option": name, "relative_path": f"{folder}/contour_revision_qa/option_{name}.png"} for name in POINTS
        ]
        questions["contour_revision_qa_revision_result"] = {
            "question": f"Which contour follows the {finding}?",
            "answer_options": options,
            "answer": POINTS[0],
            "answer_index": 1,
        }
    return questions


def _attribute_questions(finding: str, zones: list[str]) -> dict[str, Any]:
    count = min(len(zones), 4)
    options = ["1 zone", "2 zones", "3 zones", "4 zones or more"]
    sides = {zone.split()[0] for zone in zones}
    return {
        "distribution": {
            "question": f"In how many zones is the {finding} present in the image?",
            "answer_options": options,
            "answer": options[count - 1],
            "answer_index": count,
            "answer_zones": zones,
        },
        "location": {
            "question": f"Where is the {finding} located in the image?",
            "answer_options": [zones[0], "None of the above"],
            "answer": zones[0],
            "answer_index": [1],
            "answer_zones": zones[:1],
        },
        "severity/measurement": None,
        "comparison": {
            "question": "Compare the sizes of the lesion across both lungs.",
            "answer_options": ["Present in both lungs.", "Present in only one lung."],
            "answer": "Present in only one lung." if len(sides) == 1 else "Present in both lungs.",
            "answer_index": 2 if len(sides) == 1 else 1,
        },
    }


def contours(study: SyntheticStudy) -> dict[str, np.ndarray]:
    """The contours of both lungs and the heart, float ``[points, 2]`` (x, y) in pixels."""
    return _contours(study.build)


# Large enough for the builds of studies that share their bodies; no use, and little harm, where each has its own.
@lru_cache(1024)
def _contours(build: Build) -> dict[str, np.ndarray]:
    anatomy = build.anatomy()
    return {label: anatomy.contour(label) for label in (*LUNGS, "heart")}


def scene_graph(study: SyntheticStudy, outlines: dict[str, np.ndarray]) -> dict[str, Any]:
    """The study's Chest ImaGenome scene graph."""
    boxes = _objects(study, outlines)
    stated: dict[str, list[list[str]]] = {name: [] for name in boxes}

    def state(name: str, finding: str, present: bool) -> None:
        category, word = _ATTRIBUTES[finding]
        stated[name].append([f"{category}|{'yes' if present else 'no'}|{word}"])

    denied = list(study.denied)
    for finding, regions in study.present.items():
        if finding == study.flawed_finding:
            if study.flaw == "scene_graph_denies":
                denied.append(finding)
                continue
            if study.flaw == "scene_graph_elsewhere":
                regions = other_side(regions)
        if finding == "cardiomegaly":
            state("cardiac silhouette", finding, True)
            continue
        for lung in lungs_of(regions):
            state(lung, finding, True)
        for region in regions:
            side, zone = region.split(" ", 1)
            state(f"{side} {_ZONE_OBJECTS[zone]}", finding, True)
    for finding in denied:
        for name in ("cardiac silhouette",) if finding == "cardiomegaly" else LUNGS:
            state(name, finding, False)
    subject = int(study.subject[1:]) + (1 if study.flaw == "scene_graph_patient" else 0)
    return {
        "image_id": study.dicom_id,
        "viewpoint": study.view,
        "patient_id": subject,
        "study_id": int(study.study[1:]),
        "objects": [_object(study, name, box) for name, box in boxes.items()],
        "attributes": [
            {
                "object_id": f"{study.dicom_id}_{name}",
                "bbox_name": name,
                "phrases": [f"{word[0]}" for word in words],
                "attributes": words,
                "comparison_cues": [[] for _ in words],
                "temporal_cues": [[] for _ in words],
                "severity_cues": [[] for _ in words],
                "texture_cues": [[] for _ in words],
            }
            for name, words in stated.items()
            if words
        ],
        "relationships": [],
    }


GOLD_BOXES = (
    "image_id", "x1", "y1", "x2", "y2", "width", "height", "bbox_name", "annot_id", "original_x1", "original_x2",
    "original_y1", "original_y2", "original_width", "original_height", "annotator", "coord224", "coord_original",
)  # fmt: skip
GOLD_ATTRIBUTES = ("image_id", "bbox", "label_name", "context", "categoryID")
GOLD_SCALES = ("image_id", "top", "bottom", "left", "right", "ratio")


def gold_rows(study: SyntheticStudy, outlines: dict[str, np.ndarray]) -> tuple[list[list[Any]], list[list[Any]]]:
    """The study's lines in Chest ImaGenome's gold tables: boxes, and what is stated of them."""
    graph, name = scene_graph(study, outlines), f"{study.dicom_id}.dcm"
    boxes = []
    for number, entry in enumerate(graph["objects"]):
        small = [entry[key] for key in ("x1", "y1", "x2", "y2")]
        x1, y1, x2, y2 = (entry[f"original_{key}"] for key in ("x1", "y1", "x2", "y2"))
        boxes.append([
            name, *small, entry["width"], entry["height"], entry["bbox_name"], number, x1, x2, y1, y2, x2 - x1, y2 - y1,
            "synthetic", small, [x1, y1, x2, y2],
        ])  # fmt: skip
    stated = []
    for entry in graph["attributes"]:
        for phrase in entry["attributes"]:
            for attribute in phrase:
                category, answer, word = attribute.split("|", 2)
                stated.append([name, entry["bbox_name"], word, answer, category])
    return boxes, stated


def gold_scale(study: SyntheticStudy) -> list[Any]:
    """How the radiograph is brought into the frame of 224 pixels: its borders there, and the ratio."""
    ratio, left, top = _frame(study)
    right, bottom = 224 - round(left), 224 - round(top)
    return [f"{study.dicom_id}.dcm", round(top), bottom, round(left), right, round(ratio, 6)]


def _frame(study: SyntheticStudy) -> tuple[float, float, float]:
    """Ratio, and the empty border on the left and on top."""
    height, width = study.size
    ratio = 224 / max(height, width)
    return ratio, (224 - width * ratio) / 2, (224 - height * ratio) / 2


def _objects(study: SyntheticStudy, outlines: dict[str, np.ndarray]) -> dict[str, tuple[int, int, int, int]]:
    """Boxes in original pixels; the costophrenic angles reach out of the lung, as the real ones do."""
    boxes = {}
    for lung in LUNGS:
        side = lung.split()[0]
        x1, y1 = outlines[lung].min(0).round().astype(int).tolist()
        x2, y2 = (outlines[lung].max(0).round().astype(int) + 1).tolist()
        boxes[lung] = (x1, y1, x2, y2)
        third = (y2 - y1) / 3
        for number, band in enumerate(BANDS):
            name = {"upper": "upper lung zone", "mid": "mid lung zone", "base": "lower lung zone"}[band]
            boxes[f"{side} {name}"] = (x1, round(y1 + third * number), x2, round(y1 + third * (number + 1)))
        boxes[f"{side} apical zone"] = (x1, y1, x2, round(y1 + third / 2))
        outer = x1 - 8 if side == "right" else x2 - 12
        boxes[f"{side} costophrenic angle"] = (outer, y2 - 15, outer + 20, y2 + 5)
    x1, y1 = outlines["heart"].min(0).round().astype(int).tolist()
    x2, y2 = (outlines["heart"].max(0).round().astype(int) + 1).tolist()
    boxes["cardiac silhouette"] = (x1, y1, x2, y2)
    return boxes


def _object(study: SyntheticStudy, name: str, box: tuple[int, int, int, int]) -> dict[str, Any]:
    ratio, left, top = _frame(study)
    x1, y1, x2, y2 = box
    small = [round(x1 * ratio + left), round(y1 * ratio + top), round(x2 * ratio + left), round(y2 * ratio + top)]
    return {
        "object_id": f"{study.dicom_id}_{name}",
        "bbox_name": name,
        "x1": small[0],
        "y1": small[1],
        "x2": small[2],
        "y2": small[3],
        "width": small[2] - small[0],
        "height": small[3] - small[1],
        "original_x1": x1,
        "original_y1": y1,
        "original_x2": x2,
        "original_y2": y2,
    }


def row_major_runs(mask: np.ndarray) -> str:
    """A bool mask ``[H, W]`` as CheXmask writes it: "start length start length ..", row by row, starts from 1."""
    flat = np.concatenate(([0], mask.ravel().astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(flat))
    starts, ends = edges[::2], edges[1::2]
    return " ".join(map(str, np.stack([starts + 1, ends - starts], axis=1).ravel().tolist()))


@lru_cache(1024)
def _masks(build: Build) -> tuple[dict[str, str], str]:
    """The runs of the outlines by label, and the outlines' points, as CheXmask writes them."""
    outlines = _contours(build)
    points = np.concatenate([outlines[label] for label in (*LUNGS, "heart")]).round(1).ravel().tolist()
    return {label: row_major_runs(filled(outlines[label], build.size)) for label in outlines}, str(points)


def chexmask_row(study: SyntheticStudy) -> list[str]:
    """The study's line of CheXmask's table."""
    random = study.random("chexmask")
    height, width = study.size
    held, points = _masks(study.build)
    runs = dict(held)
    quality = random.uniform(0.78, 0.97)
    if study.flaw == "rle_overruns":
        runs["left lung"] += f" {height * width - 3} 40"
    elif study.flaw == "rle_odd":
        runs["right lung"] = runs["right lung"].rsplit(" ", 1)[0]
    elif study.flaw == "low_quality":
        quality = random.uniform(0.2, 0.65)
    elif study.flaw == "size_differs":
        height, width = height + 64, width
    return [
        study.dicom_id,
        f"{quality:.4f}",
        f"{min(quality + 0.02, 1.0):.4f}",
        points,
        runs["left lung"],
        runs["right lung"],
        runs["heart"],
        str(height),
        str(width),
    ]
