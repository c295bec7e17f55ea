"""``python -m training readers prepare --set SET.jsonl --system NAME=FOLDER .. --out DIR``

Draws the cases of a reader study and writes, for each reader, ``DIR/<reader>/`` with ``sheet.html``, ``sheet.csv``,
``panels/`` and ``how-to.txt``, and for whoever runs the study ``DIR/key.json``: keep it from the readers until all have
answered. The true mask takes part as "ground truth". A system's FOLDER holds ``presence.jsonl`` and
``predictions/<row id>.png``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from training.evaluation.predictions import image_size
from training.evaluation.rows import Row, read_rows
from xflow_core.domain.errors import CallError
from xflow_core.export.files import open_whole, write_whole
from xflow_core.radiograph.reading import read_radiograph

from .design import Key, arrange
from .panels import CasePictures, panel_of
from .select import TRUTH, System, select_cases
from .sheet import HOW_TO, ShownCase, blank_csv, page_parts

LOG = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,39}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", type=Path, required=True, dest="rows", help="the evaluation set, JSON lines")
    parser.add_argument(
        "--system", action="append", required=True, metavar="NAME=FOLDER", help="repeat for each system"
    )
    parser.add_argument("--readers", default="reader-1,reader-2,reader-3", help="their names, with commas")
    parser.add_argument("--per-cell", type=int, default=5, help="cases of each finding and level")
    parser.add_argument("--allow-fewer", action="store_true", help="take what there is where a cell has fewer")
    parser.add_argument("--seed", type=int, help="of the draw; by default nobody knows it")
    parser.add_argument("--out", type=Path, required=True)


def systems_of(given: Sequence[str]) -> list[System]:
    """Raises CallError: not ``NAME=FOLDER``, a name twice, or answers that cannot be read."""
    systems: list[System] = []
    for word in given:
        name, equals, folder = word.partition("=")
        if not equals or not name or not folder:
            raise CallError(f"--system {word} is not NAME=FOLDER.")
        if name in (TRUTH, *(system.name for system in systems)):
            raise CallError(f"There are two systems called {name!r}.")
        systems.append(System.read(name, Path(folder)))
    return systems


def pictures_of(row: Row, systems: Sequence[System]) -> CasePictures:
    """The radiograph and all masks of a row at the study's size."""
    display = read_radiograph(row.image).display
    size = (display.shape[0], display.shape[1])
    masks = {TRUTH: row.truth(size)}
    for system in systems:
        mask = system.mask(row, size)
        if mask is None:
            raise CallError(f"{system.name} returned no mask for row {row.id}.")
        masks[system.name] = mask
    return CasePictures.of(display, masks)


def write_study(key: Key, rows: Sequence[Row], systems: Sequence[System], out: Path) -> None:
    """Write what the readers get, and the key last."""
    by_id = {row.id: row for row in rows}
    for reader, placements in key.readers.items():
        folder = out / reader
        (folder / "panels").mkdir(parents=True, exist_ok=True)
        questions = [by_id[placement.row].instruction.text for placement in placements]

        def shown(folder: Path = folder, reader: str = reader) -> Iterator[ShownCase]:
            for placement in key.readers[reader]:
                row = by_id[placement.row]
                pictures = pictures_of(row, systems)
                title = f"Case {placement.case}: {row.instruction.text}"
                write_whole(
                    folder / "panels" / f"{placement.case:03d}.png", panel_of(pictures, placement.systems, title)
                )
                yield ShownCase(placement, row.instruction.text, pictures)

        with open_whole(folder / "sheet.html") as page:
            for part in page_parts(key, reader, shown()):
                page.write(part)
        write_whole(folder / "sheet.csv", blank_csv(key, reader, questions))
        write_whole(folder / "how-to.txt", HOW_TO.encode())
        LOG.info("%s: %d cases", reader, len(placements))
    write_whole(out / "key.json", (json.dumps(key.to_json(), indent=1) + "\n").encode())
    os.chmod(out / "key.json", 0o600)


def run(arguments: argparse.Namespace) -> None:
    readers = [name.strip() for name in arguments.readers.split(",") if name.strip()]
    for name in readers:
        if not _NAME.fullmatch(name) or name in ("key.json",):
            raise CallError(f"A reader's name becomes a folder: letters, digits, blanks, - and _; not {name!r}.")
    if not readers or len({name.casefold() for name in readers}) != len(readers):
        raise CallError("--readers names each reader once.")
    if arguments.per_cell < 1:
        raise CallError(f"--per-cell is {arguments.per_cell}; it counts from 1.")
    if (arguments.out / "key.json").exists():
        raise CallError(
            f"{arguments.out} holds a study already, whose sheets may be with readers; choose another folder."
        )
    systems = systems_of(arguments.system)
    rows = read_rows(arguments.rows)

    def rankable(row: Row) -> bool:
        size = image_size(row)
        return all(system.mask(row, size) is not None for system in systems)

    seed = secrets.randbits(64) if arguments.seed is None else arguments.seed
    cases = select_cases(rows, rankable, per_cell=arguments.per_cell, seed=seed, allow_fewer=arguments.allow_fewer)
    key = arrange(cases, [TRUTH, *(system.name for system in systems)], readers, arguments.seed)
    write_study(key, cases, systems, arguments.out)
    LOG.info("%d cases for %d readers in %s; sealed as %s", len(cases), len(readers), arguments.out, key.seal)
