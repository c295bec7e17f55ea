"""``python -m training chexlocalize-set --data ROOT --split test --out FOLDER``: the external evaluation (5.2).

``set.jsonl`` asks every radiograph of CheXlocalize's split for its six findings at chest level ("Segment the
consolidation."), with the truth's masks under ``masks``. For the test split ``human`` holds the second radiologists'
masks as predictions, which ``score`` and ``tables`` measure like any system's: they were told which finding to draw, so
their F1 says nothing. The paper scores 775 positive and 1,643 negative cases (six findings on 403 radiographs) and does
not say which; this takes the frontal ones in the truth's file, ``--views all`` the lateral ones too. Not for clinical
use.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

from training.curation.paper import PAPER, read_settings
from training.curation.sources.chexlocalize import (
    SPLITS,
    Localized,
    masks_file,
    pictures_folder,
    read_localized,
)
from training.curation.sources.problems import Problems
from training.evaluation.predictions import PredictionWriter
from training.evaluation.rows import write_rows
from xflow_core.domain import rle
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.export.files import write_mask

LOG = logging.getLogger(__name__)

HUMAN = "human"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--views", choices=("frontal", "all"), default="frontal")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)


def run(arguments: argparse.Namespace) -> None:
    root = read_settings(arguments.config).sources.under(arguments.data).chexlocalize
    out = arguments.out
    try:
        (out / "masks").mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    with Problems(out / "problems.jsonl") as problems:
        counts = write_chexlocalize_set(root, arguments.split, out, arguments.views == "frontal", problems)
    LOG.info("%s, in %s (the paper: 775 positive, 1,643 negative); not for clinical use", dict(counts), out)


def write_chexlocalize_set(root: Path, split: str, out: Path, frontal: bool, problems: Problems) -> Counter[str]:
    """Write the set, and the human benchmark where the split has one; counts rows and what was left out.

    Raises:
        CallError: a file is missing or damaged, or the second radiologists did not see a radiograph of the set.
    """
    pictures = pictures_folder(root, split)
    rows: list[dict[str, Any]] = []
    used: list[Localized] = []
    counts: Counter[str] = Counter(positive=0, negative=0)
    for entry in read_localized(masks_file(root, "gt", split), problems):
        image = pictures / entry.image
        if frontal and not entry.frontal:
            counts["left out: lateral"] += 1
        elif not image.is_file():
            problems.add("image_missing", image, entry.name)
            counts["left out: radiograph missing"] += 1
        else:
            used.append(entry)
            rows += _rows(entry, image, out, counts)
    if not rows:
        raise CallError(f"{root} holds no radiograph with masks of the {split} split.")
    write_rows(out / "set.jsonl", rows)
    second = masks_file(root, "hb", split)
    if second.is_file():
        _write_human(second, used, out / HUMAN, problems)
    return counts


def _rows(entry: Localized, image: Path, out: Path, counts: Counter[str]) -> list[dict[str, Any]]:
    rows = []
    for finding in entry.counts:
        mask, name = entry.mask(finding), None
        if mask is not None:
            name = f"masks/{_id(entry, finding)}.png"
            write_mask(out / name, mask)
        counts["negative" if mask is None else "positive"] += 1
        rows.append({
            "id": _id(entry, finding),
            "image": os.path.relpath(image, out),
            "instruction": f"Segment the {finding}.",
            "finding": finding,
            "regions": ["heart"] if finding == "cardiomegaly" else ["chest"],
            "level": "chest",
            "mask": name,
            "lungs": None,
            "source": "chexlocalize",
            "patient": entry.name.split("_")[0],
        })  # fmt: skip
    return rows


def _id(entry: Localized, finding: str) -> str:
    return f"{entry.name}-{finding}"


def _write_human(path: Path, used: list[Localized], folder: Path, problems: Problems) -> None:
    asked = {entry.name: entry for entry in used}
    left = set(asked)
    with PredictionWriter(folder) as writer:
        for drawn in read_localized(path, problems):
            if drawn.name not in left:
                continue
            if drawn.size != asked[drawn.name].size:
                raise CallError(f"{path} has {drawn.name} at {drawn.size}, the truth at {asked[drawn.name].size}.")
            left.remove(drawn.name)
            for finding, runs in drawn.counts.items():
                writer.add(_id(drawn, finding), rle.decode(runs, drawn.size))
        if left:
            raise CallError(f"{path} lacks {len(left)} radiographs of the set, {min(left)} for one.")
