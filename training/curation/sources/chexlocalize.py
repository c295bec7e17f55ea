"""CheXlocalize: radiologists' masks of ten tasks, six of which are findings of XFlow's (COCO run lengths)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xflow_core.domain import rle
from xflow_core.domain.errors import ValueRefused

from .json_stream import members
from .problems import Problems

TASKS = {
    "Cardiomegaly": "cardiomegaly",
    "Airspace Opacity": "opacity",
    "Edema": "edema",
    "Consolidation": "consolidation",
    "Atelectasis": "atelectasis",
    "Pleural Effusion": "effusion",
}
_NAME = re.compile(r"(patient\d+)_(study\d+)_(view\d+_\w+)")


@dataclass(frozen=True)
class Localized:
    """One radiograph. image: its path under CheXpert's ``valid``; size: ``(height, width)``; counts: COCO's compressed
    run lengths by finding, all of the six."""

    name: str
    image: str
    size: tuple[int, int]
    counts: dict[str, str]

    def mask(self, finding: str) -> np.ndarray | None:
        """bool ``[H, W]``; None where the finding is absent."""
        mask = rle.decode(self.counts[finding], self.size)
        return mask if mask.any() else None


def read_localized(path: Path, problems: Problems) -> Iterator[Localized]:
    """The usable entries of ``gt_segmentations_*.json``.

    Raises:
        CallError: the file is missing, damaged or of another shape.
    """
    for (name,), tasks in members(path, depth=1):
        try:
            yield _localized(name, tasks)
        except (ValueRefused, KeyError, TypeError, ValueError) as problem:
            problems.add("masks_malformed", path, name, str(problem))


def _localized(name: str, tasks: dict[str, Any]) -> Localized:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueRefused("the name is not patient_study_view.")
    sizes = {tuple(tasks[task]["size"]) for task in TASKS}
    if len(sizes) != 1:
        raise ValueRefused(f"its masks have {len(sizes)} sizes.")
    height, width = sizes.pop()
    counts = {finding: tasks[task]["counts"] for task, finding in TASKS.items()}
    for runs in counts.values():
        rle.check(runs, (height, width))
    return Localized(name, "/".join(match.groups()) + ".jpg", (height, width), counts)
