"""A third backend, small enough to read: bright discs in two dark lungs, found by a threshold.

It follows the same protocols as the compact and the foundation backend, computes its answers from the pixels, and
counts what it is asked, so that the tests of the workflow can say what was computed and what was kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from xflow_core.domain.findings import LUNGS, lung_of, region_band
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import BundleIdentity, Click, GroundedLung, ImageRecord, LesionBox, Verdict
from xflow_core.policies.protocols import Decision, Done
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import HeaderEvidence, Radiograph
from xflow_core.segmenters.protocol import Prediction, Prompt
from xflow_core.workflow.engine import Engine

SIZE = (200, 240)
LUNG_BOXES = {"right lung": Box(0.1, 0.1, 0.45, 0.9), "left lung": Box(0.55, 0.1, 0.9, 0.9)}
LESION = 0.6


def phantom(discs: Sequence[tuple[float, float, float]]) -> Radiograph:
    """A radiograph of 240 x 200 pixels with a bright disc per ``(x, y, radius in pixels)``."""
    values = np.full(SIZE, 0.5, np.float32)
    for box in LUNG_BOXES.values():
        values[box.mask(SIZE)] = 0.1
    rows, columns = np.indices(SIZE)
    for x, y, radius in discs:
        values[(rows - y * SIZE[0]) ** 2 + (columns - x * SIZE[1]) ** 2 <= radius**2] = 0.9
    record = ImageRecord(sha256="0" * 63 + str(len(discs)), source="png", size=SIZE)
    return Radiograph(
        values=values, display=(values * 255).astype(np.uint8), record=record, windows=(), header=HeaderEvidence()
    )


class PhantomParts:
    """All of an engine's parts in one object, with a count of every call."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.wanted_clicks = 2

    def _bright(self, image: EncodedRadiograph) -> np.ndarray:
        def encode(radiograph: Radiograph) -> np.ndarray:
            self.calls["encode"] += 1
            return radiograph.values > LESION

        return image.feature("phantom.bright", encode)

    def ground_lungs(
        self, image: EncodedRadiograph, instruction: Instruction, lungs: Sequence[str], *, seed: int
    ) -> Decision[tuple[GroundedLung, ...]]:
        self.calls["ground"] += 1
        return Decision(tuple(GroundedLung(lung, LUNG_BOXES[lung], 0.9) for lung in lungs))

    def _inside(self, image: EncodedRadiograph, region: str, lungs: Sequence[GroundedLung]) -> np.ndarray:
        boxes = {lung.label: lung.box for lung in lungs}
        bright = self._bright(image)
        lung = lung_of(region)
        return bright if lung is None else bright & region_band(region, boxes[lung]).mask(SIZE)

    def judge(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        regions: Sequence[str],
        lungs: Sequence[GroundedLung],
        *,
        seed: int,
    ) -> Decision[tuple[Verdict, ...]]:
        self.calls["judge"] += 1
        verdicts = []
        for region in regions:
            share = self._inside(image, region, lungs).mean()
            verdicts.append(Verdict(region, bool(share > 0), 0.9 if share > 0 else 0.8))
        return Decision(tuple(verdicts))

    def localise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        lungs: Sequence[GroundedLung],
        verdicts: Sequence[Verdict],
        *,
        seed: int,
    ) -> Decision[tuple[LesionBox, ...]]:
        self.calls["localise"] += 1
        boxes: list[LesionBox] = []
        for verdict in verdicts:
            if not verdict.present:
                continue
            inside = self._inside(image, verdict.region, lungs)
            labels, count = ndimage.label(inside)
            found = [Box.around(labels == number + 1) for number in range(count)]
            if not found:
                lung = lung_of(verdict.region)
                found = [region_band(verdict.region, LUNG_BOXES[lung or LUNGS[0]])]
            for box in found:
                assert box is not None
                boxes.append(LesionBox(len(boxes), instruction.finding, box, verdict.region, 0.7))
        return Decision(tuple(boxes))

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        self.calls["segment"] += 1
        self.calls["masks"] += len(prompts)
        rows, columns = np.indices(SIZE)
        predictions = []
        for prompt in prompts:
            if prompt.previous is not None:
                mask = prompt.previous.mask.copy()
            else:
                assert prompt.box is not None
                # The whole disc, also where it runs out of the box: the workflow has to cut.
                labels, _ = ndimage.label(self._bright(image))
                touched = np.unique(labels[prompt.box.mask(SIZE)])
                mask = np.isin(labels, touched[touched > 0]) if touched.max() > 0 else prompt.box.mask(SIZE)
            for click in prompt.clicks[-1:]:
                row, column = click.point.pixel(SIZE)
                near = (rows - row) ** 2 + (columns - column) ** 2 <= 36
                mask = mask | near if click.polarity == "positive" else mask & ~near
            predictions.append(Prediction(mask, 0.8))
        return predictions

    def revise(
        self,
        image: EncodedRadiograph,
        instruction: Instruction,
        component: LesionBox,
        masks: Sequence[np.ndarray],
        clicks: Sequence[Click],
        *,
        seed: int,
    ) -> Decision[Click | Done]:
        self.calls["revise"] += 1
        if len(clicks) >= self.wanted_clicks:
            return Decision(Done())
        centre = component.box.centre
        return Decision(Click("positive", Point(centre.x, min(centre.y + 0.05 * (len(clicks) + 1), 1.0))))


def phantom_engine(findings: tuple[str, ...] = ("opacity", "effusion", "cardiomegaly")) -> tuple[Engine, PhantomParts]:
    parts = PhantomParts()
    identity = BundleIdentity("phantom", "1", "phantom", "f" * 64)
    return Engine(identity, findings, init_policy=parts, revision_policy=parts, segmenter=parts), parts
