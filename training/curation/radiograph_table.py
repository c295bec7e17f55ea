"""A stage's radiographs with their sizes and lung boxes, looked up once and kept beside its shards.

The metadata and CheXmask's table hold all of MIMIC-CXR and are read from their first line to their last. That is done
by one process; those that make shards read the rows that they need.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.lung_boxes import Boxes, Sizes, lungs_from
from training.curation.paper import LungSettings
from training.curation.sources.layout import Sources
from training.curation.sources.mimic_cxr import read_sizes
from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box
from xflow_core.export.files import write_whole

# The sources that are tables themselves. Others look at each radiograph: that is the shards' work.
TABLES = ("chexmask", "run")
_BOX = pa.list_(pa.float64(), 4)
_COLUMNS = pa.schema([
    ("dicom_id", pa.string()),
    ("height", pa.int32()),
    ("width", pa.int32()),
    *((lung, _BOX) for lung in LUNGS),
])  # fmt: skip
_KEY, _LUNGS = b"xflow.key", b"xflow.lungs"


class Known:
    """What a table says of some radiographs. name: of the lung boxes' source. sizes: ``(height, width)``, of those that
    the metadata has."""

    def __init__(self, path: Path, wanted: Collection[str]) -> None:
        """
        Raises:
            CallError: there is no such table.
        """
        try:
            table = pq.read_table(path, filters=[("dicom_id", "in", set(wanted))]) if wanted else _COLUMNS.empty_table()
            self.name = (pq.read_schema(path).metadata or {}).get(_LUNGS, b"").decode()
        except (OSError, pa.ArrowInvalid) as problem:
            raise CallError(f"{path} cannot be read: {problem}; remove it and run this again.") from None
        self._rows = {row["dicom_id"]: row for row in table.to_pylist()}
        seen = ((name, row["height"], row["width"]) for name, row in self._rows.items())
        self.sizes: Sizes = {name: (height, width) for name, height, width in seen if height is not None}

    def of(self, dicom_id: str, image: Path) -> Boxes | None:
        """Both lungs' boxes; None where the source has none that can be used."""
        row = self._rows.get(dicom_id)
        return None if row is None or row[LUNGS[0]] is None else {lung: Box(*row[lung]) for lung in LUNGS}


def write_radiograph_table(
    path: Path, sources: Sources, settings: LungSettings, wanted: Sequence[str], key: str, problems: Problems
) -> None:
    """Look up sizes, and the lungs where their source is a table. A table of the same ``key`` that is there already
    stays. What could not be used stands in ``problems/`` beside it too.

    Raises:
        CallError: the metadata or the lungs' table is missing or damaged, or ``path`` cannot be written.
    """
    key = hashlib.sha256(json.dumps([key, list(wanted)]).encode()).hexdigest()
    told = path.parent / "problems" / f"{path.stem}.jsonl"
    if path.is_file() and told.is_file() and (pq.read_schema(path).metadata or {}).get(_KEY, b"").decode() == key:
        problems.take(told)
        return
    told.parent.mkdir(parents=True, exist_ok=True)
    with problems.into(told):
        sizes = read_sizes(sources.metadata, problems, set(wanted))
        lungs = None
        if settings.source in TABLES:
            lungs = lungs_from(settings, sources, set(wanted), problems, sizes)
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS.names}
        for dicom_id in wanted:
            height, width = sizes.get(dicom_id, (None, None))
            boxes = None if lungs is None else lungs.of(dicom_id, Path())
            values = (dicom_id, height, width, *(None if boxes is None else boxes[lung].to_json() for lung in LUNGS))
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    marks = {_KEY: key.encode(), _LUNGS: b"" if lungs is None else lungs.name.encode()}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, schema=_COLUMNS.with_metadata(marks)), buffer, compression="zstd")
    write_whole(path, buffer.getvalue())
