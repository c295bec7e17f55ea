"""Sharded Parquet that can be gone on with: a shard is there whole or not at all, and equal input gives equal bytes.

Rows are made in two steps. *Drafts* are cheap and always come in the same order; a shard takes a fixed number of them.
A draft is *finished* (masks read, models run) only for a shard that is not there yet, so a stopped run repeats no work.
A row that cannot be made is counted under its reason, in the shard itself.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from training.curation.sources.problems import Problems
from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_whole

T = TypeVar("T")
Row = dict[str, Any]

_DROPPED, _KEY = b"xflow.dropped", b"xflow.key"


def write_shards(
    folder: Path,
    name: str,
    schema: pa.Schema,
    drafts: Iterable[T],
    finish: Callable[[T], list[Row | str]],
    key: str,
    drafts_each: int = 20_000,
) -> tuple[Counter[str], list[Row]]:
    """Write ``name-00000.parquet`` and so on into ``folder``.

    Args:
        finish: a draft's rows; a reason instead of each one that cannot be made.
        key: what the rows depend on (settings, inputs); a shard of another key is refused.

    Returns:
        Counts: "rows", and "dropped: <reason>" of all shards; and a list of the shards for a manifest, with rows and
        hash.

    Raises:
        CallError: a shard of another run is in the folder.
    """
    counts: Counter[str] = Counter(rows=0)
    shards: list[Row] = []
    remaining = iter(drafts)
    number = 0
    while taken := list(islice(remaining, drafts_each)):
        path = folder / f"{name}-{number:05d}.parquet"
        if not path.is_file():
            dropped: Counter[str] = Counter()
            rows = []
            for draft in taken:
                for made in finish(draft):
                    if isinstance(made, str):
                        dropped[made] += 1
                    else:
                        rows.append(made)
            marks = {_DROPPED: json.dumps(dict(sorted(dropped.items()))).encode(), _KEY: key.encode()}
            table = pa.Table.from_pylist(rows, schema=schema.with_metadata(marks))
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression="zstd")
            write_whole(path, buffer.getvalue())
        held = pq.read_schema(path).metadata or {}
        if held.get(_KEY, b"").decode() != key:
            raise CallError(f"{path} is of another run; choose another folder or remove it.")
        rows_held = pq.read_metadata(path).num_rows
        counts["rows"] += rows_held
        for reason, count in json.loads(held[_DROPPED]).items():
            counts[f"dropped: {reason}"] += count
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append({"file": path.name, "rows": rows_held, "sha256": digest})
        number += 1
    return counts, shards


def told(title: str, counts: Mapping[str, Mapping[str, int]], problems: Problems) -> bytes:
    """A stage's report for people: rows and drops by split, problems by kind."""
    lines = [title, "Not for clinical use.", ""]
    for split, held in counts.items():
        lines.append(f"{split}: {held['rows']:,} rows")
        lines += [f"    {count:,} x {name}" for name, count in sorted(held.items()) if name != "rows"]
    return ("\n".join([*lines, "", *problems.lines()]) + "\n").encode()
