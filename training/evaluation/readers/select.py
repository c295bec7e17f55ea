"""Which cases the readers see (paper, section 6.2 and C.1): drawn at random from the positive rows on which every
system returned a mask, equally many of each finding and level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.evaluation.predictions import Stated, mask_file, read_mask, read_presence
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
    """A system and its stored predictions (:mod:`training.evaluation.predictions`)."""

    name: str
    folder: Path
    stated: dict[str, Stated]

    @classmethod
    def read(cls, name: str, folder: Path) -> System:
        """Raises CallError: the predictions are missing or not well formed."""
        return cls(name, folder, read_presence(folder))

    def mask(self, row: Row, size: tuple[int, int]) -> np.ndarray | None:
        """bool ``[H, W]``; None where the system called the finding absent.

        Raises:
            CallError: there is no answer to the row, or its mask is missing, unreadable, empty or of another size.
        """
        if row.id not in self.stated:
            raise CallError(f"{self.name} has no answer to row {row.id} in {self.folder}.")
        if not self.stated[row.id].present:
            return None
        mask = read_mask(mask_file(self.folder, row.id), f"{self.name} for row {row.id}")
        if mask.shape != size:
            raise CallError(f"The mask of {self.name} for row {row.id} is {mask.shape}, its image {size}.")
        if not mask.any():
            raise CallError(f"The mask of {self.name} for row {row.id} is empty, and stated as present.")
        return mask


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
