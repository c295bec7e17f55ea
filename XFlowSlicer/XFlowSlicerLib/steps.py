"""A trace as the reader works with it: a row per decision, the picture at a step, and the edits that may be made.

**Pictures** are cheap to step through: masks are decoded once, off the user interface's thread, and kept cropped
(:class:`Masks`).

**Edits** are offered only where the engine takes them (``xflow_core.workflow.edits`` decides; the tests hold every
offered edit against it), and where one is not, :class:`NotOffered` says why. What may stand where:

- lung boxes, verdicts and lesion boxes are replaced by their own kind; the model makes the boxes of a region that was
  turned to present;
- a lesion box may be added in a region judged present, and removed while its region keeps another one;
- after any mask of a component a click may stand: in the place of the click or the stop that followed, or at the end of
  an answer that was cut off;
- a click that is deleted leaves the later clicks of its component, which are carried out again on what is left, and
  then the component is stopped: asked once more, the model would set the same click again.

An edit is replayed from its step. What does not depend on it stays: the other components of a box, a click, a stop or a
drawn mask. The engine goes on from :func:`branch`, a trace without a result that remembers the one it left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import numpy as np

from xflow_core.domain import rle
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.findings import CHEST, HEART, lung_of, region_band, verdict_regions
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import (
    BoxesStep,
    Branch,
    Click,
    ClickStep,
    LesionBox,
    LungsStep,
    Mask,
    MaskStep,
    PresenceStep,
    ResultStep,
    Step,
    StopStep,
    Trace,
    Verdict,
)
from xflow_core.export.words import area_in_words, confidence_in_words, result_in_words, step_in_words

OfComponent: TypeAlias = MaskStep | ClickStep | StopStep
S = TypeVar("S", bound=Step)

SIGNS = {"positive": "+", "negative": "−"}


class NotOffered(ValueRefused):
    """This edit cannot be made here; the sentence says why, and what to do instead."""


# Masks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pixels:
    """A decoded mask, cropped to its true pixels.

    Attributes:
        size: of the whole mask, ``(H, W)``.
        top, left: row and column of the crop's first pixel.
        inside: the crop, bool ``[rows, columns]``, read-only; 0 x 0 for a mask without a pixel.
        area: true pixels.
    """

    size: tuple[int, int]
    top: int
    left: int
    inside: np.ndarray
    area: int

    @classmethod
    def of(cls, mask: Mask) -> Pixels:
        height, _ = mask.size
        runs = rle.check(mask.counts, mask.size)
        true = sum(runs[1::2])
        if not true:
            return cls(mask.size, 0, 0, np.zeros((0, 0), bool), 0)
        # Runs go down the columns. Only the columns from the first to the last true pixel are unrolled.
        first = runs[0] // height
        if len(runs) % 2:
            last_run = runs.pop()
            end = mask.size[0] * mask.size[1] - last_run
        else:
            end = mask.size[0] * mask.size[1]
        last = -(-end // height)
        runs[0] -= first * height
        runs.append(last * height - end)
        columns = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(last - first, height)
        rows = np.flatnonzero(columns.any(axis=0))
        top, bottom = int(rows[0]), int(rows[-1]) + 1
        inside = np.ascontiguousarray(columns[:, top:bottom].T)
        inside.flags.writeable = False
        return cls(mask.size, top, first, inside, true)

    def onto(self, canvas: np.ndarray) -> None:
        """Set the true pixels in ``canvas``, bool ``[H, W]``."""
        rows, columns = self.inside.shape
        canvas[self.top : self.top + rows, self.left : self.left + columns] |= self.inside

    def common(self, other: Pixels) -> int:
        """The number of pixels that both hold."""
        top, left = max(self.top, other.top), max(self.left, other.left)
        bottom = min(self.top + self.inside.shape[0], other.top + other.inside.shape[0])
        right = min(self.left + self.inside.shape[1], other.left + other.inside.shape[1])
        if top >= bottom or left >= right:
            return 0
        return int(np.count_nonzero(self._part(top, left, bottom, right) & other._part(top, left, bottom, right)))

    def holds(self, row: int, column: int) -> bool:
        row, column = row - self.top, column - self.left
        rows, columns = self.inside.shape
        return 0 <= row < rows and 0 <= column < columns and bool(self.inside[row, column])

    def _part(self, top: int, left: int, bottom: int, right: int) -> np.ndarray:
        return self.inside[top - self.top : bottom - self.top, left - self.left : right - self.left]


class Masks:
    """The decoded masks of a session. Filled by a worker thread (:meth:`prepare`), read by the user interface's."""

    def __init__(self) -> None:
        self._pixels: dict[Mask, Pixels] = {}
        self._changes: dict[tuple[Mask, Mask], tuple[int, int]] = {}

    def prepare(self, trace: Trace) -> None:
        """Decode what the trace's rows and pictures show."""
        before: dict[int, Mask] = {}
        for step in trace.steps:
            if isinstance(step, MaskStep):
                self.pixels(step.mask)
                if step.component in before:
                    self.changed(before[step.component], step.mask)
                before[step.component] = step.mask
            elif isinstance(step, ResultStep) and step.mask is not None:
                self.pixels(step.mask)

    def pixels(self, mask: Mask) -> Pixels:
        """Decoded now unless it was before."""
        found = self._pixels.get(mask)
        if found is None:
            found = self._pixels[mask] = Pixels.of(mask)
        return found

    def changed(self, before: Mask, after: Mask) -> tuple[int, int]:
        """The pixels that were added and removed."""
        found = self._changes.get((before, after))
        if found is None:
            old, new = self.pixels(before), self.pixels(after)
            common = old.common(new)
            found = self._changes[before, after] = new.area - common, old.area - common
        return found


