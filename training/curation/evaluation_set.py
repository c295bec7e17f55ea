"""``python -m training evaluation-set --data ROOT --splits DIR --out DIR2``: D_eval as ``evaluate`` reads it (B.1).

``set.jsonl`` has a row for every question of D_eval at the three levels (Table 8), with its mask in the radiograph's
frame under ``masks``, cut to the question's side, and both lungs' boxes where the configuration's source has them. A
question whose mask or radiograph cannot be used is left out, named in ``problems.jsonl`` and counted in ``report.txt``.
``examples.png`` shows some. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.components import on_the_side
from training.curation.curate import progress
from training.curation.division import EVAL
from training.curation.lung_boxes import lungs_from
from training.curation.paper import PAPER, Settings, read_settings
from training.curation.pictures import evaluation_sheet, various
from training.curation.sources.layout import Sources
from training.curation.sources.masks import read_mask
from training.curation.sources.mimic_cxr import check_image, read_sizes
from training.curation.sources.problems import Problems
from training.evaluation.rows import write_rows
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.domain.findings import LEVELS
from xflow_core.export.files import write_mask, write_whole

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--splits", type=Path, required=True, help="what `python -m training splits` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)


def run(arguments: argparse.Namespace) -> None:
    settings, out = read_settings(arguments.config), arguments.out
    try:
        (out / "masks").mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    with Problems(out / "problems.jsonl") as problems:
        counts = write_evaluation_set(settings.sources.under(arguments.data), arguments.splits, out, settings, problems)
    rows = [json.loads(line) for line in (out / "set.jsonl").read_text(encoding="utf-8").splitlines()]
    levels = Counter((row["level"], "negative" if row["mask"] is None else "positive") for row in rows)
    lines = ["D_eval as an evaluation set (B.1)", "Not for clinical use.", ""]
    lines += [f"{count:,} x {name}" for name, count in counts.items()]
    lines += [
        "",
        "Positive / negative rows by level:",
        *(f"    {level}: {levels[level, 'positive']:,} / {levels[level, 'negative']:,}" for level in LEVELS),
    ]
    write_whole(out / "report.txt", ("\n".join([*lines, "", *problems.lines()]) + "\n").encode())
    write_whole(out / "examples.png", evaluation_sheet(various(rows), out))
    LOG.info("%s, in %s; not for clinical use", dict(counts), out / "set.jsonl")


def write_evaluation_set(
    sources: Sources, splits: Path, out: Path, settings: Settings, problems: Problems
) -> Counter[str]:
    """Write the set; counts positive and negative rows, and those left out by reason."""
    try:
        questions = [row for row in pq.read_table(splits / "questions.parquet").to_pylist() if row["split"] == EVAL]
    except (OSError, pa.ArrowInvalid) as problem:
        raise CallError(
            f"{splits} holds no finished splits ({problem}); `python -m training splits` makes them."
        ) from None
    wanted = {row["dicom_id"] for row in questions}
    sizes = read_sizes(sources.metadata, problems, wanted)
    lungs = lungs_from(settings.lungs, sources, wanted, problems, sizes)
    counts: Counter[str] = Counter(positive=0, negative=0)
    whole: dict[str, bool] = {}
    rows: list[dict[str, Any]] = []
    for question in progress(questions, "evaluation set"):
        dicom_id, image = question["dicom_id"], sources.images / question["image"]
        size = sizes.get(dicom_id)
        if dicom_id not in whole:
            whole[dicom_id] = size is not None and check_image(image, size, problems)
        if size is None or not whole[dicom_id]:
            counts["left out: radiograph unusable"] += 1
            continue
        boxes, name = lungs.of(dicom_id, image), None
        if question["present"]:
            mask = read_mask(sources.mimic_ils / question["mask"], size, problems)
            if mask is not None and question["level"] != "chest":
                # Without lungs nobody knows where one side ends.
                mask = None if boxes is None else on_the_side(mask, question["regions"], boxes)
            if mask is None or not mask.any():
                counts["left out: mask unusable"] += 1
                continue
            name = f"masks/{question['id']}.png"
            write_mask(out / name, mask)
        counts["positive" if question["present"] else "negative"] += 1
        rows.append({
            "id": question["id"],
            "image": os.path.relpath(image, out),
            "instruction": question["instruction"],
            "finding": question["finding"],
            "regions": question["regions"],
            "level": question["level"],
            "mask": name,
            "lungs": None if boxes is None else {label: box.to_json() for label, box in boxes.items()},
            "source": "chexpercept",
        })  # fmt: skip
    write_rows(out / "set.jsonl", rows)
    return counts
