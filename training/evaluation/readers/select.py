"""Which cases the readers see (paper, section 6.2 and C.1): drawn at random from the positive rows on which every
system returned a mask, equally many of each finding and level."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from training.evaluation.rows import Row
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS, LEVELS

TRUTH = "ground truth"

CELLS = tuple(
    (finding, level) for finding in FINDINGS for level in LEVELS if finding != "cardiomegaly" or level == "chest"
)
"""The 19 kinds of question; with five cases each they are the paper's 95."""


@dataclass(frozen=True)
class System:
    """A system's stored answers: ``presence.jsonl`` (``{"id", "present", ..}`` a line) and ``predictions/<row id>.png``
    of the source size, 0 and 255."""

    name: str
    folder: Path
    present: frozenset[str]
    known: frozenset[str]

    @classmethod
    def read(cls, name: str, folder: Path) -> System:
        """Raises CallError: the answers are missing or not well formed."""
        path = folder / "presence.jsonl"
        present, known = set(), set()
        number = 0
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                number += 1
                if line.strip():
                    entry = json.loads(line)
                    known.add(str(entry["id"]))
                    if entry["present"]:
                        present.add(str(entry["id"]))
        except OSError as problem:
            raise CallError(f"The answers of {name} cannot be read: {path} ({problem.strerror}).") from None
        except (ValueError, KeyError, TypeError):
            raise CallError(f'Line {number} of {path} is no answer; it needs "id" and "present".') from None
        return cls(name, folder, frozenset(present), frozenset(known))

    def mask(self, row: Row, size: tuple[int, int]) -> np.ndarray | None:
        """bool ``[H, W]``; None where the system called the finding absent or its mask has no pixel.

        Raises:
            CallError: there is no answer to the row, or its mask is missing, unreadable or of another size.
        """
        if row.id not in self.known:
            raise CallError(f"{self.name} has no answer to row {row.id} in {self.folder}.")
        if row.id not in self.present:
            return None
        path = self.folder / "predictions" / f"{row.id}.png"
        try:
            with Image.open(path) as picture:
                mask = np.asarray(picture.convert("L")) > 127
        except OSError as problem:
            raise CallError(f"The mask of {self.name} for row {row.id} cannot be read: {path} ({problem}).") from None
        if mask.shape != size:
            raise CallError(f"The mask of {self.name} for row {row.id} is {mask.shape}, its image {size}.")
        return mask if mask.any() else None


def select_cases(
    rows: Sequence[Row], rankable: Callable[[Row], bool], *, per_cell: int, seed: int, allow_fewer: bool = False
) -> list[Row]:
    """``per_cell`` positive rows of each of :data:`CELLS`, a radiograph twice only where there is no other.

    Args:
        rankable: whether every system returned a mask; asked of no more rows than are needed.
        allow_fewer: take what there is where a cell has fewer rows.

    Raises:
        CallError: a cell has fewer rows than asked for (the message names all such cells), or there is no row at all.
    """
    rng = np.random.default_rng(seed)
    chosen: list[Row] = []
    used: set[Path] = set()
    short = []
    for finding, level in CELLS:
        candidates = [
            row
            for row in rows
            if row.mask is not None and (row.instruction.finding, row.instruction.level) == (finding, level)
        ]
        drawn = [candidates[k] for k in rng.permutation(len(candidates))]
        taken: list[Row] = []
        for fresh in (True, False):
            for row in drawn:
                if len(taken) < per_cell and (row.image not in used) == fresh and row not in taken and rankable(row):
                    taken.append(row)
                    used.add(row.image)
        if len(taken) < per_cell:
            short.append(f"{finding} at {level} level has {len(taken)}")
        chosen += taken
    if short and not allow_fewer:
        raise CallError(
            f"{per_cell} cases of each finding and level are asked for, and {'; '.join(short)}. "
            "Ask for fewer, or take what there is with --allow-fewer."
        )
    if not chosen:
        raise CallError("No positive row has a mask by every system, so there is nothing to rank.")
    return chosen