# What is shown ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownBox:
    """A box in the picture: ``role`` is ``lung`` or ``lesion``, ``index`` its place in the step that holds it."""

    name: str
    box: Box
    role: str
    index: int
    editable: bool = True
    component: int | None = None
    region: str = ""
    origin: str = "model"


@dataclass(frozen=True)
class ShownClick:
    """A click in the picture; ``step`` is its place in the trace."""

    polarity: str
    point: Point
    component: int
    turn: int
    step: int
    editable: bool = True
    origin: str = "model"


@dataclass(frozen=True)
class Picture:
    """The image as it stood after a step.

    Attributes:
        mask: the union of each component's last mask, bool ``[H, W]``, read-only; None before the first one.
        step: the step's place in the trace, -1 before the first one.
        masks: what ``mask`` is the union of; two pictures are compared by these.
    """

    boxes: tuple[ShownBox, ...]
    clicks: tuple[ShownClick, ...]
    mask: np.ndarray | None = field(compare=False)
    title: str
    step: int
    masks: tuple[Mask, ...] = ()


@dataclass(frozen=True)
class Row:
    """A decision in the step panel; the verdicts and boxes of one step have a row each.

    Attributes:
        step: the place of its step in the trace.
        part: the place in the step, for verdicts and boxes.
        kind: the step's kind; ``failed``, ``refused`` or ``unsupported`` for the row that says why there is no answer.
        origin: ``model`` or ``user``.
        sign: ``+`` or ``−`` of a click.
        changed_px: pixels added and removed by a click, on the row of the mask after it.
        seconds: None on all rows of a step but the first.
        pending: an edit that is not replayed yet.
        stale: decided anew when that edit is replayed.
    """

    step: int
    kind: str
    text: str
    part: int = 0
    detail: str = ""
    origin: str = "model"
    confidence: float | None = None
    area_px: int | None = None
    area_text: str = ""
    predicted_iou: float | None = None
    seconds: float | None = None
    sign: str = ""
    indent: int = 0
    notes: tuple[str, ...] = ()
    changed_px: tuple[int, int] | None = None
    component: int | None = None
    region: str = ""
    pending: bool = False
    stale: bool = False


def rows(trace: Trace, masks: Masks | None = None) -> tuple[Row, ...]:
    """One row per decision, in the order in which they were made; the last one says why, where there is no answer."""
    masks = masks or Masks()
    found: list[Row] = []
    before: dict[int, Mask] = {}
    for k, step in enumerate(trace.steps):
        parts = _rows_of(k, step, trace, masks, before)
        found.append(replace(parts[0], seconds=step.seconds, notes=step.notes, origin=step.origin))
        found += [replace(row, origin=step.origin) for row in parts[1:]]
        if isinstance(step, MaskStep):
            before[step.component] = step.mask
    if trace.result is not None and trace.result.present is None:
        found.append(Row(len(trace.steps) - 1, trace.result.status, result_in_words(trace)))
    return tuple(found)


