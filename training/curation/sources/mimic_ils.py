"""MIMIC-CXR-Ext-ILS: instructions with masks, one study at a time.

The file is ``{split: {study: {.., "instruction_answer_pairs": {"positive_pairs": [..], "negative_pairs": [..]}}}}``.
Locations are read as ``grounded_location`` (an earlier release) or ``location``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xflow_core.domain.findings import FINDINGS

from .json_stream import members
from .mimic_cxr import mark_of
from .problems import Problems
from .regions import region_of

SPLITS = ("train", "val", "test")
_TYPES = ("basic", "global", "lesion_inference")
_STUDY, _SUBJECT, _DICOM_ID = re.compile(r"s\d{8}"), re.compile(r"p\d{8}"), re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction and its answer.

    regions: the places that it names, or, for a global one, where the finding lies (may be empty). mask: the mask's
    path under the set's folder, for a positive pair.
    """

    id: str
    finding: str
    type: str
    regions: tuple[str, ...]
    positive: bool
    instruction: str
    mask: str | None


@dataclass(frozen=True, slots=True)
class Study:
    """A study with its one frontal radiograph. image: its path under MIMIC-CXR-JPG's ``files``."""

    id: str
    subject: str
    dicom_id: str
    image: str
    split: str
    pairs: tuple[Pair, ...]


def read_studies(path: Path, problems: Problems, known: Container[int] | None = None) -> Iterator[Study]:
    """The usable studies of ``mimic_ils_instruction_answer.json``, in the file's order, in constant memory but for the
    numbers of the studies and radiographs seen.

    What cannot be used is added to ``problems`` and left out: a pair from its study, or a study.

    Args:
        known: the metadata's radiographs (:func:`~.mimic_cxr.read_marks`); a study that they do not bear out is left
            out.

    Raises:
        CallError: the file is missing, damaged or of another shape.
    """
    seen: set[int] = set()
    images: set[int] = set()
    unknown: set[str] = set()
    for (split, key), record in members(path, depth=2):
        if split not in SPLITS:
            if split not in unknown:
                problems.add("split_unknown", path, split)
                unknown.add(split)
            continue
        if not _STUDY.fullmatch(key):
            problems.add("study_malformed", path, key, "the key is no study id")
            continue
        if int(key[1:]) in seen:
            problems.add("study_repeated", path, key)
            continue
        seen.add(int(key[1:]))
        study = _study(path, key, split, record, problems)
        if study is None:
            continue
        if known is not None and mark_of(study.dicom_id, study.subject, study.id) not in known:
            problems.add("metadata_differs", path, key, f"{study.subject}, {study.dicom_id}")
            continue
        image = mark_of(study.dicom_id)
        if image in images:
            problems.add("radiograph_repeated", path, key, study.dicom_id)
            continue
        images.add(image)
        yield study


def _study(path: Path, key: str, split: str, record: Any, problems: Problems) -> Study | None:
    pairs = record.get("instruction_answer_pairs") if isinstance(record, dict) else None
    if not isinstance(pairs, dict):
        problems.add("study_malformed", path, key)
        return None
    subject, dicom_id, image = record.get("subject_id"), record.get("dicom_id"), record.get("image_path")
    if not (isinstance(subject, str) and isinstance(dicom_id, str) and isinstance(image, str) and dicom_id):
        problems.add("missing_field", path, key, "subject_id, dicom_id or image_path")
        return None
    *folders, name = image.split("/")
    if not (_SUBJECT.fullmatch(subject) and _DICOM_ID.fullmatch(dicom_id)) or ".." in folders or image.startswith("/"):
        problems.add("study_malformed", path, key, "subject_id, dicom_id or image_path")
        return None
    if folders[-2:] != [subject, key] or name.rsplit(".", 1)[0] != dicom_id:
        problems.add("subject_differs", path, key, f"{subject} and {image}")
        return None
    kept: dict[str, Pair] = {}
    for name, positive in (("positive_pairs", True), ("negative_pairs", False)):
        listed = pairs.get(name, [])
        if not isinstance(listed, list):
            problems.add("missing_field", path, key, name)
            continue
        for number, entry in enumerate(listed):
            pair = _pair(path, key, f"{key} {name}[{number}]", entry, positive, problems)
            if pair is not None and kept.setdefault(pair.id, pair) is not pair:
                problems.add("pair_repeated", path, pair.id, f"in {name}")
    return Study(key, subject, dicom_id, image, split, tuple(kept.values()))


def _pair(path: Path, study: str, place: str, entry: Any, positive: bool, problems: Problems) -> Pair | None:
    if not isinstance(entry, dict):
        problems.add("pair_malformed", path, place)
        return None
    identity, kind, finding = entry.get("pair_id"), entry.get("type"), entry.get("target")
    instruction, mask = entry.get("instruction"), entry.get("seg_mask_path")
    grounded = entry.get("grounded_location")
    location = entry.get("location") if grounded is None else grounded
    record = identity if isinstance(identity, str) else place
    if (
        not (isinstance(identity, str) and isinstance(instruction, str) and isinstance(location, list))
        or kind not in _TYPES
    ):
        problems.add("missing_field", path, record, "pair_id, instruction, location or type")
    elif finding not in FINDINGS:
        problems.add("unknown_target", path, record, str(finding))
    elif not identity.startswith(f"{study}_"):
        problems.add("pair_of_other_study", path, record, f"in {study}")
    elif entry.get("seg") is not positive:
        problems.add("seg_contradicts", path, record, f"seg is {entry.get('seg')}")
    else:
        regions = tuple(region_of(words) for words in location)
        if None in regions or (not regions and kind == "basic"):
            problems.add("unknown_location", path, record, ", ".join(map(str, location)) or "none given")
        elif positive and not _inside(mask):
            problems.add("no_mask_path", path, record, str(mask))
        else:
            named = tuple(dict.fromkeys(region for region in regions if region is not None))
            return Pair(identity, finding, kind, named, positive, instruction, mask if positive else None)
    return None


def _inside(mask: object) -> bool:
    """Whether it is a relative path that stays inside the set's folder."""
    return isinstance(mask, str) and bool(mask) and not mask.startswith("/") and ".." not in mask.split("/")
