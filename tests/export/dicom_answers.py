"""Answers about DICOM images, made by hand: what the tests of the report and of the presentation state share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from export.dicom_headers import BUNDLE, source

from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import (
    BoxesStep,
    Click,
    ClickStep,
    GroundedLung,
    ImageRecord,
    LesionBox,
    LungsStep,
    Mask,
    MaskStep,
    PresenceStep,
    Result,
    ResultStep,
    Step,
    Trace,
    Verdict,
)
from xflow_core.export.dicom_source import SourceInstance

SIZE = (301, 240)
LUNGS = LungsStep(
    lungs=(
        GroundedLung("right lung", Box(0.08, 0.12, 0.47, 0.85), 0.9),
        GroundedLung("left lung", Box(0.53, 0.12, 0.92, 0.85), 0.9),
    )
)
UPPER_ZONES = ("right upper zone lung", "left upper zone lung")


def source_of(size: tuple[int, int] = SIZE, **attributes: Any) -> SourceInstance:
    """A CR, MONOCHROME2 and without a spacing unless the attributes say otherwise."""
    return source(size, **attributes)


def record(source: SourceInstance, **more: Any) -> ImageRecord:
    """The trace's record of a source."""
    return ImageRecord(
        "ef" * 32,
        "dicom",
        source.size,
        sop_instance_uid=source.sop_instance_uid,
        spacing_mm=source.spacing_mm,
        spacing_kind=source.spacing_kind,
        **more,
    )


def disc(size: tuple[int, int], x: float, y: float, radius: float) -> np.ndarray:
    """A disc ``[H, W]``; the centre and the radius are shares of the width and the height, so it may be an ellipse."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    return ((rows + 0.5) / size[0] - y) ** 2 + ((columns + 0.5) / size[1] - x) ** 2 <= radius**2


def answer(
    source: SourceInstance,
    finding: str,
    regions: tuple[str, ...],
    *steps: Step,
    mask: np.ndarray | None = None,
    text: str | None = None,
    level: str = "chest",
    **more: Any,
) -> Trace:
    """An answer: present with a mask, absent without one."""
    image = record(source, **more)
    shape = None if mask is None else Mask.of(mask)
    area = 0 if shape is None else shape.area
    return Trace(
        image=image,
        instruction=Instruction(text or f"Segment the {finding}", finding, regions, level),
        bundle=BUNDLE,
        steps=(LUNGS, *steps, ResultStep(present=shape is not None, mask=shape, area_mm2=image.area_mm2(area))),
        result=Result("absent" if shape is None else "present", None, None, area, image.area_mm2(area)),
    )


def effusion(source: SourceInstance, **more: Any) -> Trace:
    """Present in the left lung, with a hole in the mask and a click of each polarity; absent in the right one."""
    mask = disc(source.size, 0.74, 0.72, 0.1) & ~disc(source.size, 0.74, 0.72, 0.03)
    return answer(
        source,
        "effusion",
        ("chest",),
        PresenceStep(verdicts=(Verdict("right lung", False, 0.97), Verdict("left lung", True, 0.91))),
        BoxesStep(boxes=(LesionBox(0, "effusion", Box(0.62, 0.6, 0.86, 0.84), "left lung", 0.8),)),
        MaskStep(component=0, turn=0, mask=Mask.of(disc(source.size, 0.74, 0.72, 0.08))),
        ClickStep(component=0, turn=1, click=Click("positive", Point.of_pixel(200, 175, source.size))),
        MaskStep(component=0, turn=1, mask=Mask.of(disc(source.size, 0.74, 0.72, 0.1))),
        ClickStep(component=0, turn=2, click=Click("negative", Point(0.74, 0.72))),
        MaskStep(component=0, turn=2, mask=Mask.of(mask)),
        mask=mask,
        **more,
    )


def consolidation(source: SourceInstance) -> Trace:
    """Present in both upper zones, a component in each."""
    right, left = disc(source.size, 0.28, 0.25, 0.05), disc(source.size, 0.72, 0.2, 0.04)
    return answer(
        source,
        "consolidation",
        UPPER_ZONES,
        PresenceStep(verdicts=tuple(Verdict(region, True, 0.8) for region in UPPER_ZONES)),
        BoxesStep(
            boxes=(
                LesionBox(0, "consolidation", Box(0.22, 0.2, 0.34, 0.3), UPPER_ZONES[0]),
                LesionBox(1, "consolidation", Box(0.67, 0.15, 0.77, 0.25), UPPER_ZONES[1]),
            )
        ),
        MaskStep(component=0, turn=0, mask=Mask.of(right)),
        MaskStep(component=1, turn=0, mask=Mask.of(left)),
        ClickStep(component=1, turn=1, click=Click("positive", Point(0.72, 0.2))),
        MaskStep(component=1, turn=1, mask=Mask.of(left)),
        mask=right | left,
        level="zone",
    )


def no_pneumonia(source: SourceInstance) -> Trace:
    """Absent from both lungs; the model computed no confidence for the left one."""
    verdicts = (Verdict("right lung", False, 0.9), Verdict("left lung", False, None))
    return answer(source, "pneumonia", ("chest",), PresenceStep(verdicts=verdicts), text="Is there pneumonia?")


def unanswered(source: SourceInstance, status: str, message: str = "The reason.") -> Trace:
    trace = answer(source, "edema", ("chest",))
    return replace(trace, steps=(), result=Result(status, message=message))


def a_call(source: SourceInstance) -> list[Trace]:
    """Present in one lung, present in two zones, absent, and without an answer."""
    return [effusion(source), consolidation(source), no_pneumonia(source), unanswered(source, "unsupported")]


CHEST_SOURCES = (
    "derived/m1_12bit_rle.dcm",
    "derived/m2_12bit.dcm",
    "derived/m2_12bit_j2k_lossless.dcm",
    "derived/m2_12bit_jpeg_lossless_sv1.dcm",
    "derived/m2_12bit_narrow_window.dcm",
    "derived/m2_12bit_voilut_sequence.dcm",
    "derived/m2_nospacing_implicit.dcm",
    "derived/study_frontal_m2_12bit.dcm",
    "real/Fake_MONOHR1.dcm",
    "real/RG1_J2KI.dcm",
    "real/siim_jpeg_baseline.dcm",
)
"""The chest radiographs of the open pack's ``dicom`` folder."""