def _rows_of(k: int, step: Step, trace: Trace, masks: Masks, before: Mapping[int, Mask]) -> list[Row]:
    if isinstance(step, LungsStep):
        named = [
            lung.label + ("" if lung.confidence is None else f" ({confidence_in_words(lung.confidence)})")
            for lung in step.lungs
        ]
        return [Row(k, step.kind, "Lungs" if len(step.lungs) > 1 else "Lung", detail=", ".join(named))]
    if isinstance(step, PresenceStep):
        return [
            Row(
                k,
                step.kind,
                f"{_place(verdict.region, trace)}: {'present' if verdict.present else 'absent'}",
                part=part,
                confidence=verdict.confidence,
                region=verdict.region,
            )
            for part, verdict in enumerate(step.verdicts)
        ]
    if isinstance(step, BoxesStep):
        return [
            Row(
                k,
                step.kind,
                f"Component {box.component + 1}: box {'at' if box.region == HEART else 'in'} the {_plain(box.region)}",
                part=part,
                detail=f"{box.box.width:.2f} × {box.box.height:.2f} of the image",
                confidence=box.confidence,
                component=box.component,
                region=box.region,
            )
            for part, box in enumerate(step.boxes)
        ]
    if isinstance(step, MaskStep):
        name = f"Component {step.component + 1}: mask"
        changed = None
        if step.component in before:
            changed = masks.changed(before[step.component], step.mask)
        if step.origin == "user":
            name += " drawn"
        elif step.turn:
            name += f" after click {step.turn}"
        area = masks.pixels(step.mask).area
        return [
            Row(
                k,
                step.kind,
                name,
                detail="" if changed is None else f"+{changed[0]:,} px, −{changed[1]:,} px",
                area_px=area,
                area_text=area_in_words(area, trace.image),
                predicted_iou=step.predicted_iou,
                indent=1,
                changed_px=changed,
                component=step.component,
            )
        ]
    if isinstance(step, ClickStep):
        point = step.click.point
        return [
            Row(
                k,
                step.kind,
                f"Component {step.component + 1}: click {step.turn}, {step.click.polarity}",
                detail=f"({point.x:.2f}, {point.y:.2f})",
                sign=SIGNS[step.click.polarity],
                indent=1,
                component=step.component,
            )
        ]
    if isinstance(step, StopStep):
        words = step_in_words(replace(step, notes=(), origin="model"), trace)
        return [Row(k, step.kind, words[:1].upper() + words[1:], indent=1, component=step.component)]
    assert isinstance(step, ResultStep)
    finding = trace.instruction.finding
    if step.mask is None:
        return [Row(k, step.kind, f"Result: {finding} absent")]
    area = masks.pixels(step.mask).area
    text = area_in_words(area, trace.image)
    return [Row(k, step.kind, f"Result: {finding} present", area_px=area, area_text=text)]


def picture_at(trace: Trace, k: int, masks: Masks | None = None) -> Picture:
    """The image as it stood after step ``k``: boxes, clicks and masks up to there; -1 for before the first step.

    Args:
        masks: where the masks are decoded already; without it, or where one is missing, they are decoded now.
    """
    masks = masks or Masks()
    steps = trace.steps[: k + 1]
    boxes: list[ShownBox] = []
    lungs = _last(steps, LungsStep)
    if lungs is not None:
        boxes += [
            ShownBox(lung.label, lung.box, "lung", index, region=lung.label, origin=lungs.origin)
            for index, lung in enumerate(lungs.lungs)
        ]
    lesions = _last(steps, BoxesStep)
    if lesions is not None:
        boxes += [
            ShownBox(_box_name(box, lesions), box.box, "lesion", index, True, box.component, box.region, lesions.origin)
            for index, box in enumerate(lesions.boxes)
        ]
    clicks = tuple(
        ShownClick(step.click.polarity, step.click.point, step.component, step.turn, place, True, step.origin)
        for place, step in enumerate(steps)
        if isinstance(step, ClickStep)
    )
    last = {step.component: step.mask for step in steps if isinstance(step, MaskStep)}
    union: np.ndarray | None = None
    if last:
        union = np.zeros(trace.image.size, bool)
        for mask in last.values():
            if mask.size == trace.image.size:
                masks.pixels(mask).onto(union)
        union.flags.writeable = False
    shown = tuple(last[component] for component in sorted(last))
    return Picture(tuple(boxes), clicks, union, _title(trace, k, masks), min(k, len(trace.steps) - 1), shown)


