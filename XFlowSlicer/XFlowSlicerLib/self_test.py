"""What the module's self-test states, in real Slicer and in the tests' host alike. It needs neither engine nor network.

Each statement is a function whose docstring says what holds; it raises AssertionError where that does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import slicer

from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import parse_instruction
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
    StopStep,
    Trace,
    Verdict,
)

from . import record, volumes
from .history import Answer, History, Version, session_from_json, session_json
from .marks import Marks
from .question import understood
from .segments import RadiographSegments
from .steps import picture_at, rows

SIZE = (90, 120)


def phantom_volume() -> Any:
    """A volume node of 120 x 90 pixels with two dark lungs and a bright disc in the patient's left one."""
    values = np.full(SIZE, 120, np.uint8)
    values[10:80, 12:54] = values[10:80, 66:108] = 30
    values[disc()] = 200
    volume = slicer.mrmlScene.AddNewNodeByClass("vtkMRMLScalarVolumeNode", "Phantom")
    volume.SetIJKToRASDirections(-1, 0, 0, 0, -1, 0, 0, 0, 1)
    slicer.util.updateVolumeFromArray(volume, values[None])
    volume.CreateDefaultDisplayNodes()
    return volume


def disc(radius: int = 9) -> np.ndarray:
    """The lesion of :func:`phantom_volume`, bool ``[H, W]``."""
    y, x = np.indices(SIZE)
    return (y - 50) ** 2 + (x - 88) ** 2 <= radius**2


def answer() -> Trace:
    """An answer about the phantom, as an engine would give it."""
    (instruction,) = parse_instruction("Segment the opacity in the left lung")
    size = {"component": 0}
    steps = (
        LungsStep(lungs=(GroundedLung("left lung", Box(0.55, 0.1, 0.9, 0.9), 0.97),)),
        PresenceStep(verdicts=(Verdict("left lung", True, 0.91),)),
        BoxesStep(boxes=(LesionBox(0, "opacity", Box(0.64, 0.42, 0.83, 0.68), "left lung", 0.8),)),
        MaskStep(**size, turn=0, mask=Mask.of(disc(7)), predicted_iou=0.7),
        ClickStep(**size, turn=1, click=Click("positive", Point(0.8, 0.55))),
        MaskStep(**size, turn=1, mask=Mask.of(disc()), predicted_iou=0.9),
        StopStep(**size, reason="satisfied"),
        ResultStep(present=True, mask=Mask.of(disc())),
    )
    return Trace(
        image=ImageRecord(sha256="0" * 64, source="array", size=SIZE),
        instruction=instruction,
        bundle=BundleIdentity("self-test", "1", "none", "0" * 64),
        steps=steps,
        result=Result("present", confidence=0.91, area_px=int(disc().sum())),
    )


def a_question_is_understood() -> None:
    """A clinician's words are understood before anything runs, and what XFlow cannot answer is refused."""
    read = understood("RLL consolidation")
    assert read.ok and "consolidation, patient's right lung base" in read.sentence, read
    refused = understood("Segment the pneumothorax")
    assert not refused.ok and "effusion" in refused.sentence, refused


def every_step_is_shown_in_place() -> None:
    """Each step's boxes, clicks and mask are shown where they lie in the image, and taken out of the scene again."""
    volume, trace = phantom_volume(), answer()
    frame = volumes.frame_of(volume)
    before = slicer.mrmlScene.GetNumberOfNodes()
    marks, segments = Marks(volume, frame), RadiographSegments(volume, frame)
    for k in range(len(rows(trace))):
        picture = picture_at(trace, k)
        marks.show(picture)
        if picture.mask is not None:
            segments.show_preview(picture.mask, "opacity")
    rois = slicer.util.getNodesByClass("vtkMRMLMarkupsROINode")
    assert len(rois) == 2, f"a lung and a lesion box are shown, not {len(rois)}"
    box = trace.last(BoxesStep).boxes[0].box
    centres = [np.array(roi.GetCenter())[:2] for roi in rois]
    expected = np.array(frame.ras(box.centre))[:2]
    assert min(np.abs(centre - expected).max() for centre in centres) < 1e-3, (centres, expected)
    marks.clear()
    segments.close()
    left = slicer.mrmlScene.GetNumberOfNodes() - before
    assert not slicer.util.getNodesByClass("vtkMRMLMarkupsROINode"), "the boxes are still in the scene"
    assert left <= 0, f"{left} nodes are left in the scene"


def a_result_becomes_a_segment() -> None:
    """A result is a segment of exactly its pixels, beside the user's own, and can be taken back."""
    volume, trace = phantom_volume(), answer()
    segments = RadiographSegments(volume, volumes.frame_of(volume))
    segment = segments.write(trace)
    assert np.array_equal(segments.edited_mask(segment), disc()), "the segment is not the mask"
    assert segments.undo() is not None and segments.segment_of(trace) is None
    assert segments.redo() is not None and np.array_equal(segments.mask_of(trace), disc())
    segments.close()


def a_session_is_kept_in_the_scene() -> None:
    """The steps are saved with the scene, and read back the same."""
    volume, trace = phantom_volume(), answer()
    history = History((Answer((Version("as asked", trace).finished(),)),), 0)
    record.save(volume, session_json(history))
    restored = session_from_json(record.load(volume))
    assert restored.history.answers[0].version.trace == trace and not restored.lost


STATEMENTS = (
    a_question_is_understood,
    every_step_is_shown_in_place,
    a_result_becomes_a_segment,
    a_session_is_kept_in_the_scene,
)
