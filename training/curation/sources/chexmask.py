"""CheXmask: lungs and heart of a radiograph as run lengths.

Its runs are "start length start length ..", counted from 1 along the rows (C order), unlike COCO's columns.
"""

from __future__ import annotations

import csv
import gzip
import sys
import zlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from xflow_core.domain.errors import CallError, ValueRefused
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box

from .problems import Problems

# The authors' advice: keep Dice RCA (Mean) >= 0.7.
LEAST_QUALITY = 0.7
_LONGEST_SIDE = 100_000
_ID_COLUMNS = ("dicom_id", "image_id", "Image Index")


@dataclass(frozen=True)
class LungBoxes:
    """The tight boxes of both lungs, and the estimated Dice of the masks they come from."""

    dicom_id: str
    boxes: dict[str, Box]
    quality: float


def runs_of(text: str, size: tuple[int, int]) -> np.ndarray:
    """The runs as an int array ``[N, 2]`` of first pixel (from 0) and length.

    Raises:
        ValueRefused: not pairs of numbers, or outside an image of ``size`` ``(height, width)``; the message's first
            word is the kind of problem.
    """
    try:
        numbers = np.array(text.split(), np.int64)
    except (ValueError, OverflowError):
        raise ValueRefused("rle_odd: the runs are not whole numbers.") from None
    if numbers.size % 2:
        raise ValueRefused(f"rle_odd: {numbers.size} numbers are no pairs of start and length.")
    runs = numbers.reshape(-1, 2) - (1, 0)
    if not len(runs):
        raise ValueRefused("rle_empty: there is no run.")
    pixels = size[0] * size[1]
    # Each number by itself first: the sum of two large ones may run over.
    if runs.min() < 0 or runs[:, 1].min() < 1 or runs.max() > pixels or runs.sum(1).max() > pixels:
        raise ValueRefused(f"rle_overruns: the runs leave an image of {size[0]} x {size[1]} pixels.")
    return runs


def decode(text: str, size: tuple[int, int]) -> np.ndarray:
    """The mask, bool ``[H, W]``.

    Raises:
        ValueRefused: as :func:`runs_of`.
    """
    change = np.zeros(size[0] * size[1] + 1, np.int32)
    for first, length in runs_of(text, size):
        change[first] += 1
        change[first + length] -= 1
    return (np.cumsum(change[:-1]) > 0).reshape(size)


def box_of(text: str, size: tuple[int, int]) -> Box:
    """The tight box of the mask, without decoding it.

    Raises:
        ValueRefused: as :func:`runs_of`.
    """
    runs = runs_of(text, size)
    width = size[1]
    first, last = runs[:, 0], runs.sum(1) - 1
    top, bottom = int(first.min()) // width, int(last.max()) // width
    wraps = bool((first // width != last // width).any())
    left, right = (0, width - 1) if wraps else (int((first % width).min()), int((last % width).max()))
    return Box.of_pixels((left, top, right + 1, bottom + 1), size)


def read_lung_boxes(
    path: Path,
    problems: Problems,
    sizes: dict[str, tuple[int, int]] | None = None,
    wanted: Collection[str] | None = None,
    least_quality: float = LEAST_QUALITY,
) -> Iterator[LungBoxes]:
    """The usable lines of CheXmask's table (plain or ``.gz``), in constant memory but for the radiographs seen.

    Args:
        sizes: the radiographs' own ``(height, width)``, which a line must agree with.
        wanted: the radiographs that are of interest; others are passed over.

    Raises:
        CallError: the file is missing, damaged, or lacks the columns.
    """
    # Landmarks and runs are longer than the csv module's default of 128 KiB.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        with _opened(path) as file:
            rows = csv.reader(file)
            header = next(rows, [])
            name = next((column for column in _ID_COLUMNS if column in header), None)
            columns = (name, "Dice RCA (Mean)", "Right Lung", "Left Lung", "Height", "Width")
            if name is None or not set(columns) <= set(header):
                raise CallError(f"{path} lacks a column of CheXmask's: {', '.join(str(column) for column in columns)}.")
            places = [header.index(str(column)) for column in columns]
            seen: set[str] = set()
            for number, row in enumerate(rows, start=2):
                if len(row) != len(header):
                    problems.add("row_malformed", path, f"line {number}", f"{len(row)} of {len(header)} columns")
                    continue
                if wanted is None or row[places[0]] in wanted:
                    lungs = _lungs(path, number, [row[place] for place in places], problems, sizes, least_quality)
                    if lungs is not None and lungs.dicom_id in seen:
                        problems.add("row_repeated", path, lungs.dicom_id, f"line {number}")
                    elif lungs is not None:
                        seen.add(lungs.dicom_id)
                        yield lungs
    except (OSError, EOFError, csv.Error, zlib.error) as problem:
        raise CallError(f"{path} cannot be read to its end: {problem}; download it again.") from None


def _lungs(
    path: Path,
    number: int,
    values: list[str],
    problems: Problems,
    sizes: dict[str, tuple[int, int]] | None,
    least_quality: float,
) -> LungBoxes | None:
    dicom_id = values[0]
    try:
        quality, size = float(values[1]), (int(float(values[4])), int(float(values[5])))
    except (ValueError, OverflowError):
        problems.add("row_malformed", path, f"line {number}", dicom_id)
        return None
    if not 1 <= min(size) <= max(size) <= _LONGEST_SIDE:
        problems.add("row_malformed", path, f"line {number}", f"{dicom_id}: {size[0]} x {size[1]} pixels")
        return None
    if sizes is not None and sizes.get(dicom_id, size) != size:
        problems.add("size_differs", path, dicom_id, f"{size}, the radiograph is {sizes[dicom_id]}")
        return None
    if not quality >= least_quality:
        problems.add("low_quality", path, dicom_id, f"{quality:.2f} < {least_quality}")
        return None
    boxes = {}
    for label, runs in zip(LUNGS, values[2:4], strict=True):
        try:
            boxes[label] = box_of(runs, size)
        except ValueRefused as problem:
            kind, what = str(problem).split(": ", 1)
            problems.add(kind, path, dicom_id, f"{label}: {what}")
            return None
    return LungBoxes(dicom_id, boxes, quality)


def _opened(path: Path) -> AbstractContextManager[TextIO]:
    # A byte that is no UTF-8 spoils its own field, not the table.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="")  # type: ignore[return-value]
    return open(path, encoding="utf-8", errors="replace", newline="")