def _title(trace: Trace, k: int, masks: Masks) -> str:
    if not 0 <= k < len(trace.steps):
        return ""
    step = trace.steps[k]
    if isinstance(step, PresenceStep):
        said = step_in_words(replace(step, notes=()), trace)
    elif isinstance(step, BoxesStep):
        said = f"{len(step.boxes)} lesion box{'es' if len(step.boxes) > 1 else ''}"
    else:
        said = _rows_of(k, step, trace, masks, {})[0].text
    return f"Step {k + 1} of {len(trace.steps)}: {said[:1].lower()}{said[1:]}"


def _box_name(box: LesionBox, step: BoxesStep) -> str:
    return f"{box.label} {box.component + 1}" if len(step.boxes) > 1 else box.label


def _place(region: str, trace: Trace) -> str:
    return trace.instruction.finding.capitalize() if region in (HEART, CHEST) else _plain(region).capitalize()


def _plain(region: str) -> str:
    return region.replace(" zone lung", " zone")


# Edits -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """The user's ``step`` in the place of a trace's ``k``-th; made by the functions below, which say what may stand.

    Attributes:
        k: as many steps stand before it; the trace's length for a step that is added at the end of one cut off.
        sentence: what was changed, the name of the branch that comes of it.
        kept: places of later steps that stand as they are: they do not depend on this one.
        then: later decisions of the component that are to be made again as soon as they may stand.
        removed: the component whose box is taken out; those after it are renumbered.
    """

    k: int
    step: Step
    sentence: str
    kept: tuple[int, ...] = ()
    then: tuple[ClickStep | StopStep, ...] = ()
    removed: int | None = None


def branch(trace: Trace, edit: Edit) -> Trace:
    """The trace from which the engine goes on, without a result; it names the one that it left.

    To be resumed; with ``edit.then`` see :func:`continued`. Takes some milliseconds for large masks (a trace's name is
    a hash of all of it): not for the user interface's thread.
    """
    return replace(trace, steps=stands(trace, edit), result=None, branch_of=Branch(trace.id, edit.k), seconds={})


def stands(trace: Trace, edit: Edit) -> tuple[Step, ...]:
    """The steps of :func:`branch`."""
    kept = [trace.steps[place] for place in edit.kept]
    if edit.removed is not None:
        kept = [_renumbered(step, edit.removed) for step in kept]
    before, step = trace.steps[: edit.k], replace(edit.step, origin=_origin(trace, edit))
    # A component's own steps come last, so that the rows that are new are the last ones.
    return (*before, *kept, step) if isinstance(step, (MaskStep, ClickStep, StopStep)) else (*before, step, *kept)


def continued(trace: Trace, then: Sequence[ClickStep | StopStep]) -> tuple[Trace, tuple[ClickStep | StopStep, ...]]:
    """``trace`` with the first of ``then`` if it may stand at its end, and the rest of them; an empty rest means that
    the engine may go on to the end, any other that it has to stop at the component's next mask."""
    steps, left = list(trace.steps), list(then)
    while left and may_stand(steps, left[0]):
        steps.append(left.pop(0))
    return replace(trace, steps=tuple(steps)), tuple(left)


def may_stand(steps: Sequence[Step], step: ClickStep | StopStep) -> bool:
    """Whether a click or a stop may follow: its component's last step is a mask."""
    own = [other for other in steps if _is_of(other, step.component)]
    return bool(own) and isinstance(own[-1], MaskStep)


def _origin(trace: Trace, edit: Edit) -> str:
    """The user's, but for a click of the model's that comes forward because one before it was deleted."""
    return edit.step.origin if edit.then and isinstance(edit.step, ClickStep) else "user"


_NO_STEPS = "There is no step to edit; ask for a finding first."


@dataclass(frozen=True)
class Offers:
    """What may be edited at a step; a reason is "" where it may, else the sentence that says why not.

    Attributes:
        flips: the regions whose verdict may be turned.
        add_click: for ``+`` and ``−`` at the cursor.
        delete_click: for the click that the step is.
        add_box, remove_box: for lesion boxes; ``remove_box`` is of the step's component, of the first one without one.
        stop: to end the component's clicks after its mask at this step.
        draw: to go on from a mask that the user draws.
    """

    flips: tuple[str, ...] = ()
    add_click: str = _NO_STEPS
    delete_click: str = _NO_STEPS
    add_box: str = _NO_STEPS
    remove_box: str = _NO_STEPS
    stop: str = _NO_STEPS
    draw: str = _NO_STEPS


