"""Reading the tables that a batch writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of the table in an output folder."""
    return pq.read_table(out / "results.parquet").to_pylist()


def answers(out: Path) -> list[tuple[Any, ...]]:
    """File name, finding, status and reason of each row."""
    return [(Path(row["image"]).name, row["finding"], row["status"], row["reason"]) for row in rows_of(out)]


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as two runs have them alike."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]
