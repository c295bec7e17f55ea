"""Traces made by hand: what a run on a small radiograph would leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import (
    BoxesStep,
    BundleIdentity,
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
    StopStep,
    Trace,
    Verdict,
)

BUNDLE = BundleIdentity("compact", "0.1.0", "compact", "cd" * 32)
LUNGS = LungsStep(
    lungs=(
        GroundedLung("right lung", Box(0.08, 0.12, 0.47, 0.85)),
        GroundedLung("left lung", Box(0.53, 0.12, 0.92, 0.85)),
    )
)


def filled_disc(size: tuple[int, int], row: float, column: float, radius: float) -> np.ndarray:
    """A disc of true pixels, ``[H, W]``; the centre and the radius are in pixels."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    return (rows - row) ** 2 + (columns - column) ** 2 <= radius**2


@pytest.fixture
def disc() -> Callable[..., np.ndarray]:
    return filled_disc


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """``make_trace(mask, *steps, spacing=None, kind="none", ..)``: an answer; ``mask`` None for an absent finding."""

    def make(
        mask: np.ndarray | None,
        *steps: Step,
        size: tuple[int, int] = (300, 240),
        spacing: tuple[float, float] | None = None,
        kind: str = "none",
        text: str = "Segment the effusion",
        finding: str = "effusion",
        regions: tuple[str, ...] = ("chest",),
        level: str = "chest",
        warnings: tuple[str, ...] = (),
        **more: Any,
    ) -> Trace:
        image = ImageRecord("ef" * 32, "png", size, spacing_mm=spacing, spacing_kind=kind, warnings=warnings)
        shape = None if mask is None else Mask.of(mask)
        area = 0 if shape is None else shape.area
        area_mm2 = None if shape is None else image.area_mm2(area)
        return Trace(
            image=image,
            instruction=Instruction(text, finding, regions, level),
            bundle=BUNDLE,
            steps=(*steps, ResultStep(present=shape is not None, mask=shape, area_mm2=area_mm2)),
            result=Result("absent" if mask is None else "present", None, None, area, area_mm2),
            **more,
        )

    return make


@pytest.fixture
def effusion(make_trace: Callable[..., Trace]) -> Trace:
    """Present in the left lung, absent in the right one, with one click of each polarity; spacing at the detector."""
    size = (300, 240)
    mask = filled_disc(size, 220, 175, 30)
    return make_trace(
        mask,
        LUNGS,
        PresenceStep(verdicts=(Verdict("right lung", False, 0.97), Verdict("left lung", True, 0.91))),
        BoxesStep(boxes=(LesionBox(0, "effusion", Box(0.6, 0.6, 0.9, 0.86), "left lung", 0.8),)),
        MaskStep(component=0, turn=0, mask=Mask.of(filled_disc(size, 220, 175, 25)), predicted_iou=0.7),
        ClickStep(component=0, turn=1, click=Click("positive", Point(0.75, 0.75))),
        MaskStep(component=0, turn=1, mask=Mask.of(filled_disc(size, 220, 175, 32))),
        ClickStep(component=0, turn=2, click=Click("negative", Point(0.62, 0.62))),
        MaskStep(component=0, turn=2, mask=Mask.of(mask), notes=("Cut at the box of the left lung.",)),
        StopStep(component=0, reason="satisfied"),
        spacing=(1.0, 1.0),
        kind="detector",
        seconds={"total": 1.25},
    )


@pytest.fixture
def no_effusion(make_trace: Callable[..., Trace]) -> Trace:
    verdicts = (Verdict("right lung", False, 0.97), Verdict("left lung", False, 0.88))
    return make_trace(None, LUNGS, PresenceStep(verdicts=verdicts))


@pytest.fixture
def display() -> np.ndarray:
    """A picture of 300 x 240 with structure everywhere, uint8."""
    rows, columns = np.mgrid[:300, :240]
    return (120 + 60 * np.sin(rows / 23) + 50 * np.cos(columns / 17)).astype(np.uint8)