def offers(trace: Trace, k: int) -> Offers:
    """What may be edited when step ``k`` is selected."""
    step = trace.steps[k] if 0 <= k < len(trace.steps) else None
    middle = Point(0.5, 0.5)
    presence = trace.last(PresenceStep)
    component = step.component if isinstance(step, (MaskStep, ClickStep, StopStep)) else None
    somewhere = component if component is not None else next(iter(_components_with_mask(trace)), 0)
    boxes = trace.last(BoxesStep)
    present = {v.region for v in presence.verdicts if v.present} if presence is not None else set()

    def reason(make: object, *arguments: object) -> str:
        try:
            make(*arguments)  # type: ignore[operator]
        except NotOffered as problem:
            return str(problem)
        return ""

    return Offers(
        flips=() if presence is None else tuple(verdict.region for verdict in presence.verdicts),
        add_click=reason(click_added, trace, k, somewhere, "positive", middle),
        delete_click=reason(click_deleted, trace, k) if isinstance(step, ClickStep) else "Select a click to delete it.",
        add_box="" if boxes is not None and present else _NO_BOXES,
        remove_box=_NO_BOXES if boxes is None else reason(box_removed, trace, boxes_at(trace), component or 0),
        stop=reason(stopped, trace, k, somewhere),
        draw="" if _components_with_mask(trace) else "There is no mask yet to go on from.",
    )


_NO_BOXES = "There is no lesion box; turn a verdict to present first, and the model makes the boxes."


def lung_moved(trace: Trace, k: int, index: int, box: Box) -> Edit:
    """The lungs step ``k`` with another box for its ``index``-th lung; all that follows is decided anew."""
    step = _step(trace, k, LungsStep)
    _check_index(index, step.lungs, "lung")
    lung = step.lungs[index]
    if box == lung.box:
        raise NotOffered(f"The box of the {lung.label} is where it was.")
    lungs = (*step.lungs[:index], replace(lung, box=box, confidence=None), *step.lungs[index + 1 :])
    return Edit(k, _user(replace(step, lungs=lungs)), f"{lung.label} moved")


def verdict_flipped(trace: Trace, k: int, region: str) -> Edit:
    """The presence step ``k`` with the other verdict for ``region``; all that follows is decided anew."""
    step = _step(trace, k, PresenceStep)
    if region not in (verdict.region for verdict in step.verdicts):
        raise NotOffered(f"There is no verdict about the {region}.")
    verdicts = tuple(
        Verdict(region, not verdict.present) if verdict.region == region else verdict for verdict in step.verdicts
    )
    said = next("present" if verdict.present else "absent" for verdict in verdicts if verdict.region == region)
    name = trace.instruction.finding if region in (HEART, CHEST) else _plain(region)
    return Edit(k, _user(replace(step, verdicts=verdicts)), f"{name} turned to {said}")


def box_moved(trace: Trace, k: int, index: int, box: Box) -> Edit:
    """The boxes step ``k`` with another box for its ``index``-th component; the other components stay."""
    step = _step(trace, k, BoxesStep)
    _check_index(index, step.boxes, "lesion box")
    old = step.boxes[index]
    if box == old.box:
        raise NotOffered("The box is where it was.")
    region = _region_of(trace, box, old.region)
    if region != old.region and _only_box_of(step, index):
        raise NotOffered(
            f"The box would leave the {_plain(old.region)}, which is judged present and has no other; turn that "
            "verdict to absent, or add a box."
        )
    moved = replace(old, box=box, region=region, confidence=None)
    boxes = (*step.boxes[:index], moved, *step.boxes[index + 1 :])
    sentence = f"box of component {index + 1} moved" if len(boxes) > 1 else "lesion box moved"
    return Edit(k, _user(replace(step, boxes=boxes)), sentence, _of_others(trace, k, {index}))


def box_added(trace: Trace, k: int, box: Box) -> Edit:
    """The boxes step ``k`` with one component more; the others stay."""
    step = _step(trace, k, BoxesStep)
    region = _region_of(trace, box, None)
    added = LesionBox(len(step.boxes), trace.instruction.finding, box, region)
    sentence = f"box added in the {_plain(region)}" if region != HEART else "box added"
    return Edit(k, _user(replace(step, boxes=(*step.boxes, added))), sentence, _of_others(trace, k, set()))


