"""CheXlocalize: radiologists' masks of ten tasks, six of which are findings of XFlow's (COCO run lengths).

``gt_segmentations_<split>.json`` holds the truth of the radiographs that show any of the ten,
``hb_segmentations_test.json`` what a second group of radiologists drew when told which finding to draw: the human
benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xflow_core.domain import rle
from xflow_core.domain.errors import CallError, ValueRefused

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
SPLITS = ("val", "test")
# The release has CheXlocalize's files and CheXpert's pictures side by side; the sample in its repository lies flat.
_PICTURES = {
    "val": ("CheXpert/val", "CheXpert-v1.0/valid", "valid"),
    "test": ("CheXpert/test", "CheXpert-v1.0/test", "test"),
}
_NAME = re.compile(r"(patient\d+)_(study\d+)_(view\d+_\w+)")


@dataclass(frozen=True)
class Localized:
    """One radiograph. image: its path under CheXpert's folder of the split; size: ``(height, width)``; counts: COCO's
    compressed run lengths by finding, all of the six."""

    name: str
    image: str
    size: tuple[int, int]
    counts: dict[str, str]

    def mask(self, finding: str) -> np.ndarray | None:
        """bool ``[H, W]``; None where the finding is absent."""
        mask = rle.decode(self.counts[finding], self.size)
        return mask if mask.any() else None

    @property
    def frontal(self) -> bool:
        return self.name.endswith("_frontal")


def masks_file(root: Path, kind: str, split: str) -> Path:
    """``gt`` (the truth's) or ``hb`` (the human benchmark's) segmentations of a split."""
    name = f"{kind}_segmentations_{split}.json"
    nested = root / "CheXlocalize" / name
    return nested if nested.is_file() else root / name


def pictures_folder(root: Path, split: str) -> Path:
    """Where the radiographs of a split lie.

    Raises:
        CallError: there is no such folder.
    """
    for name in _PICTURES[split]:
        if (root / name).is_dir():
            return root / name
    raise CallError(f"{root} holds no radiographs of CheXpert's {split} split: none of {', '.join(_PICTURES[split])}.")


def read_localized(path: Path, problems: Problems) -> Iterator[Localized]:
    """The usable entries of ``gt_segmentations_*.json`` or ``hb_segmentations_test.json``.

    Raises:
        CallError: the file is missing, damaged or of another shape.
    """
    for (name,), tasks in members(path, depth=1):
        try:
            yield _localized(name, tasks)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as problem:
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
