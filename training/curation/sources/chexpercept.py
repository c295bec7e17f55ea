"""CheXpercept: the pairs that experts reviewed, whether the finding is there, and the zones that it fills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xflow_core.domain.findings import FINDINGS

from .json_stream import members
from .problems import Problems
from .regions import THIRDS, region_of

_STUDY = re.compile(r"s\d{8}")
_KEY = re.compile(r"([a-z]+)_((s\d{8})_(positive|negative)_\d+)")


@dataclass(frozen=True, slots=True)
class Review:
    """One reviewed pair. zones: where a present finding lies, complete; empty for cardiomegaly and absent ones."""

    key: str
    pair: str
    study: str
    dicom_id: str
    finding: str
    present: bool
    zones: frozenset[str]


@dataclass(frozen=True)
class Reviews:
    """The usable entries, and all studies that any entry names: also those whose entry cannot be used are held out of
    the supervised split."""

    usable: tuple[Review, ...]
    studies: frozenset[str]


def read_reviews(path: Path, problems: Problems) -> Reviews:
    """The entries of ``chexpercept.json``.

    Raises:
        CallError: the file is missing, damaged or of another shape.
    """
    usable: dict[tuple[str, str], Review] = {}
    studies: set[str] = set()
    for (key,), entry in members(path, depth=1):
        studies.update(_STUDY.findall(key))
        review = _review(path, key, entry, problems)
        if review is None:
            continue
        first = usable.setdefault((review.study, review.finding), review)
        if first is not review:
            problems.add("review_repeated", path, key, f"after {first.key}")
    return Reviews(tuple(usable.values()), frozenset(studies))


def _review(path: Path, key: str, entry: Any, problems: Problems) -> Review | None:
    match = _KEY.fullmatch(key)
    if match is None or match[1] not in FINDINGS:
        problems.add("review_key", path, key)
        return None
    finding, pair, study, kind = match.groups()
    present = kind == "positive"
    detection = entry.get("detection_qa") if isinstance(entry, dict) else None
    if not isinstance(detection, dict) or not isinstance(entry.get("dicom_id"), str) or entry.get("pair_id") != pair:
        problems.add("review_malformed", path, key, "pair_id, dicom_id or detection_qa")
        return None
    answer = str(detection.get("answer", "")).strip().lower()
    if answer and not answer.startswith("yes" if present else "no"):
        problems.add("review_answer", path, key, f"answered {detection.get('answer')}")
        return None
    zones: list[str] = []
    if present and finding != "cardiomegaly":
        attributes = entry.get("attribute_extraction_qa")
        distribution = attributes.get("distribution") if isinstance(attributes, dict) else None
        listed = distribution.get("answer_zones") if isinstance(distribution, dict) else None
        if not isinstance(listed, list) or not listed:
            problems.add("review_zone", path, key, "no zones given")
            return None
        for words in listed:
            zone = region_of(words)
            if zone not in THIRDS:
                problems.add("review_zone", path, key, str(words))
                return None
            zones.append(zone)
    return Review(key, pair, study, entry["dicom_id"], finding, present, frozenset(zones))