def box_removed(trace: Trace, k: int, index: int) -> Edit:
    """The boxes step ``k`` without its ``index``-th component; the others stay, and those after it are renumbered."""
    step = _step(trace, k, BoxesStep)
    _check_index(index, step.boxes, "lesion box")
    if _only_box_of(step, index):
        region = step.boxes[index].region
        place = trace.instruction.finding if region in (HEART, CHEST) else f"the {_plain(region)}"
        raise NotOffered(f"It is the only box for {place}, which is judged present; turn that verdict to absent.")
    boxes = tuple(replace(box, component=place) for place, box in enumerate(_without(step.boxes, index)))
    edit = Edit(k, _user(replace(step, boxes=boxes)), f"box of component {index + 1} removed")
    return replace(edit, kept=_of_others(trace, k, {index}), removed=index)


def click_added(trace: Trace, k: int, component: int, polarity: str, point: Point) -> Edit:
    """A click on a component after its last mask up to step ``k``, in the place of what was decided there."""
    place, clicks = _next_decision(trace, k, component)
    step = ClickStep(component=component, turn=clicks + 1, click=Click(polarity, point), origin="user")
    there = trace.steps[place] if place < len(trace.steps) else None
    sentence = f"{SIGNS[polarity]} click {clicks + 1}{_on(trace, component)}"
    if isinstance(there, ClickStep):
        sentence += f", for the {'model' if there.origin == 'model' else 'user'}'s"
    return Edit(place, step, sentence, _of_others(trace, place, {component}))


def click_moved(trace: Trace, k: int, point: Point) -> Edit:
    """The click at step ``k`` elsewhere; the component's later clicks are decided anew."""
    step = _step(trace, k, ClickStep)
    if point == step.click.point:
        raise NotOffered("The click is where it was.")
    moved = _user(replace(step, click=replace(step.click, point=point)))
    sentence = f"click {step.turn} moved{_on(trace, step.component)}"
    return Edit(k, moved, sentence, _of_others(trace, k, {step.component}))


def click_deleted(trace: Trace, k: int) -> Edit:
    """The component without the click at step ``k``: later clicks are carried out again, then it is stopped."""
    step = _step(trace, k, ClickStep)
    later = [other for other in trace.steps[k + 1 :] if _is_of(other, step.component)]
    if any(isinstance(other, MaskStep) and other.origin == "user" for other in later):
        raise NotOffered("A mask was drawn after this click and stands in its place; edit what follows that mask.")
    clicks = [replace(other, turn=other.turn - 1) for other in later if isinstance(other, ClickStep)]
    stop = StopStep(component=step.component, reason="user", origin="user")
    first, *then = (*clicks, stop)
    sentence = f"click {step.turn} deleted{_on(trace, step.component)}"
    return Edit(k, first, sentence, _of_others(trace, k, {step.component}), tuple(then))


def stopped(trace: Trace, k: int, component: int) -> Edit:
    """No click on a component after its last mask up to step ``k``."""
    place, clicks = _next_decision(trace, k, component)
    there = trace.steps[place] if place < len(trace.steps) else None
    if isinstance(there, StopStep):
        raise NotOffered("No click follows this mask.")
    step = StopStep(component=component, reason="user", origin="user")
    after = f"click {clicks}" if clicks else "the first mask"
    sentence = f"stopped after {after}{_on(trace, component)}"
    return Edit(place, step, sentence, _of_others(trace, place, {component}))


def drawn(trace: Trace, parts: Mapping[int, Mask], *, revise: bool = True) -> Trace:
    """The trace in which the user's masks stand for those components' last ones, as the engine's ``continue_from`` has
    it for one; like :func:`branch` not for the user interface's thread.

    Args:
        revise: false keeps the masks as drawn: the components are stopped by the user.

    Raises:
        NotOffered: no part, a component without a mask, or a mask of another size.
    """
    if not parts:
        raise NotOffered("The mask is as it was; edit it first.")
    steps = [step for step in trace.steps if not isinstance(step, ResultStep)]
    first = len(steps)
    for component, mask in sorted(parts.items()):
        places = [k for k, step in enumerate(steps) if isinstance(step, MaskStep) and step.component == component]
        if not places:
            raise NotOffered(f"Component {component + 1} has no mask yet.")
        if mask.size != trace.image.size:
            raise NotOffered(f"The mask is of {mask.size}, the image of {trace.image.size} pixels.")
        k = places[-1]
        first = min(first, k)
        old = steps[k]
        assert isinstance(old, MaskStep)
        step = MaskStep(component=component, turn=old.turn, mask=mask, origin="user")
        later = [other for other in steps[k + 1 :] if not _is_of(other, component)]
        stop = [] if revise else [StopStep(component=component, reason="user", origin="user")]
        steps = [*steps[:k], step, *later, *stop]
    left = Branch(trace.id, first)
    stages = 2 if revise else trace.stages
    return replace(trace, steps=tuple(steps), result=None, branch_of=left, seconds={}, stages=stages)


