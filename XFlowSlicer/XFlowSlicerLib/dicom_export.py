"""What leaves Slicer: the session's current answers, with the masks as they stand in the scene.

Of a DICOM radiograph a segmentation, a report and a presentation state (SEG, SR, PR). Of any other image a folder per
finding with the mask as PNG, the trace as JSON and the overlay, and a sentence that says why there is no DICOM.

Three parts, by the thread that may call them: :func:`collect` reads the scene (the UI thread, quick); :func:`write`
makes the files (any thread: it touches neither MRML nor Qt); :func:`add_to_database` gives Slicer's DICOM database one
file (the UI thread, a call for each file, so that events are handled in between).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import slicer

from xflow_core.domain.errors import ExportError, NotWritten
from xflow_core.domain.findings import CHEST, HEART
from xflow_core.domain.trace import BoxesStep, Branch, Mask, MaskStep, ResultStep, StopStep, Trace
from xflow_core.export import image_name, write_result

from . import record, volumes
from .history import session_from_json
from .image_frame import ImageFrame
from .nodes import ROLE, VOLUME
from .segments import RESULTS, RadiographSegments

EDITED = "Edited by the user in 3D Slicer."
"""The note of a step whose mask is the user's."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A current answer, and of a present one its mask in the scene: bool ``[H, W]``, a pixel at least."""

    trace: Trace
    mask: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Shown:
    """The radiograph as the slice view shows it, to be made grey levels of in another thread.

    Attributes:
        values: ``[H, W]``, any number type.
        window: the values that are shown black and white (the first the greater one, of an inverted picture); None for
            the least and the greatest.
    """

    values: np.ndarray
    window: tuple[float, float] | None

    def display(self) -> np.ndarray:
        """Grey levels, uint8 ``[H, W]``."""
        values = self.values.astype(np.float32)
        dark, bright = self.window or (float(values.min()), float(values.max()))
        scaled = (values - dark) * (255.0 / (bright - dark) if bright != dark else 0.0)
        return np.clip(scaled, 0.0, 255.0).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class Collected:
    """What is to be written, free of the scene.

    Attributes:
        source: the radiograph's DICOM file; None when it has none.
        name: of the folder of results.
        sentences: what the reader should know, such as an answer that is left out.
    """

    answers: tuple[Answer, ...]
    source: Path | None
    shown: Shown
    name: str
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        folder: the new folder that holds it.
        files: all of it.
        dicom: the DICOM files among them, for :func:`add_to_database`; none without a DICOM source.
        sentences: what the reader should know.
    """

    folder: Path
    files: tuple[Path, ...]
    dicom: tuple[Path, ...]
    sentences: tuple[str, ...]


def collect(volume: Any, traces: Sequence[Trace], segments: RadiographSegments) -> Collected:
    """The answers of a radiograph, as the scene shows them; UI thread.

    Args:
        volume: the radiograph's volume node.
        traces: the current answers: one per question, of the branch that is selected. Those that still run are left
            out.
        segments: the volume's.

    Raises:
        ExportError: there is no answer to export; the sentence says what became of those that were given.
        XFlowError: the volume is no radiograph.
    """
    answers, sentences = [], []
    for trace in traces:
        if trace.result is None:
            continue
        mask = None
        if trace.result.present:
            mask = segments.mask_of(trace)
            if mask is None or not mask.any():
                state = "is no longer in the scene" if mask is None else "is empty"
                sentences.append(
                    f"{_name(trace)}: its segment {state}, so it is left out. If the finding is absent, set its "
                    "verdict to absent."
                )
                continue
        answers.append(Answer(trace, mask))
    if not answers:
        raise ExportError(" ".join(("There is no answer to export yet.", *sentences)))
    source = volumes.source_file(volume)
    called = re.sub(r"[/\\]", "_", volume.GetName() or "")
    name = f"{image_name(called)}-{answers[0].trace.image.sha256[:8]}"
    return Collected(tuple(answers), source, _shown(volume, volumes.frame_of(volume)), name, tuple(sentences))


def collect_saved(segmentation: Any) -> Collected:
    """The same for a segmentation of results, of the session that the scene keeps with it; UI thread, not quick: the
    session is read anew.

    Raises:
        ExportError: it is no segmentation of results, or the scene keeps no session of its radiograph.
        ValueRefused: the session is damaged.
    """
    volume = segmentation.GetNodeReference(VOLUME)
    text = None if volume is None else record.load(volume)
    if segmentation.GetAttribute(ROLE) != RESULTS or text is None:
        raise ExportError(
            f"The scene keeps no XFlow session of {segmentation.GetName()}; export it from the XFlow module."
        )
    answers = session_from_json(text).history.answers
    segments = RadiographSegments(volume, volumes.frame_of(volume))
    try:
        return collect(volume, [answer.version.trace for answer in answers], segments)
    finally:
        segments.close()


def write(collected: Collected, folder: str | Path, *, reviewed: bool = False, geometry: str = "synthetic") -> Exported:
    """Write the answers to a new folder inside ``folder``, whole or not at all; any thread.

    Nothing that is there is replaced: the new folder has a name of its own.

    Args:
        reviewed: whether a person has looked at the result and stands by it.
        geometry: of a SEG whose source has no Frame of Reference: ``synthetic`` or ``none``.

    Raises:
        NotWritten: the folder cannot be written; nothing is left there.
        CallError: the geometry has another name.
    """
    folder = Path(folder)
    answered = [_as_in_scene(answer) for answer in collected.answers]
    sentences = [*collected.sentences, *(f"{_name(trace)}: {note}" for trace, note in answered if note)]
    traces = [trace for trace, _ in answered]
    new = folder / f".{collected.name}.{secrets.token_hex(6)}.part"
    try:
        new.mkdir(parents=True)
        dicom, more = _write_dicom(new, traces, collected.source, reviewed, geometry)
        sentences += more
        if not dicom:
            _write_pictures(new, traces, collected.shown)
        files = sorted(path.relative_to(new) for path in new.rglob("*") if path.is_file())
        place = _settled(new, folder, collected.name)
    except (OSError, NotWritten) as problem:
        cause: BaseException | None = problem
        while isinstance(cause, NotWritten):
            cause = cause.__cause__
        reason = getattr(cause, "strerror", None) or "it cannot be written"
        raise NotWritten(
            f"Nothing was exported to {folder}: {reason}. Choose another folder or make room there."
        ) from problem
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Exported(
        folder=place,
        files=tuple(place / file for file in files),
        dicom=tuple(place / name for name in dicom),
        sentences=tuple(dict.fromkeys(sentences)),
    )


def add_to_database(path: str | Path) -> str | None:
    """Give a DICOM file to Slicer's DICOM database, which keeps a copy; UI thread.

    Returns:
        None when it was taken, otherwise a sentence that says why it was not.
    """
    database = getattr(slicer, "dicomDatabase", None)
    if database is None or not database.isOpen:
        return "Slicer has no DICOM database open, so the results are in the folder only."
    import pydicom

    database.insert(str(path))
    uid = str(pydicom.dcmread(path, specific_tags=["SOPInstanceUID"], stop_before_pixels=True).SOPInstanceUID)
    if not database.fileForInstance(uid):
        return f"Slicer's DICOM database did not take {Path(path).name}; it is in the folder."
    return None


def edited(trace: Trace, mask: np.ndarray) -> Trace:
    """The answer with the user's ``mask`` in the place of its own, as a branch of it.

    Each component's last mask becomes the user's, where it changed, and the user's stop follows, as when the engine is
    given an edited mask to keep. What is left of a component stays its own, and a pixel that the user added belongs to
    the component whose box is nearest.

    Args:
        trace: of a present finding.
        mask: bool ``[H, W]`` with a pixel at least.
    """
    places = {step.component: k for k, step in enumerate(trace.steps) if isinstance(step, MaskStep)}
    drawn: dict[int, MaskStep] = {}
    for component, part in _parts(trace, places, mask).items():
        last = trace.steps[places[component]]
        assert isinstance(last, MaskStep)
        if Mask.of(part) != last.mask:
            drawn[component] = MaskStep(
                component=component, turn=last.turn, mask=Mask.of(part), origin="user", notes=(EDITED,)
            )
    steps = []
    for k, step in enumerate(trace.steps):
        component = step.component if isinstance(step, (MaskStep, StopStep)) else None
        if isinstance(step, ResultStep) or (isinstance(step, StopStep) and component in drawn):
            continue
        steps.append(drawn[component] if component in drawn and k == places[component] else step)
    steps += [StopStep(component=component, reason="user", origin="user") for component in drawn]
    whole = Mask.of(mask)
    area = trace.image.area_mm2(whole.area)
    # Without components there is no other step that could say that the mask is the user's.
    by_user = {} if drawn else {"origin": "user", "notes": (EDITED,)}
    steps.append(ResultStep(present=True, mask=whole, area_mm2=area, **by_user))
    first = min((places[component] for component in drawn), default=len(trace.steps) - 1)
    assert trace.result is not None
    return replace(
        trace,
        steps=tuple(steps),
        result=replace(trace.result, area_px=whole.area, area_mm2=area, mask_file=None),
        branch_of=Branch(trace.id, first),
        seconds={},
    )


def _parts(trace: Trace, places: dict[int, int], mask: np.ndarray) -> dict[int, np.ndarray]:
    """The user's mask shared among the components."""
    if len(places) == 1:
        return dict.fromkeys(places, mask)
    parts = {}
    added = mask.copy()
    for component, k in places.items():
        last = trace.steps[k]
        assert isinstance(last, MaskStep)
        was = last.mask.array
        parts[component] = was & mask
        added &= ~was
    boxes: BoxesStep | None = trace.last(BoxesStep)
    if not parts or boxes is None or not added.any():
        return parts
    rows, columns = np.nonzero(added)
    height, width = mask.shape
    distances = []
    for component in parts:
        box = boxes.boxes[component].box
        across = np.maximum(np.maximum(box.x1 * width - columns - 0.5, columns + 0.5 - box.x2 * width), 0.0)
        down = np.maximum(np.maximum(box.y1 * height - rows - 0.5, rows + 0.5 - box.y2 * height), 0.0)
        distances.append(np.hypot(across, down))
    nearest = np.argmin(distances, axis=0)
    for index, part in enumerate(parts.values()):
        part[rows[nearest == index], columns[nearest == index]] = True
    return parts


