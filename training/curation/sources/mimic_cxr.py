"""MIMIC-CXR-JPG: the radiographs' sizes, and whether a file is whole."""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from xflow_core.domain.errors import CallError

from .problems import Problems

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


def mark_of(*names: str) -> int:
    """A number that stands for some ids: a set of them takes a third of the memory of the ids themselves."""
    return int.from_bytes(hashlib.blake2b("/".join(names).encode(), digest_size=8).digest(), "big")


def read_marks(path: Path) -> set[int]:
    """:func:`mark_of` every radiograph's DICOM id, patient ("p########") and study ("s########").

    Raises:
        CallError: the file is missing, damaged, or lacks the columns.
    """
    rows = _rows(path, ("dicom_id", "subject_id", "study_id"))
    return {mark_of(row[0], f"p{row[1]}", f"s{row[2]}") for _, row in rows if row is not None}


def read_sizes(path: Path, problems: Problems, wanted: Collection[str] | None = None) -> dict[str, tuple[int, int]]:
    """``(height, width)`` by DICOM id from ``metadata.csv.gz``; of the wanted radiographs, or of all.

    Raises:
        CallError: the file is missing, damaged, or lacks the columns.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for number, row in _rows(path, ("dicom_id", "Rows", "Columns")):
        name, *sides = row or ("", "", "")
        try:
            height, width = (int(float(side)) for side in sides)
        except (ValueError, OverflowError):
            problems.add("row_malformed", path, f"line {number}")
            continue
        if height < 1 or width < 1:
            problems.add("row_malformed", path, f"line {number}", f"{height} x {width}")
        elif wanted is not None and name not in wanted:
            continue
        elif name in sizes:
            problems.add("metadata_repeated", path, name, f"line {number}")
        else:
            sizes[name] = (height, width)
    return sizes


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str] | None]]:
    """The lines' numbers and these columns; None for a line that does not have them."""
    try:
        # A byte that is no UTF-8 spoils its own field, not the table.
        with gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            if not set(columns) <= set(header):
                raise CallError(f"{path} lacks a column {' or '.join(columns)}; it is not MIMIC-CXR-JPG's.")
            places = [header.index(name) for name in columns]
            for number, row in enumerate(rows, start=2):
                yield number, [row[place] for place in places] if len(row) > max(places) else None
    except (OSError, EOFError, csv.Error, zlib.error) as problem:
        raise CallError(f"{path} cannot be read to its end: {problem}; download it again.") from None


def check_image(path: Path, size: tuple[int, int] | None, problems: Problems) -> bool:
    """Whether a JPEG is there, ends where a JPEG ends, and has the metadata's size. The pixels are not decoded."""
    from PIL import Image

    try:
        with open(path, "rb") as file:
            start = file.read(2)
            file.seek(-2, 2)
            end = file.read(2)
        if start != _JPEG_START or end != _JPEG_END:
            problems.add("image_truncated", path, path.stem)
            return False
        with Image.open(path) as picture:
            width, height = picture.size
    except FileNotFoundError:
        problems.add("image_missing", path, path.stem)
        return False
    except OSError as problem:
        problems.add("image_truncated", path, path.stem, str(problem))
        return False
    if size is not None and (height, width) != size:
        problems.add("image_size", path, path.stem, f"{height} x {width}, the metadata says {size[0]} x {size[1]}")
        return False
    return True