def divided(trace: Trace, mask: np.ndarray, masks: Masks | None = None) -> dict[int, Mask]:
    """A drawn mask as the components that it changes: each pixel is of the components whose last mask holds it, a new
    one of that with the nearest lesion box.

    Args:
        mask: bool ``[H, W]`` of the image's size.

    Raises:
        NotOffered: the trace has no mask, or this one is of another size.
    """
    masks = masks or Masks()
    last = {step.component: step.mask for step in trace.steps if isinstance(step, MaskStep)}
    boxes: BoxesStep | None = trace.last(BoxesStep)
    if not last or boxes is None:
        raise NotOffered("There is no mask yet to go on from.")
    size = trace.image.size
    if mask.shape != size:
        raise NotOffered(f"The mask is of {mask.shape}, the image of {size} pixels.")
    drawn_mask = np.asarray(mask, bool)
    known = np.zeros(size, bool)
    found: dict[int, np.ndarray] = {}
    for component in sorted(last):
        own = np.zeros(size, bool)
        masks.pixels(last[component]).onto(own)
        found[component] = own & drawn_mask
        known |= own
    rows_, columns = np.nonzero(drawn_mask & ~known)
    if rows_.size:
        components = sorted(last)
        distances = np.stack([_distance(rows_, columns, boxes.boxes[c].box.pixels(size)) for c in components])
        nearest = distances.argmin(axis=0)
        for place, component in enumerate(components):
            chosen = nearest == place
            found[component][rows_[chosen], columns[chosen]] = True
    made = {component: Mask.of(array) for component, array in found.items()}
    return {component: part for component, part in made.items() if part != last[component]}


def component_at(trace: Trace, k: int, point: Point, masks: Masks | None = None) -> int | None:
    """The component that a click at ``point`` is meant for: that of step ``k``, else the one whose mask holds the
    point, else the one whose box is nearest; None where there is no mask yet."""
    step = trace.steps[k] if 0 <= k < len(trace.steps) else None
    if isinstance(step, (MaskStep, ClickStep, StopStep)):
        return step.component
    masks = masks or Masks()
    last = {step.component: step.mask for step in trace.steps[: k + 1] if isinstance(step, MaskStep)}
    boxes: BoxesStep | None = trace.last(BoxesStep)
    if not last or boxes is None:
        return None
    row, column = point.pixel(trace.image.size)
    for component in sorted(last):
        if masks.pixels(last[component]).holds(row, column):
            return component
    here = np.array([row]), np.array([column])
    size = trace.image.size
    return min(last, key=lambda component: float(_distance(*here, boxes.boxes[component].box.pixels(size))[0]))


def boxes_at(trace: Trace) -> int:
    """The place of the boxes step, -1 without one."""
    return next((k for k, step in enumerate(trace.steps) if isinstance(step, BoxesStep)), -1)


def place_of(trace: Trace, kind: type[Step]) -> int:
    """The place of the first step of a kind, -1 without one."""
    return next((k for k, step in enumerate(trace.steps) if isinstance(step, kind)), -1)


def previewed(trace: Trace, edit: Edit) -> Trace:
    """The trace as it is shown until the edit is replayed: the step in its place, all others as they are."""
    step = replace(edit.step, origin=_origin(trace, edit))
    return replace(trace, steps=(*trace.steps[: edit.k], step, *trace.steps[edit.k + 1 :]))


def _next_decision(trace: Trace, k: int, component: int) -> tuple[int, int]:
    """Where the click or stop after a component's last mask up to ``k`` stands, or the trace's end where there is none;
    and the number of clicks before it."""
    masks = [
        place
        for place, step in enumerate(trace.steps[: k + 1])
        if isinstance(step, MaskStep) and step.component == component
    ]
    if not masks:
        raise NotOffered(f"Component {component + 1} has no mask at this step; select a mask, or a later step.")
    clicks = sum(isinstance(step, ClickStep) and step.component == component for step in trace.steps[: masks[-1]])
    for place in range(masks[-1] + 1, len(trace.steps)):
        if _is_of(trace.steps[place], component):
            return place, clicks
    if trace.steps and isinstance(trace.steps[-1], ResultStep):
        raise NotOffered("This answer was made without clicks (one stage); draw a mask and continue from it.")
    return len(trace.steps), clicks