def _as_in_scene(answer: Answer) -> tuple[Trace, str]:
    """The answer with the mask that the scene shows, and what to say of it; nothing when the mask is still its own."""
    step: ResultStep | None = answer.trace.last(ResultStep)
    if answer.mask is None or step is None or step.mask is None:
        return answer.trace, ""
    mask = Mask.of(answer.mask)
    if mask == step.mask:
        return answer.trace, ""
    trace = edited(answer.trace, answer.mask)
    return trace, f"the mask is as you edited it, {mask.area:,} px; the answer's had {step.mask.area:,} px."


def _write_dicom(
    folder: Path, traces: Sequence[Trace], source: Path | None, reviewed: bool, geometry: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the DICOM files that were written, and sentences; without names, why there are none."""
    instead = "the masks, overlays and traces are PNG and JSON files instead of DICOM"
    if source is None:
        came = (
            "The radiograph's DICOM file is not in Slicer's DICOM database"
            if traces[0].image.source == "dicom"
            else "The image did not come from a DICOM file"
        )
        return (), (f"{came}: {instead}.",)
    # Loads highdicom, which takes its time: here, in the worker's thread, and not when Slicer starts.
    from xflow_core.export.dicom import read_source, write_dicom

    try:
        files = write_dicom(folder, traces, read_source(source), reviewed=reviewed, geometry=geometry)
    except ExportError as problem:
        return (), (f"{problem} So {instead}.",)
    return tuple(path.name for path in files.paths), files.warnings


def _write_pictures(folder: Path, traces: Sequence[Trace], shown: Shown) -> None:
    """A folder for each answer, as the ``xflow`` command writes them; a finding that was asked twice has two."""
    display = shown.display()
    taken: set[str] = set()
    for trace in traces:
        name = trace.instruction.finding
        while name in taken:
            head, _, number = name.partition("-")
            name = f"{head}-{int(number or 1) + 1}"
        taken.add(name)
        write_result(folder / name, trace, display)


def _settled(new: Path, folder: Path, name: str) -> Path:
    """Give the finished folder a name that is free."""
    number = 1
    while True:
        place = folder / (name if number == 1 else f"{name}-{number}")
        if not os.path.lexists(place):
            os.rename(new, place)
            return place
        number += 1


def _shown(volume: Any, frame: ImageFrame) -> Shown:
    values = np.array(frame.to_image(slicer.util.arrayFromVolume(volume)))
    node = volume.GetScalarVolumeDisplayNode()
    if node is None or node.GetWindow() == 0:
        return Shown(values, None)
    dark, bright = node.GetWindowLevelMin(), node.GetWindowLevelMax()
    inverted = node.GetColorNodeID() == "vtkMRMLColorTableNodeInvertedGrey"
    return Shown(values, (bright, dark) if inverted else (dark, bright))


def _name(trace: Trace) -> str:
    regions = [region for region in trace.instruction.regions if region not in (CHEST, HEART)]
    return " in the ".join(filter(None, (trace.instruction.finding.capitalize(), " and ".join(regions))))
