"""``python -m training splits --data ROOT --out DIR``: the paper's splits, proven disjoint, with all that led to them.

DIR holds

- ``radiographs.parquet``: study, subject, dicom_id, image and split (sft, sft_val, rl, eval) of every radiograph;
- ``agreed.parquet``: the admitted triples with their split;
- ``questions.parquet``: what D_RL and D_eval are asked, at three levels, with the MIMIC-ILS mask of the positive ones;
- ``asked-<split>.parquet``: the questions that `instructions` makes examples of;
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation import counts
from training.curation.curate import Curated, curate
from training.curation.division import EVAL, RL, SFT, VAL, Radiograph
from training.curation.paper import PAPER, read_settings
from training.curation.questions import Asked, questions_of
from training.curation.sources.problems import Problems
from training.curation.templates import phrased
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.domain.findings import CHEST
from xflow_core.export.files import open_whole, write_whole

LOG = logging.getLogger(__name__)

SCHEMA = "xflow.splits/2"
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
# located: where the sources say that a present finding lies.
ASKED = pa.schema([
    *((name, pa.string()) for name in ("study", "dicom_id", "image", "instruction", "finding")),
    ("regions", pa.list_(pa.string())),
    ("present", pa.bool_()),
    ("located", pa.list_(pa.string())),
    ("mask", pa.string()),
])  # fmt: skip
_NAMES = (
    "radiographs.parquet", "agreed.parquet", "questions.parquet", "asked-sft.parquet", "asked-sft_val.parquet",
    "asked-rl.parquet", "asked-eval.parquet", "parses.jsonl", "problems.jsonl",
)  # fmt: skip
# Rows of a row group; a shard of instructions is made from one.
ASKED_TOGETHER = 20_000


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
    sources = settings.sources.under(arguments.data)
    with Problems(out / "problems.jsonl") as problems, ExitStack() as stack:
        asked = {split: stack.enter_context(_AskedFile(out, split)) for split in (SFT, VAL, RL, EVAL)}

        def take(entry: Radiograph, questions: Sequence[Asked]) -> None:
            for one in questions:
                words = phrased(one.finding, one.regions, entry.study)
                asked[entry.split].add(
                    entry.study, entry.dicom_id, entry.image, words, one.finding, one.regions, one.present, one.located,
                    one.mask,
                )  # fmt: skip

        curated = curate(sources, settings, problems, out / "parses.jsonl", take)
        for split in (RL, EVAL):
            _ask_agreed(curated, split, asked[split])
    write_whole(out / "radiographs.parquet", _radiographs(curated))
    write_whole(out / "agreed.parquet", _parquet(AGREED, _agreed(curated)))
    write_whole(out / "questions.parquet", _parquet(QUESTIONS, _questions(curated)))
    lines = [*counts.text(curated, settings), "", *problems.lines()]
    write_whole(out / "report.txt", ("\n".join(lines) + "\n").encode())
    manifest = {
        "schema": SCHEMA,
        "notice": "not for clinical use",
        "tables": counts.tables(curated),
        "admitted": curated.admitted,
        "dropped": dict(sorted(curated.dropped.items())),
        "problems": dict(sorted(problems.counts.items())),
        "patients_shared_with_sft": dict(sorted(curated.shared.items())),
        "settings": settings.to_json(),
        "sha256": {name: _digest(out / name) for name in _NAMES},
    }
    write_whole(out / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
    LOG.info("splits in %s; not for clinical use", out)


def read_splits(folder: Path) -> tuple[dict[str, Any], pa.Table]:
    """The manifest of finished splits, and ``radiographs.parquet``.

    Raises:
        CallError: there are none, they are of another version, or a file is not the one that the manifest names.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        named = {name: manifest["sha256"][name] for name in _NAMES} if manifest["schema"] == SCHEMA else {}
        for name, digest in named.items():
            if _digest(folder / name) != digest:
                raise CallError(f"{folder / name} is not the file that the splits' manifest names; make them anew.")
        radiographs = pq.read_table(folder / "radiographs.parquet")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CallError(
            f"{folder} holds no finished splits ({problem}); `python -m training splits` makes them."
        ) from None
    if not named:
        raise CallError(f"{folder} holds splits of {manifest['schema']}, not {SCHEMA}; make them anew.")
    return manifest, radiographs


def asked_file(splits: Path, split: str) -> Path:
    """What ``splits`` keeps for `instructions` of one split."""
    return splits / f"asked-{split}.parquet"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _AskedFile:
    """Writes an ``asked-<split>.parquet``, a row group at a time: memory does not grow with the number of questions."""

    def __init__(self, out: Path, split: str) -> None:
        self._path = asked_file(out, split)
        self._stack = ExitStack()
        self._columns: dict[str, list[Any]] = {name: [] for name in ASKED.names}

    def __enter__(self) -> _AskedFile:
        file = self._stack.enter_context(open_whole(self._path))
        self._writer = self._stack.enter_context(pq.ParquetWriter(file, ASKED, compression="zstd"))
        return self

    def __exit__(self, *problem: Any) -> None:
        if problem[0] is None:
            self._write()
        self._stack.__exit__(*problem)

    def add(self, *values: Any) -> None:
        """A question, as :data:`ASKED` has it."""
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        if len(self._columns["study"]) == ASKED_TOGETHER:
            self._write()

    def _write(self) -> None:
        if self._columns["study"]:
            self._writer.write_table(pa.table(self._columns, schema=ASKED))
        for column in self._columns.values():
            column.clear()


def _parquet(schema: pa.Schema, rows: Iterator[dict[str, Any]]) -> bytes:
    return _stored(pa.Table.from_pylist(list(rows), schema=schema))


def _stored(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _radiographs(curated: Curated) -> bytes:
    columns = {name: [getattr(entry, name) for entry in curated.radiographs] for name in RADIOGRAPHS.names}
    return _stored(pa.table(columns, schema=RADIOGRAPHS))


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


def _ask_agreed(curated: Curated, split: str, file: _AskedFile) -> None:
    images = {entry.study: entry.image for entry in curated.radiographs if entry.split == split}
    for entry in curated.agreed[split]:
        located = [region for region, present in entry.verdicts.items() if present and region != CHEST]
        for question in questions_of(entry):
            mask = entry.mask if question.present else None
            file.add(
                entry.study, entry.dicom_id, images[entry.study], question.instruction, question.finding,
                question.regions, question.present, located, mask,
            )  # fmt: skip
