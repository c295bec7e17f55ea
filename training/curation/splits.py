"""``python -m training splits --data ROOT --out DIR``: the paper's splits, proven disjoint, with all that led to them.

DIR holds

- ``radiographs.parquet``: study, subject, dicom_id, image and split (sft, sft_val, rl, eval) of every radiograph;
- ``agreed.parquet``: the admitted triples with their split;
- ``questions.parquet``: what D_RL and D_eval are asked, at three levels, with the MIMIC-ILS mask of the positive ones;
- ``parses.jsonl``: the reports' parses (prompt, raw answer, verdict); a run that was stopped goes on from it;
- ``problems.jsonl``: every record that could not be used;
- ``report.txt``: Tables 5, 6 and 8 here and in the paper, drops by reason, problems by kind;
- ``manifest.json``: schema, counts, hashes of the files above, the configuration and its seed.

The same input and configuration give the same bytes. Not for clinical use.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation import counts
from training.curation.curate import Curated, curate
from training.curation.division import EVAL, RL
from training.curation.paper import PAPER, read_settings
from training.curation.questions import questions_of
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

SCHEMA = "xflow.splits/1"
RADIOGRAPHS = pa.schema([(name, pa.string()) for name in ("study", "subject", "dicom_id", "image", "split")])
AGREED = pa.schema([
    *((name, pa.string()) for name in ("study", "subject", "dicom_id", "split", "finding", "region")),
    ("present", pa.bool_()),
])  # fmt: skip
QUESTIONS = pa.schema([
    *((name, pa.string()) for name in ("id", "study", "dicom_id", "image", "split", "instruction", "finding", "level")),
    ("regions", pa.list_(pa.string())),
    ("present", pa.bool_()),
    ("mask", pa.string()),
])  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="the folder under which the sets lie")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=PAPER)


def run(arguments: argparse.Namespace) -> None:
    settings, out = read_settings(arguments.config), arguments.out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise NotWritten(f"{out} cannot be made: {problem.strerror or problem}.") from None
    if (out / "manifest.json").exists():
        raise CallError(f"{out} holds finished splits already; choose another folder or remove it.")
    with Problems(out / "problems.jsonl") as problems:
        curated = curate(settings.sources.under(arguments.data), settings, problems, out / "parses.jsonl")
    write_whole(out / "radiographs.parquet", _parquet(RADIOGRAPHS, _radiographs(curated)))
    write_whole(out / "agreed.parquet", _parquet(AGREED, _agreed(curated)))
    write_whole(out / "questions.parquet", _parquet(QUESTIONS, _questions(curated)))
    lines = [*counts.text(curated, settings), "", *problems.lines()]
    write_whole(out / "report.txt", ("\n".join(lines) + "\n").encode())
    names = ("radiographs.parquet", "agreed.parquet", "questions.parquet", "parses.jsonl", "problems.jsonl")
    manifest = {
        "schema": SCHEMA,
        "notice": "not for clinical use",
        "tables": counts.tables(curated),
        "admitted": curated.admitted,
        "dropped": dict(sorted(curated.dropped.items())),
        "problems": dict(sorted(problems.counts.items())),
        "patients_shared_with_sft": dict(sorted(curated.shared.items())),
        "settings": settings.to_json(),
        "sha256": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names},
    }
    write_whole(out / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
    LOG.info("splits in %s; not for clinical use", out)


def _parquet(schema: pa.Schema, rows: Iterator[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer, compression="zstd")
    return buffer.getvalue()


def _radiographs(curated: Curated) -> Iterator[dict[str, Any]]:
    for entry in curated.radiographs:
        yield {name: getattr(entry, name) for name in RADIOGRAPHS.names}


def _agreed(curated: Curated) -> Iterator[dict[str, Any]]:
    for split in (RL, EVAL):
        for entry in curated.agreed[split]:
            row = {"study": entry.study, "subject": entry.subject, "dicom_id": entry.dicom_id, "split": split}
            for region, present in entry.verdicts.items():
                yield {**row, "finding": entry.finding, "region": region, "present": present}


def _questions(curated: Curated) -> Iterator[dict[str, Any]]:
    images = {entry.study: entry.image for entry in curated.radiographs if entry.split in (RL, EVAL)}
    for split in (RL, EVAL):
        for entry in curated.agreed[split]:
            for question in questions_of(entry):
                place = "+".join(region.replace(" ", "-") for region in question.regions)
                yield {
                    "id": f"{entry.study}_{question.finding}_{place}",
                    "study": entry.study,
                    "dicom_id": entry.dicom_id,
                    "image": images[entry.study],
                    "split": split,
                    "instruction": question.instruction,
                    "finding": question.finding,
                    "level": question.level,
                    "regions": list(question.regions),
                    "present": question.present,
                    "mask": entry.mask if question.present else None,
                }
