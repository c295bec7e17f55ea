"""MIMIC-CXR-JPG: the radiographs' sizes, and whether a file is whole."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Collection
from pathlib import Path

from xflow_core.domain.errors import CallError

from .problems import Problems

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


def read_sizes(path: Path, problems: Problems, wanted: Collection[str] | None = None) -> dict[str, tuple[int, int]]:
    """``(height, width)`` by DICOM id from ``metadata.csv.gz``; of the wanted radiographs, or of all.

    Raises:
        CallError: the file is missing, damaged, or lacks the columns.
    """
    sizes: dict[str, tuple[int, int]] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            try:
                places = [header.index(name) for name in ("dicom_id", "Rows", "Columns")]
            except ValueError:
                raise CallError(
                    f"{path} lacks a column dicom_id, Rows or Columns; it is not MIMIC-CXR-JPG's."
                ) from None
            for number, row in enumerate(rows, start=2):
                try:
                    name, height, width = row[places[0]], int(float(row[places[1]])), int(float(row[places[2]]))
                except (IndexError, ValueError):
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
    except (OSError, EOFError) as problem:
        raise CallError(f"{path} cannot be read to its end: {problem}; download it again.") from None
    return sizes


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
