"""Evaluation sets: JSON lines, one question a line (DESIGN.md, "Evaluation set").

    {"id", "image", "instruction", "finding", "regions", "level", "mask": path | null, "lungs": {..} | null, "source"}

``mask: null`` is a negative row: the right answer is "absent". Paths are taken from the set's own folder when relative.
A set that knows more of its radiographs also says "patient", "view" ("PA", "AP", ..), "age" in years and "sex": figures
are given by them, and the bootstrap draws patients.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from xflow_core.domain.errors import CallError
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction


@dataclass(frozen=True)
class Row:
    """One question with its true answer. patient, view, age, sex: of the radiograph, where the set says so."""

    id: str
    image: Path
    instruction: Instruction
    mask: Path | None
    lungs: dict[str, Box] | None
    source: str
    patient: str | None = None
    view: str | None = None
    age: float | None = None
    sex: str | None = None

    @property
    def radiograph(self) -> dict[str, Any]:
        """What the set says of the radiograph, by the names that an answered row has for it."""
        return {
            "image": str(self.image),
            "source": self.source,
            "patient": self.patient,
            "view": self.view,
            "age": self.age,
            "sex": self.sex,
        }

    def truth(self, size: tuple[int, int]) -> np.ndarray:
        """The true mask, bool ``[H, W]``; all false for a negative row.

        Raises:
            CallError: the mask's file is missing, or of another size than the image.
        """
        if self.mask is None:
            return np.zeros(size, bool)
        try:
            mask = np.asarray(Image.open(self.mask).convert("L")) > 127
        except OSError as problem:
            raise CallError(f"The mask of row {self.id} cannot be read: {self.mask} ({problem}).") from None
        if mask.shape != size:
            raise CallError(f"The mask of row {self.id} is {mask.shape}, its image {size}.")
        if not mask.any():
            raise CallError(f"The mask of row {self.id} is empty; a negative row has null.")
        return mask


def read_rows(path: Path) -> list[Row]:
    """The rows of a set.

    Raises:
        CallError: the file or a line is not well formed; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8 text"
        raise CallError(f"The evaluation set {path} cannot be read: {reason}.") from None
    rows, seen = [], set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _row(json.loads(line), path.parent)
        except KeyError as problem:
            raise CallError(f"Line {number} of {path} is no row of an evaluation set: it has no {problem}.") from None
        except (ValueError, TypeError) as problem:
            reason = str(problem).rstrip(".")
            raise CallError(f"Line {number} of {path} is no row of an evaluation set: {reason}.") from None
        if row.id in seen:
            raise CallError(f"Line {number} of {path} repeats the id {row.id}.")
        seen.add(row.id)
        rows.append(row)
    if not rows:
        raise CallError(f"The evaluation set {path} holds no row.")
    return rows


def check_files(rows: Iterable[Row]) -> None:
    """Look for every row's image and mask before hours are spent.

    Raises:
        CallError: one is missing; the message names the row, and how many there are.
    """
    missing = [
        (row.id, what, path)
        for row in rows
        for what, path in (("image", row.image), ("mask", row.mask))
        if path is not None and not path.is_file()
    ]
    if missing:
        identity, what, path = missing[0]
        more = f" {len(missing) - 1} more files are." if len(missing) > 1 else ""
        raise CallError(f"The {what} of row {identity} is missing: {path}.{more}")


def _row(data: dict[str, Any], folder: Path) -> Row:
    for name, value in (("id", str(data["id"])), ("image", data["image"])):
        if not isinstance(value, str) or not value:
            raise ValueError(f"its {name} is {value!r}")
    instruction = Instruction(data["instruction"], data["finding"], tuple(data["regions"]), data["level"])
    lungs = data.get("lungs")
    return Row(
        id=str(data["id"]),
        image=folder / data["image"],
        instruction=instruction,
        mask=None if data["mask"] is None else folder / data["mask"],
        lungs=None if lungs is None else {label: Box(*box) for label, box in lungs.items()},
        source=str(data.get("source", "")),
        patient=_word(data.get("patient")),
        view=_word(data.get("view")),
        age=None if data.get("age") is None else float(data["age"]),
        sex=_word(data.get("sex")),
    )


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    from xflow_core.export.files import write_whole

    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
