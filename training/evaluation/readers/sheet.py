"""What a reader is given: ``sheet.html``, one file that needs no network, or ``sheet.csv`` with ``panels/``.

Both ask for a rank of each letter, 1 for the best, the same rank for masks that look equally good. The page keeps what
was entered in the browser, saves it as the same CSV, and takes such a file back."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .design import LETTERS, Key, Placement
from .panels import CasePictures, jpeg_of, overlay_of

PAGE = Path(__file__).with_name("sheet.html")
HOW_TO = """Rank the masks of each case by how well they delineate what the question asks for: 1 is the best.
Give the same rank to masks that look equally good. Every mask of a case gets a rank.

Open sheet.html in a browser: it needs no network and keeps what you enter; "Save answers" writes the file to send back.
Or fill in the columns of sheet.csv, looking at the pictures in panels/.

Not for clinical use.
"""


def columns(systems: int) -> list[str]:
    return ["study", "seal", "reader", "case", "question", *LETTERS[:systems], "seconds", "comment"]


@dataclass(frozen=True, eq=False)
class ShownCase:
    """A case as one reader gets it."""

    placement: Placement
    question: str
    pictures: CasePictures


def blank_csv(key: Key, reader: str, questions: Sequence[str]) -> bytes:
    """The sheet to fill in; ``questions`` in the reader's sequence."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns(len(key.systems)), lineterminator="\n")
    writer.writeheader()
    for placement, question in zip(key.readers[reader], questions, strict=True):
        fixed = {"study": key.study, "seal": key.seal, "reader": reader}
        writer.writerow({**fixed, "case": placement.case, "question": question})
    return stream.getvalue().encode()


def page_parts(key: Key, reader: str, cases: Iterable[ShownCase]) -> Iterable[bytes]:
    """The page piece by piece, so that no more than one case's pictures are in memory. It names no system, no row and
    no file."""
    before, after = PAGE.read_text(encoding="utf-8").split("/*STUDY*/")
    letters = LETTERS[: len(key.systems)]
    head = {"study": key.study, "seal": key.seal, "reader": reader, "letters": letters}
    yield f"{before}const STUDY = {_json(head)};\nSTUDY.cases = [\n".encode()
    for shown in cases:
        height, width = shown.pictures.radiograph.shape
        entry = {
            "case": shown.placement.case,
            "question": shown.question,
            "size": [width, height],
            "middle": shown.pictures.middle,
            "radiograph": jpeg_of(shown.pictures.radiograph),
            "masks": [overlay_of(shown.pictures.masks[name]) for name in shown.placement.systems],
        }
        yield f"{_json(entry)},\n".encode()
    yield f"];\n{after}".encode()


def _json(value: object) -> str:
    """JSON that cannot end the script it stands in."""
    return json.dumps(value).replace("<", "\\u003c")
