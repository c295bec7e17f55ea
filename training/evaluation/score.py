"""``python -m training score --set SET.jsonl --predictions FOLDER --out DIR [--against FOLDER2] [--partial]``

Measures stored predictions (``training.evaluation.predictions`` has the format) and writes ``metrics.json``,
``per_row.csv`` and ``by_finding.png``, as ``evaluate`` does for a bundle. With ``--against`` it also compares the two
systems row by row, with paired intervals and tests, in ``comparison.json``. A row without a prediction is an error;
``--partial`` measures the others and says how many there are. Not for clinical use.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path

from training.evaluation.comparison import compare_all
from training.evaluation.evaluate import write_measured
from training.evaluation.predictions import answered_from
from training.evaluation.rows import check_files, read_rows
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", type=Path, required=True, dest="rows", help="the evaluation set, JSON lines")
    parser.add_argument("--predictions", type=Path, required=True, help="holds predictions/ and presence.jsonl")
    parser.add_argument("--against", type=Path, help="a second system's predictions")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--partial", action="store_true", help="measure although some rows have no prediction")
    parser.add_argument("--workers", type=int, default=None)


def run(arguments: argparse.Namespace) -> None:
    rows = read_rows(arguments.rows)
    check_files(rows)
    start = time.perf_counter()
    answered = answered_from(arguments.predictions, rows, arguments.partial, arguments.workers)
    LOG.info("%d rows read in %.1f s", len(answered), time.perf_counter() - start)
    name = arguments.predictions.name
    facts = {"set": arguments.rows.name, "system": name, "left_out": len(rows) - len(answered)}
    write_measured(arguments.out, answered, facts, f"{name} on {arguments.rows.name}, all levels")
    if arguments.against is not None:
        other = answered_from(arguments.against, rows, arguments.partial, arguments.workers)
        both = {row.id for row in answered} & {row.id for row in other}
        found = compare_all([r for r in answered if r.id in both], [r for r in other if r.id in both])
        figures = {"first": name, "second": arguments.against.name, "n": len(both), **found}
        write_whole(arguments.out / "comparison.json", (json.dumps(figures, indent=1) + "\n").encode())
