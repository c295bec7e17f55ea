"""``python -m training baselines write --system NAME --set SET.jsonl --out FOLDER``: a system's inputs.

Pictures, ``requests.jsonl`` and ``stdin.txt`` (``training.baselines.requests``), and for most systems ``runner/``, the
script that runs it over them in its own environment (``training.baselines.runners``). Pictures and questions of a
restricted set stay under its terms: run the system where they may be."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from training.baselines.catalogue import RUNNERS, system
from training.baselines.requests import write_requests
from training.evaluation.rows import read_rows
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", required=True)
    parser.add_argument("--set", type=Path, required=True, dest="rows")
    parser.add_argument("--out", type=Path, required=True)


def run(arguments: argparse.Namespace) -> None:
    one = system(arguments.system)
    requests = write_requests(read_rows(arguments.rows), arguments.out, one.prompt, one.boxes)
    if one.runner is not None:
        (arguments.out / "runner").mkdir(exist_ok=True)
        for script in (one.runner, RUNNERS / "requested.py"):
            write_whole(arguments.out / "runner" / script.name, script.read_bytes())
    LOG.info("%d requests in %s. Install: %s. Run: %s", len(requests), arguments.out, one.install, one.run)
