"""What the initial policy is to write for a row of ``training instructions``.

A constrained decoder gives every region that it judged present at least one box, region after region (DESIGN.md,
"Transcript grammar"). A target must be one that it can write, so the components' boxes are put in the order of the
verdicts, and where one component fills several of the regions (its box is the only one that reaches them), each further
region gets the part of the box that lies in it. A box that reaches into none of them (a mask that goes beyond the zones
asked for) cannot be written, and is left out. A row that even so has a present region without a box is no target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.findings import HEART, lung_of, region_band
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import GroundedLung, Verdict
from xflow_core.policies.transcript import (
    BOXES_PER_REGION,
    SquareFrame,
    regions_of_boxes,
    write_boxes,
    write_lungs,
    write_verdicts,
)

_EVERYWHERE = Box(0.0, 0.0, 1.0, 1.0)
_LEAST = 0.005  # a few steps of a transcript's grid: an overlap that is still there when all numbers are rounded


@dataclass(frozen=True)
class InitTarget:
    """The honest answer to one question.

    lungs: those that the question grounds. bands: where each present region lies, in the order of the verdicts.
    boxes: region after region. owners: the index in ``bands`` of each box. places: both lungs' boxes.
    """

    finding: str
    lungs: tuple[GroundedLung, ...]
    verdicts: tuple[Verdict, ...]
    bands: tuple[Box, ...]
    boxes: tuple[Box, ...]
    owners: tuple[int, ...]
    places: Mapping[str, Box]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> InitTarget:
        """From a row of the instructions' Parquet.

        Raises:
            ValueRefused: it has no lesion boxes (``--annotations-only``), a present region that no box reaches, or
                more boxes in one than a policy writes.
        """
        if row["boxes"] is None:
            raise ValueRefused(f"The row {row['id']} has no lesion boxes; make the instructions with the masks.")
        places = {lung["label"]: _box(lung["box"]) for lung in row["lungs"]}
        verdicts = tuple(Verdict(verdict["region"], verdict["present"]) for verdict in row["verdicts"])
        present = [verdict.region for verdict in verdicts if verdict.present]
        bands = tuple(_band(region, places) for region in present)
        boxes, owners = _ordered([_box(box) for box in row["boxes"]], bands, row["id"])
        lungs = tuple(GroundedLung(label, places[label]) for label in row["grounded"])
        return cls(row["finding"], lungs, verdicts, bands, boxes, owners, places)

    def pieces(self, frame: SquareFrame) -> list[str]:
        """The transcript, piece by piece."""
        return [
            *write_lungs(self.lungs, frame),
            *write_verdicts(self.verdicts),
            *write_boxes(self.finding, self.boxes, frame),
        ]

    def bands_of(self, regions: Sequence[str]) -> list[Box]:
        """Where regions lie, by the true lungs."""
        return [_band(region, self.places) for region in regions]

    def in_region(self, region: str) -> tuple[Box, ...]:
        """The boxes of one region; none where it is absent."""
        present = [verdict.region for verdict in self.verdicts if verdict.present]
        if region not in present:
            return ()
        index = present.index(region)
        return tuple(box for box, owner in zip(self.boxes, self.owners, strict=True) if owner == index)


def _band(region: str, lungs: Mapping[str, Box]) -> Box:
    lung = lung_of(region)
    return _EVERYWHERE if region == HEART or lung is None else region_band(region, lungs[lung])


def _box(numbers: Sequence[float]) -> Box:
    x1, y1, x2, y2 = (min(max(float(number), 0.0), 1.0) for number in numbers)
    return Box(x1, y1, x2, y2)


def _ordered(boxes: list[Box], bands: Sequence[Box], name: str) -> tuple[tuple[Box, ...], tuple[int, ...]]:
    if not bands:
        if boxes:
            raise ValueRefused(f"The row {name} has lesion boxes, but no region is present.")
        return (), ()
    of_region: list[list[Box]] = [[] for _ in bands]
    for box in boxes:
        shared = [0.0 if (part := _part(box, band)) is None else part.area for band in bands]
        if max(shared) > 0:
            of_region[shared.index(max(shared))].append(box)
    for found, band in zip(of_region, bands, strict=True):
        parts = [part for box in boxes if (part := _part(box, band)) is not None]
        if not found and parts:
            found.append(max(parts, key=lambda part: part.area))
        found.sort(key=lambda box: (box.y1, box.x1))
    ordered = tuple(box for found in of_region for box in found)
    # As whoever reads the transcript will tell which box is whose.
    owners = regions_of_boxes(ordered, bands, most=BOXES_PER_REGION)
    if set(owners) != set(range(len(bands))):
        raise ValueRefused(f"The row {name} says that a region is present that none of its boxes reaches.")
    if max(map(owners.count, owners)) > BOXES_PER_REGION:
        raise ValueRefused(f"The row {name} has more than {BOXES_PER_REGION} boxes in a region.")
    return ordered, owners


def _part(box: Box, band: Box) -> Box | None:
    """What of a box lies in a band; None where that is less than the numbers of a transcript can show."""
    part = box.intersect(band)
    if part is None or part.width < min(_LEAST, box.width) or part.height < min(_LEAST, box.height):
        return None
    return part
