"""What the runners share: the requests that are still open, and outputs that are there only when they are whole."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The system's own modules: a runner is started in its checkout.
sys.path.insert(0, os.getcwd())
# Scripts that draw as they go have no window to draw into.
os.environ.setdefault("MPLBACKEND", "Agg")


def options(what: str) -> argparse.ArgumentParser:
    """``--requests`` (the folder above this one) and ``--out``; a runner adds its own."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--out", type=Path, required=True, help="its native output, for `baselines read --native`")
    return parser


def opened(arguments: argparse.Namespace, output: str) -> Iterator[tuple[dict[str, Any], str, Path]]:
    """Each request without its output yet: the request, its picture, and where the output goes.

    output: its name in ``--out``, with ``{stem}``.
    """
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    lines = (arguments.requests / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    for number, request in enumerate(map(json.loads, lines), start=1):
        target = out / output.format(stem=request["stem"])
        if not target.exists():
            yield request, str((arguments.requests / request["image"]).resolve()), target
            print(f"{number} of {len(lines)}", file=sys.stderr)


@contextlib.contextmanager
def whole(target: Path) -> Iterator[str]:
    """A path to write to, which becomes ``target`` when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".part-{target.name}")
    yield str(part)
    os.replace(part, target)
