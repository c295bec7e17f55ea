"""What a system answered to an evaluation set, on disk: how every system, XFlow's bundles and others, is compared.

    FOLDER/predictions/<row id>.png   8-bit grey PNG of the source image's size, 0 and 255; a row answered "absent" has
                                      one too, all 0
    FOLDER/presence.jsonl             {"id", "present": bool, "probability": number | null}, one line a row

``present`` is true exactly where the mask has a pixel: the paper counts a returned mask as positive and an empty one as
negative (5.2). ``probability`` is that the finding is present, for systems that say so. A row without its file or its
line is an error and never an "absent".
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from training.evaluation.metrics import Answered, pixels_of
from training.evaluation.rows import Row
from xflow_core.domain.errors import CallError, NotWritten
from xflow_core.export.files import write_mask, write_whole
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.workflow.session import Limits

LOG = logging.getLogger(__name__)

MASKS = "predictions"
PRESENCE = "presence.jsonl"
_FEW = 64  # rows below which starting processes takes longer than the rows do


@dataclass(frozen=True)
class Stated:
    """A line of ``presence.jsonl``."""

    id: str
    present: bool
    probability: float | None

    def __post_init__(self) -> None:
        if type(self.present) is not bool:
            raise ValueError(f"present is {self.present!r}, not true or false")
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ValueError(f"the probability {self.probability} does not lie from 0 to 1")


class PredictionWriter:
    """Writes a folder of predictions, masks first and ``presence.jsonl`` when all are there.

    Raises:
        NotWritten: the folder cannot be made. CallError: a row is answered twice, or its id is no file name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stated: dict[str, Stated] = {}
        try:
            (folder / MASKS).mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise NotWritten(f"{folder / MASKS} cannot be made: {problem.strerror or problem}.") from None

    def add(self, row: str, mask: np.ndarray, probability: float | None = None) -> None:
        """Write a row's mask, bool ``[H, W]`` of the source size; all false where the system says "absent"."""
        if row in self._stated:
            raise CallError(f"Row {row} was answered twice.")
        write_mask(mask_file(self._folder, row), mask)
        self._stated[row] = Stated(row, bool(mask.any()), probability)

    def __enter__(self) -> PredictionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is None:
            lines = [
                json.dumps({"id": s.id, "present": s.present, "probability": s.probability}) + "\n"
                for s in self._stated.values()
            ]
            write_whole(self._folder / PRESENCE, "".join(lines).encode())


def mask_file(folder: Path, row: str) -> Path:
    """Where a row's mask lies.

    Raises:
        CallError: the id cannot be a file's name.
    """
    if not row or row != Path(row).name or "\\" in row or "\0" in row:
        raise CallError(f"The row id {row!r} cannot be a file name; ids of an evaluation set hold no slash.")
    return folder / MASKS / f"{row}.png"


def read_presence(folder: Path) -> dict[str, Stated]:
    """``presence.jsonl`` of a folder of predictions, by row id.

    Raises:
        CallError: it is missing, a line is not well formed, or an id stands there twice; the message names the line.
    """
    path = folder / PRESENCE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise CallError(f"{path} cannot be read: {reason}; a folder of predictions holds it and {MASKS}.") from None
    found: dict[str, Stated] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            stated = Stated(str(data["id"]), data["present"], data.get("probability"))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CallError(f"Line {number} of {path} is no statement of presence: {problem}.") from None
        if stated.id in found:
            raise CallError(f"Line {number} of {path} repeats the id {stated.id}.")
        found[stated.id] = stated
    return found


def answered_from(
    folder: Path, rows: Sequence[Row], partial: bool = False, workers: int | None = None
) -> list[Answered]:
    """The rows as the predictions in a folder answer them, in the set's order.

    Args:
        partial: leave out rows without a prediction; without it one of them is an error.
        workers: processes; all cores without it.

    Raises:
        CallError: a row has no prediction, a prediction has no row, a mask has another size than its image, or says
            another presence than its line; the message names the row.
    """
    stated = read_presence(folder)
    unknown = sorted(stated.keys() - {row.id for row in rows})
    if unknown:
        raise CallError(f"{folder / PRESENCE} answers {_named(unknown)}, which the set does not ask.")
    missing = [row.id for row in rows if row.id not in stated or not mask_file(folder, row.id).is_file()]
    if missing and not partial:
        raise CallError(
            f"{folder} holds no prediction of {_named(missing)}; a missing one is no 'absent'. Complete them, or give "
            f"--partial to measure the others alone."
        )
    left_out = set(missing)
    asked = [(folder, row, stated[row.id]) for row in rows if row.id not in left_out]
    if not asked:
        raise CallError(f"{folder} answers no row of the set.")
    if left_out:
        LOG.warning("%d of %d rows have no prediction and are left out", len(left_out), len(rows))
    if len(asked) < _FEW:
        return [_answered(*one) for one in asked]
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        return list(pool.map(_answered, *zip(*asked, strict=True), chunksize=32))


def image_size(row: Row) -> tuple[int, int]:
    """The ``(height, width)`` of a row's image, from its header where it is a plain picture.

    Raises:
        CallError: there is no such file. RadiographError: it is no image.
    """
    if not row.image.is_file():
        raise CallError(f"The image of row {row.id} is missing: {row.image}.")
    try:
        with Image.open(row.image) as picture:
            return picture.height, picture.width
    except UnidentifiedImageError:
        return read_radiograph(row.image).record.size


def _answered(folder: Path, row: Row, stated: Stated) -> Answered:
    # Before the rows run in parallel anyway, OpenCV's own threads only get in each other's way.
    cv2.setNumThreads(1)
    size = image_size(row)
    mask = read_mask(mask_file(folder, row.id), row.id)
    if mask.shape != size:
        raise CallError(f"The prediction of row {row.id} is {_by(mask.shape)}, its image {_by(size)}.")
    if bool(mask.any()) != stated.present:
        says = "present" if stated.present else "absent"
        raise CallError(f"Row {row.id} is stated as {says}, and its mask says otherwise; {folder} is not consistent.")
    return Answered(
        id=row.id,
        **row.radiograph,
        finding=row.instruction.finding,
        level=row.instruction.level,
        positive=row.mask is not None,
        returned=stated.present,
        probability=stated.probability,
        **pixels_of(mask, row.truth(size), Limits().speck_share),
    )


def read_mask(path: Path, name: str) -> np.ndarray:
    """A mask file as bool ``[H, W]``: 255 is inside, 0 outside.

    Raises:
        CallError: it is no grey picture of 0 and 255.
    """
    stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if stored is None:
        raise CallError(f"The mask of {name} is no readable picture: {path}.")
    if stored.dtype != np.uint8 or stored.ndim != 2 or np.count_nonzero(stored) != np.count_nonzero(stored == 255):
        raise CallError(f"The mask of {name} is no 8-bit grey picture of 0 and 255: {path}.")
    return np.asarray(stored == 255)


def _by(size: Sequence[Any]) -> str:
    return " x ".join(map(str, size))


def _named(rows: Sequence[str]) -> str:
    shown = ", ".join(rows[:3])
    return f"row {shown}" if len(rows) == 1 else f"{len(rows)} rows ({shown}{', ..' if len(rows) > 3 else ''})"
