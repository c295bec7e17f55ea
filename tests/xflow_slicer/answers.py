"""Finished traces, made by hand: an answer with a mask, an absence, no answer."""

from __future__ import annotations

import numpy as np

from xflow_core.domain.findings import level_of, verdict_regions
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import (
    BundleIdentity,
    ImageRecord,
    Mask,
    PresenceStep,
    Result,
    ResultStep,
    Step,
    Trace,
    Verdict,
)

SIZE = (40, 50)
"""Of the image, ``(H, W)``."""


def disc(row: float, column: float, radius: float, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A disc as a bool mask ``[H, W]``."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (rows - row) ** 2 + (columns - column) ** 2 < radius**2


def answer(
    mask: np.ndarray | None,
    finding: str = "effusion",
    regions: tuple[str, ...] = ("left lung",),
    status: str | None = None,
    where: tuple[str, ...] | None = None,
    size: tuple[int, int] = SIZE,
) -> Trace:
    """A finished trace: present in ``where`` (by default in all regions asked about) when there is a mask."""
    status = status or ("absent" if mask is None else "present")
    places = verdict_regions(regions)
    steps: tuple[Step, ...] = ()
    if status in ("present", "absent"):
        found = () if mask is None else places if where is None else where
        verdicts = tuple(Verdict(region, region in found) for region in places)
        result = ResultStep(present=mask is not None, mask=None if mask is None else Mask.of(mask))
        steps = (PresenceStep(verdicts=verdicts), result)
    return Trace(
        image=ImageRecord("0" * 64, "array", size),
        instruction=Instruction(f"Segment the {finding}", finding, regions, level_of(regions[0])),
        bundle=BundleIdentity("test", "1", "phantom", "0" * 64),
        steps=steps,
        result=Result(status, area_px=0 if mask is None else int(mask.sum())),
    )
