"""The table of results, ``OUT/results.parquet``: its columns, the parts it is made from, and how it is put together.

A part holds the rows of :data:`PART_SIZE` successive images and is written, whole, as soon as all of them are done; the
table is the parts in order, beside the columns that the input list brought along. So a run holds the rows of the parts
that are under way and no others, whatever the number of images.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from xflow_core import NOT_FOR_CLINICAL_USE, __version__
from xflow_core.export.files import open_whole

SCHEMA_NAME = "xflow.batch/1"
TABLE_FILE = "results.parquet"
PART_SIZE = 500


@dataclass(frozen=True)
class Column:
    """A column of the table; ``meaning`` is also in the file, as the field's metadata."""

    name: str
    type: pa.DataType
    meaning: str


COLUMNS = (
    Column("position", pa.int64(), "The image's place in the input, counted from 0; rows are in its order."),
    Column("image", pa.string(), "The image's path as the input names it."),
    Column("instruction", pa.string(), "The sentence that was asked; none if it was not understood (see message)."),
    Column("finding", pa.string(), "One of the seven findings; none if no instruction was understood."),
    Column("regions", pa.list_(pa.string()), "Where the finding was asked for."),
    Column("level", pa.string(), "chest, lung or zone."),
    Column("status", pa.string(), "present, absent, refused, unsupported or failed."),
    Column("present", pa.bool_(), "The answer; none where there is no answer, which is never the same as absent."),
    Column("confidence", pa.float64(), "The probability that the model gave to what is stated."),
    Column("area_px", pa.int64(), "Pixels of the mask in the source image."),
    Column("area_mm2", pa.float64(), "The same in mm2, in the plane that spacing_kind names; none without a spacing."),
    Column("spacing_kind", pa.string(), "patient (calibrated), detector (uncalibrated) or none."),
    Column("seconds", pa.float64(), "Time for this answer, reading the image included."),
    Column(
        "reason",
        pa.string(),
        "Why there is no answer: instruction (not understood), unreadable, refused (not one frontal chest radiograph), "
        "unsupported (by the bundle), engine (the models failed), worker (its process died or took too long), not "
        "written.",
    ),
    Column("message", pa.string(), "The same in a sentence."),
    Column("bundle_name", pa.string(), "The bundle that answered."),
    Column("bundle_version", pa.string(), "Its version."),
    Column("bundle_backend", pa.string(), "Its backend."),
    Column("bundle_sha256", pa.string(), "The SHA-256 of its manifest, which names the SHA-256 of its weights."),
    Column("image_sha256", pa.string(), "The SHA-256 of the image file; none if it could not be read."),
    Column(
        "folder", pa.string(), "The folder of trace, mask and overlay, below the table's own; none if there is none."
    ),
)
SCHEMA = pa.schema([pa.field(column.name, column.type, metadata={"description": column.meaning}) for column in COLUMNS])


class Parts:
    """The rows of a run on their way to the disk.

    Parts of an earlier run on the same list may lie in the folder: of a part that this run does not complete, they keep
    the rows of images that it did not reach.
    """

    def __init__(self, folder: Path, images: int) -> None:
        self.folder = folder
        self.images = images
        self._open: dict[int, dict[int, Sequence[dict[str, Any]]]] = {}

    def __len__(self) -> int:
        """How many parts the whole list makes."""
        return -(-self.images // PART_SIZE)

    def add(self, position: int, rows: Sequence[dict[str, Any]]) -> None:
        """Keep an image's rows; the part that it completes is written.

        Raises:
            NotWritten: it cannot be.
        """
        number = position // PART_SIZE
        rows_of = self._open.setdefault(number, {})
        rows_of[position] = rows
        if len(rows_of) == min(PART_SIZE, self.images - number * PART_SIZE):
            self._write(number, rows_of)
            del self._open[number]

    def flush(self) -> None:
        """Write the parts that are not complete, as they are.

        Raises:
            NotWritten: one cannot be.
        """
        for number, rows_of in sorted(self._open.items()):
            earlier: dict[int, list[dict[str, Any]]] = {}
            for row in self.read(number).to_pylist():
                earlier.setdefault(row["position"], []).append(row)
            self._write(number, {**earlier, **rows_of})
        self._open.clear()

    def read(self, number: int) -> pa.Table:
        """The rows of a part in order of position; none of one that was not written, or is damaged."""
        try:
            return pq.read_table(self._file(number), schema=SCHEMA)
        except (OSError, pa.ArrowException):
            return SCHEMA.empty_table()

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:06}.parquet"

    def _write(self, number: int, rows_of: dict[int, Sequence[dict[str, Any]]]) -> None:
        rows = [row for position in sorted(rows_of) for row in rows_of[position]]
        write_tables(self._file(number), SCHEMA, iter([pa.Table.from_pylist(rows, schema=SCHEMA)]))


def write_table(out: Path, parts: Parts, carried: Iterator[pa.Table], carried_schema: pa.Schema, call: Any) -> Path:
    """Put the table together, one part at a time, and give it its name when it is whole.

    Args:
        carried: for each part, the list's further columns for its images.
        call: what was asked and of which bundle, for the file's metadata (as JSON).

    Raises:
        NotWritten: it cannot be written there; an earlier table stands.
    """
    metadata = {
        "schema": SCHEMA_NAME,
        "notice": NOT_FOR_CLINICAL_USE,
        "xflow_version": __version__,
        "call": json.dumps(call),
    }
    schema = pa.schema([*SCHEMA, *carried_schema], metadata=metadata)

    def tables() -> Iterator[pa.Table]:
        for number in range(len(parts)):
            rows = parts.read(number)
            beside = next(carried)
            places = pa.array([place - number * PART_SIZE for place in rows["position"].to_pylist()], pa.int64())
            columns = [*rows.columns, *(column.take(places) for column in beside.columns)]
            yield pa.Table.from_arrays(columns, schema=schema)

    path = out / TABLE_FILE
    write_tables(path, schema, tables())
    return path


def write_tables(path: Path, schema: pa.Schema, tables: Iterator[pa.Table]) -> None:
    """Write a Parquet file, one row group for each table, so that it is there whole or not at all.

    Raises:
        NotWritten: it cannot be written there.
    """
    with open_whole(path) as file, pq.ParquetWriter(file, schema) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
