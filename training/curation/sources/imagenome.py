"""Chest ImaGenome's silver scene graphs: a box for every place, and a yes or no for findings there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xflow_core.domain.findings import FINDINGS

from .archive import Archive
from .problems import Problems
from .regions import region_of

# Its words for the seven findings; all stand under "anatomicalfinding" but pneumonia, a "disease".
ATTRIBUTES = {
    "enlarged cardiac silhouette": "cardiomegaly",
    "pneumonia": "pneumonia",
    "atelectasis": "atelectasis",
    "lung opacity": "opacity",
    "consolidation": "consolidation",
    "pulmonary edema/hazy opacity": "edema",
    "pleural effusion": "effusion",
}
_CATEGORIES = ("anatomicalfinding", "disease")


@dataclass(frozen=True)
class SceneGraph:
    """What a scene graph states.

    boxes: pixel edges ``(x1, y1, x2, y2)`` in the original image, by region; they may reach outside it. stated: the
    regions in which a finding is stated present, and those in which it is stated absent.
    """

    dicom_id: str
    boxes: dict[str, tuple[int, int, int, int]]
    stated: dict[str, tuple[frozenset[str], frozenset[str]]]


class SceneGraphs:
    """The scene graphs of ``scene_graph.zip`` or of the folder that it unpacks to; read one by one."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self._archive = Archive(path)
        self._problems = problems

    def __enter__(self) -> SceneGraphs:
        return self

    def __exit__(self, *problem: Any) -> None:
        self._archive.__exit__(None, None, None)

    def read(self, dicom_id: str, subject: str, study: str) -> SceneGraph | None:
        """The radiograph's scene graph; None where there is none that can be used (a broken one is a problem)."""
        name = f"scene_graph/{dicom_id}_SceneGraph.json"
        try:
            data = self._archive.read(name)
            if data is None:
                return None
            graph = json.loads(data)
            patient, number = int(graph["patient_id"]), int(graph["study_id"])
            if (patient, number) != (int(subject.lstrip("p")), int(study.lstrip("s"))) or graph["image_id"] != dicom_id:
                self._problems.add(
                    "scene_graph_patient", self._archive.path, name, f"patient {patient}, study {number}"
                )
                return None
            return SceneGraph(dicom_id, _boxes(graph["objects"]), _stated(graph["attributes"]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
            self._problems.add("scene_graph_broken", self._archive.path, name, f"{type(problem).__name__}: {problem}")
            return None


def _boxes(objects: list[dict[str, Any]]) -> dict[str, tuple[int, int, int, int]]:
    boxes = {}
    for entry in objects:
        name = entry["bbox_name"]
        region = None if "costophrenic" in name else region_of(name)
        if region is not None:
            x1, y1, x2, y2 = (int(entry[f"original_{corner}"]) for corner in ("x1", "y1", "x2", "y2"))
            boxes[region] = (x1, y1, x2, y2)
    return boxes


def _stated(attributes: list[dict[str, Any]]) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Present and absent regions by finding. A later phrase that contradicts an earlier one leaves both standing: the
    region is then stated both ways, and agrees with nobody."""
    said: dict[str, tuple[set[str], set[str]]] = {finding: (set(), set()) for finding in FINDINGS}
    for entry in attributes:
        region = region_of(entry["bbox_name"])
        if region is None:
            continue
        for phrase in entry["attributes"]:
            for attribute in phrase:
                category, answer, word = attribute.split("|", 2)
                finding = ATTRIBUTES.get(word)
                if category in _CATEGORIES and finding is not None and answer in ("yes", "no"):
                    said[finding][0 if answer == "yes" else 1].add(region)
    return {finding: (frozenset(yes), frozenset(no)) for finding, (yes, no) in said.items() if yes or no}