def _of_others(trace: Trace, k: int, components: set[int]) -> tuple[int, ...]:
    """The places after ``k`` of the steps of all components but these."""
    return tuple(
        place
        for place, step in enumerate(trace.steps)
        if place > k and isinstance(step, (MaskStep, ClickStep, StopStep)) and step.component not in components
    )


def _region_of(trace: Trace, box: Box, before: str | None) -> str:
    """The region that a lesion box lies in: the one that it was in, unless it lies wholly in another one.

    Raises:
        NotOffered: that region is judged absent.
    """
    presence = trace.last(PresenceStep)
    lungs = trace.last(LungsStep)
    regions = verdict_regions(trace.instruction.regions)
    if presence is None or lungs is None:
        raise NotOffered(_NO_BOXES)
    shares: dict[str, float] = {}
    for region in regions:
        lung = lungs.box_of(lung_of(region) or "")
        common = None if lung is None else box.intersect(region_band(region, lung))
        shares[region] = 0.0 if common is None else common.area
    best = max(regions, key=lambda region: shares[region])
    if before is not None and (shares.get(before, 1.0) > 0 or shares[best] == 0):
        return before
    present = [verdict.region for verdict in presence.verdicts if verdict.present]
    if shares[best] == 0 and present:  # outside of every region: the nearest that is judged present
        return min(present, key=lambda region: _apart(box, lungs, region))
    if best not in present:
        raise NotOffered(f"The {_plain(best)} is judged absent; turn that verdict to present first.")
    return best


def _apart(box: Box, lungs: LungsStep, region: str) -> float:
    lung = lungs.box_of(lung_of(region) or "")
    if lung is None:
        return 0.0
    band = region_band(region, lung).centre
    return (band.x - box.centre.x) ** 2 + (band.y - box.centre.y) ** 2


def _distance(rows_: np.ndarray, columns: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """The squared distance in pixels of each place from a box of pixel edges ``(x1, y1, x2, y2)``."""
    x1, y1, x2, y2 = box
    dx = np.maximum(np.maximum(x1 - columns, columns - (x2 - 1)), 0)
    dy = np.maximum(np.maximum(y1 - rows_, rows_ - (y2 - 1)), 0)
    return dx.astype(np.int64) ** 2 + dy.astype(np.int64) ** 2


def _only_box_of(step: BoxesStep, index: int) -> bool:
    return sum(box.region == step.boxes[index].region for box in step.boxes) == 1


def _components_with_mask(trace: Trace) -> list[int]:
    return sorted({step.component for step in trace.steps if isinstance(step, MaskStep)})


def _on(trace: Trace, component: int) -> str:
    boxes: BoxesStep | None = trace.last(BoxesStep)
    return f" on component {component + 1}" if boxes is not None and len(boxes.boxes) > 1 else ""


def _is_of(step: Step, component: int) -> bool:
    return isinstance(step, (MaskStep, ClickStep, StopStep)) and step.component == component


def _renumbered(step: Step, removed: int) -> Step:
    assert isinstance(step, (MaskStep, ClickStep, StopStep))
    return replace(step, component=step.component - 1) if step.component > removed else step


def _user(step: S) -> S:
    """The step as the user's own: without the model's words and notes."""
    return replace(step, origin="user", seconds=0.0, text=None, notes=())


def _step(trace: Trace, k: int, kind: type[S]) -> S:
    step = trace.steps[k] if 0 <= k < len(trace.steps) else None
    if not isinstance(step, kind):
        found = "nothing" if step is None else f"a {step.kind} step"
        raise NotOffered(f"There is {found} at this place, and no {kind.kind} step.")
    return step


def _check_index(index: int, among: Sequence[object], name: str) -> None:
    if not 0 <= index < len(among):
        raise NotOffered(f"There is no {name} {index + 1}; there are {len(among)}.")


def _without(boxes: Sequence[LesionBox], index: int) -> list[LesionBox]:
    return [box for place, box in enumerate(boxes) if place != index]


def _last(steps: Sequence[Step], kind: type[S]) -> S | None:
    return next((step for step in reversed(steps) if isinstance(step, kind)), None)
