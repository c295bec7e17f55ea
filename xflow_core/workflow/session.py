"""One question on one radiograph: the two stages, step by step (paper, section 4.1), with edit and replay.

What comes next depends on the steps so far and on nothing else: a session is a prefix of steps and a rule that makes
the next one. So a decision is replaced by keeping the steps before it, putting the user's in its place and going on; a
trace read from disk is continued in the same way; and equal prefixes give equal traces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy import ndimage

from xflow_core.domain.errors import Cancelled, EngineError, UnsupportedFinding, ValueRefused, XFlowError
from xflow_core.domain.findings import lung_of, lungs_for, region_band, verdict_regions
from xflow_core.domain.geometry import Box
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import (
    BoxesStep,
    Branch,
    BundleIdentity,
    ClickStep,
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
)
from xflow_core.policies.protocols import Done
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.segmenters.protocol import Prediction, Prompt

from .ahead import Ahead
from .edits import check_steps, continue_from_mask, replace_step
from .engine import Engine

S = TypeVar("S", bound=Step)
Made = TypeVar("Made", MaskStep, ClickStep, StopStep)


@dataclass(frozen=True)
class Limits:
    """max_clicks: clicks on one component (four in the paper, section 5.1), or since the mask that the user drew of it.
    speck_share: 8-connected pieces of a mask under this share of the image are dropped (DESIGN.md; paper, section 6.1).
    """

    max_clicks: int = 4
    speck_share: float = 1e-4


class Session:
    """Answers one instruction on one image; iterate :meth:`run` and watch each step as it is made.

    >>> session = Session(engine, engine.admit(radiograph), instruction)
    >>> for step in session.run(): ...
    >>> edited = session.replace(2, BoxesStep(boxes=(my_box,), origin="user"))
    >>> for step in edited.run(): ...    # only what follows the edit is computed
    """

    def __init__(
        self,
        engine: Engine,
        image: EncodedRadiograph,
        instruction: Instruction,
        *,
        stages: int = 2,
        seed: int = 0,
        limits: Limits | None = None,
        kept: tuple[Step, ...] = (),
        branch_of: Branch | None = None,
    ) -> None:
        """
        Args:
            stages: 1 stops after the masks that the boxes gave, 2 revises them with clicks.
            seed: for policies that sample.
            kept: the steps that stand already; the session goes on after them.

        Raises:
            UnsupportedFinding: the engine cannot answer the finding.
        """
        if stages not in (1, 2):
            raise ValueRefused(f"stages is {stages}; there are 1 or 2.")
        engine.check_finding(instruction.finding)
        self.engine = engine
        self.image = image
        self.instruction = instruction
        self.stages = stages
        self.seed = seed
        self.limits = limits or Limits()
        self.branch_of = branch_of
        self.steps: list[Step] = list(kept)
        self.seconds = {"stage1": 0.0, "segmenter": 0.0, "stage2": 0.0}
        self._cancelled = threading.Event()
        self._predictions: dict[tuple[int, int], Prediction] = {}
        self._ahead: Ahead | None = None
        self._layout: str | None = None  # of the engine's memory at the last step

    @classmethod
    def resume(cls, engine: Engine, image: EncodedRadiograph, trace: Trace, *, limits: Limits | None = None) -> Session:
        """A session that stands where ``trace`` ends, for instance one read from disk.

        Raises:
            ValueRefused: the trace is of another image or another bundle, or no session could have made it.
        """
        if trace.image.sha256 != image.radiograph.record.sha256:
            raise ValueRefused("The trace was made on another image (its sha256 differs).")
        size = image.radiograph.record.size
        if tuple(trace.image.size) != size:
            raise ValueRefused(f"The trace says that the image is of {trace.image.size} pixels; it is of {size}.")
        check_steps(trace)
        if trace.bundle != engine.identity:
            raise ValueRefused(
                f"The trace was made by bundle {trace.bundle.name} {trace.bundle.version}, not by "
                f"{engine.identity.name} {engine.identity.version}."
            )
        session = cls(
            engine,
            image,
            trace.instruction,
            stages=trace.stages,
            seed=trace.seed,
            limits=limits,
            kept=trace.steps,
            branch_of=trace.branch_of,
        )
        session._layout = trace.memory_layout
        return session

    def cancel(self) -> None:
        """Stop before the next step; may be called from another thread."""
        self._cancelled.set()

    def run(self) -> Iterator[Step]:
        """The steps that are still to be made, each yielded the moment it is.

        Where the engine takes several components at a time, steps of later ones may be made before it is their turn;
        their ``seconds`` are those that were waited for.

        Raises:
            Cancelled: :meth:`cancel` was called; the steps made so far stay in :attr:`steps`.
            EngineError: a model failed; the same.
        """
        try:
            while not self.finished:
                if self._cancelled.is_set():
                    raise Cancelled("Cancelled by the user before the next step.")
                start = time.perf_counter()
                try:
                    step, part = self._next()
                except XFlowError:
                    raise
                # A model's library raises what it likes (out of memory, a shape): this run ends, the others go on.
                except Exception as problem:
                    raise EngineError(f"A model failed after step {len(self.steps)}: {problem!r}.") from problem
                took = time.perf_counter() - start
                self.seconds[part] += took
                step = replace(step, seconds=took, notes=(*step.notes, *self._new_layout()))
                self.steps.append(step)
                yield step
        finally:
            if self._ahead is not None:
                self._ahead.close()
                self._ahead = None

    def _new_layout(self) -> tuple[str, ...]:
        """A sentence where the engine's memory layout is another one than at the step before."""
        if self.engine.memory_layout is None:
            return ()
        before, self._layout = self._layout, self.engine.memory_layout()
        if before in (None, self._layout):
            return ()
        return (f"From this step on the memory layout was {self._layout!r}, before it {before!r}; answers may differ.",)

    @property
    def finished(self) -> bool:
        return bool(self.steps) and isinstance(self.steps[-1], ResultStep)

    def replace(self, k: int, step: Step) -> Session:
        """A new session that keeps the steps before ``k``, has ``step`` as its ``k``-th, and computes what follows.

        The new step takes the user as its origin. A stop may be replaced by a click and a click by a stop; every other
        kind by its own. A mask that the user drew is not cut, and the revision goes on from it: replace the click that
        may follow by a stop to keep it as drawn. This session stays as it is.

        Raises:
            ValueRefused: no such step, or the new one cannot stand there.
        """
        branch = self._branch(replace_step(self.trace(), k, step))
        branch._predictions = {
            key: prediction
            for key, prediction in self._predictions.items()
            if any(isinstance(s, MaskStep) and (s.component, s.turn) == key for s in self.steps[:k])
        }
        return branch

    def continue_from_mask(self, component: int, mask: Mask, *, revise: bool = True) -> Session:
        """A new session in which the user's ``mask`` stands for the component's last one, and the second stage goes on.

        The component's clicks are counted anew from there, the other components keep their steps; with ``revise`` false
        the mask stays as drawn. This session stays as it is.

        Raises:
            ValueRefused: the component has no mask, or the new one is of another size.
        """
        return self._branch(continue_from_mask(self.trace(), component, mask, revise=revise))

    def trace(self, failure: XFlowError | None = None, seconds: dict[str, float] | None = None) -> Trace:
        """What was decided so far; ``failure`` is what ended the run early, ``seconds`` adds timings from outside."""
        result = None
        last = self.steps[-1] if self.steps else None
        if failure is not None:
            result = Result("failed", message=str(failure))
        elif isinstance(last, ResultStep):
            result = self._result(last)
        spent = {**(seconds or {}), **self.seconds}
        spent["total"] = sum(spent.values())
        return Trace(
            image=self.image.radiograph.record,
            instruction=self.instruction,
            bundle=self.engine.identity,
            steps=tuple(self.steps),
            result=result,
            branch_of=self.branch_of,
            seed=self.seed,
            stages=self.stages,
            seconds=spent,
            memory_layout=self._layout,
        )

    def _branch(self, trace: Trace) -> Session:
        branch = Session(
            self.engine,
            self.image,
            self.instruction,
            stages=trace.stages,
            seed=self.seed,
            limits=self.limits,
            kept=trace.steps,
            branch_of=trace.branch_of,
        )
        branch._layout = self._layout
        return branch

    # What comes next.

    def _next(self) -> tuple[Step, str]:
        lungs = self._last(LungsStep)
        if lungs is None:
            return self._ground(), "stage1"
        presence = self._last(PresenceStep)
        if presence is None:
            return self._judge(lungs), "stage1"
        if not presence.present:
            return ResultStep(present=False), "stage1"
        boxes = self._last(BoxesStep)
        if boxes is None:
            return self._localise(lungs, presence), "stage1"
        for box in boxes.boxes:
            if not self._of(MaskStep, box.component):
                return self._first_mask(boxes, box), "segmenter"
        if self.stages == 2:
            unfinished = [box for box in boxes.boxes if not self._of(StopStep, box.component)]
            if unfinished:
                return self._next_revision(unfinished)
        return self._unite(boxes), "stage2"

    def _ground(self) -> LungsStep:
        wanted = lungs_for(self.instruction.regions)
        decision = self.engine.init_policy.ground_lungs(self.image, self.instruction, wanted, seed=self.seed)
        if tuple(lung.label for lung in decision.value) != wanted:
            raise EngineError(f"The policy grounded {[lung.label for lung in decision.value]}, asked for {wanted}.")
        return LungsStep(lungs=decision.value, text=decision.text)

    def _judge(self, lungs: LungsStep) -> PresenceStep:
        regions = verdict_regions(self.instruction.regions)
        decision = self.engine.init_policy.judge(self.image, self.instruction, regions, lungs.lungs, seed=self.seed)
        if tuple(verdict.region for verdict in decision.value) != regions:
            raise EngineError(f"The policy judged {[v.region for v in decision.value]}, asked for {regions}.")
        return PresenceStep(verdicts=decision.value, text=decision.text)

    def _localise(self, lungs: LungsStep, presence: PresenceStep) -> BoxesStep:
        decision = self.engine.init_policy.localise(
            self.image, self.instruction, lungs.lungs, presence.verdicts, seed=self.seed
        )
        boxes: list[LesionBox] = []
        notes: list[str] = []
        for found in decision.value:
            kept = self._restricted(found, lungs)
            if kept is None:
                notes.append(f"A box outside the {found.region} was left out.")
                continue
            if kept != found.box:
                notes.append(f"Component {len(boxes) + 1}'s box was restricted to the {found.region}.")
            boxes.append(replace(found, component=len(boxes), box=kept))
        boxed = {box.region for box in boxes}
        bare = [v.region for v in presence.verdicts if v.present and v.region not in boxed]
        if bare:
            raise EngineError(f"The policy judged {self.instruction.finding} present but boxed nothing in {bare[0]}.")
        return BoxesStep(boxes=tuple(boxes), text=decision.text, notes=tuple(notes))

    def _restricted(self, found: LesionBox, lungs: LungsStep) -> Box | None:
        """An answer about a lung or zone lies in that region's band; one about the chest or heart is left alone."""
        if self.instruction.level == "chest":
            return found.box
        lung = lungs.box_of(lung_of(found.region) or "")
        return found.box if lung is None else found.box.intersect(region_band(found.region, lung))

    def _first_mask(self, boxes: BoxesStep, box: LesionBox) -> MaskStep:
        if (box.component, 0) not in self._predictions:
            without = [other for other in boxes.boxes if not self._of(MaskStep, other.component)]
            prompts = [Prompt(other.box) for other in without]
            for other, found in zip(without, self.engine.segmenter.segment(self.image, prompts), strict=True):
                self._predictions[other.component, 0] = found
        return self._mask_step(box, 0, self._predictions[box.component, 0])

    def _next_revision(self, unfinished: list[LesionBox]) -> tuple[Step, str]:
        """The next step of the first of the components that are not finished; the others may be begun beside it."""
        first, *others = unfinished
        if self._ahead is not None and first.component in self._ahead:
            return self._ahead.next(first.component)
        # The first step is made alone: what it reads of the radiograph is there for the others.
        made = self._revise(first)
        if self._ahead is None and others and self.engine.components_together > 1:
            standing, found = tuple(self.steps), dict(self._predictions)
            self._ahead = Ahead(
                others, lambda box: self._revision(box, standing, found), self.engine.components_together - 1
            )
        return made

    def _revision(
        self, box: LesionBox, standing: tuple[Step, ...], found: dict[tuple[int, int], Prediction]
    ) -> Iterator[tuple[Step, str]]:
        """All that is left of a component's revision, from the steps that stand; this session stays as it is."""
        own = Session(
            self.engine,
            self.image,
            self.instruction,
            stages=self.stages,
            seed=self.seed,
            limits=self.limits,
            kept=standing,
        )
        own._predictions = dict(found)
        while not own._of(StopStep, box.component):
            step, part = own._revise(box)
            own.steps.append(step)
            yield step, part

    def _revise(self, box: LesionBox) -> tuple[Step, str]:
        masks = self._of(MaskStep, box.component)
        clicks = self._of(ClickStep, box.component)
        if clicks and clicks[-1].turn > masks[-1].turn:
            return self._mask_after_click(box, masks[-1], clicks), "segmenter"
        if len(masks) > 1 and masks[-1].origin == "model" and masks[-1].mask == masks[-2].mask:
            return StopStep(component=box.component, reason="no_progress"), "stage2"
        drawn = max((step.turn for step in masks if step.origin == "user"), default=0)
        if sum(click.turn > drawn for click in clicks) >= self.limits.max_clicks:
            return StopStep(component=box.component, reason="limit"), "stage2"
        decision = self.engine.revision_policy.revise(
            self.image,
            self.instruction,
            box,
            [step.mask.array for step in masks],
            [step.click for step in clicks],
            seed=self.seed,
        )
        if isinstance(decision.value, Done):
            stop = StopStep(component=box.component, reason=decision.value.reason, text=decision.text)
            return stop, "stage2"
        turn = len(clicks) + 1
        return ClickStep(component=box.component, turn=turn, click=decision.value, text=decision.text), "stage2"

    def _mask_after_click(self, box: LesionBox, before: MaskStep, clicks: list[ClickStep]) -> MaskStep:
        previous = self._predictions.get((box.component, before.turn))
        state = None if previous is None or before.origin == "user" else previous.state
        prompt = Prompt(
            box.box,
            tuple(step.click for step in clicks),
            Prediction(before.mask.array, before.predicted_iou, state),
        )
        (found,) = self.engine.segmenter.segment(self.image, [prompt])
        self._predictions[box.component, clicks[-1].turn] = found
        return self._mask_step(box, clicks[-1].turn, found)

    def _mask_step(self, box: LesionBox, turn: int, found: Prediction) -> MaskStep:
        size = self.image.radiograph.record.size
        if found.mask.shape != size:
            raise EngineError(f"The segmenter gave a mask of {found.mask.shape}, the image is {size}.")
        mask = without_specks(found.mask, self.limits.speck_share)
        notes: tuple[str, ...] = ()
        allowed = self._allowed(box, size)
        if allowed is not None:
            cut = np.count_nonzero(mask & ~allowed)
            if cut:
                lung = lung_of(box.region)
                mask = without_specks(mask & allowed, self.limits.speck_share)
                notes = (f"Cut at the box of the {lung}: {cut} px lay beyond it.",)
        return MaskStep(
            component=box.component, turn=turn, mask=Mask.of(mask), predicted_iou=found.predicted_iou, notes=notes
        )

    def _allowed(self, box: LesionBox, size: tuple[int, int]) -> np.ndarray | None:
        """Where the component's mask may lie: its lung's box for a question about a lung or zone, and whatever the
        user placed; None for everywhere."""
        if self.instruction.level == "chest":
            return None
        lungs = self._last(LungsStep)
        boxes = self._last(BoxesStep)
        assert lungs is not None and boxes is not None
        lung = lungs.box_of(lung_of(box.region) or "")
        if lung is None:
            return None
        allowed = lung.mask(size)
        if boxes.origin == "user":
            allowed |= box.box.mask(size)
        for step in self._of(MaskStep, box.component):
            if step.origin == "user":
                allowed |= step.mask.array
        for click in self._of(ClickStep, box.component):
            asked = click.origin == "user" and click.click.polarity == "positive"
            if asked and not allowed[click.click.point.pixel(size)]:
                return None
        return allowed

    def _unite(self, boxes: BoxesStep) -> ResultStep:
        union = np.zeros(self.image.radiograph.record.size, bool)
        for box in boxes.boxes:
            union |= self._of(MaskStep, box.component)[-1].mask.array
        if not union.any():
            raise EngineError(
                f"{self.instruction.finding} was judged present, but no mask has a pixel left; "
                "this is a failure, not an absence. Draw a box or place a click."
            )
        mask = Mask.of(union)
        return ResultStep(present=True, mask=mask, area_mm2=self.image.radiograph.record.area_mm2(mask.area))

    def _result(self, step: ResultStep) -> Result:
        presence = self._last(PresenceStep)
        assert presence is not None
        stated = [v.confidence for v in presence.verdicts if v.present == step.present]
        known = [c for c in stated if c is not None]
        confidence = None
        if presence.origin == "model" and known and len(known) == len(stated):
            # Present needs one region, absent needs them all: the surest of the one, the least sure of the other.
            confidence = max(known) if step.present else min(known)
        area = 0 if step.mask is None else step.mask.area
        return Result(
            "present" if step.present else "absent", confidence=confidence, area_px=area, area_mm2=step.area_mm2
        )

    # Looking back.

    def _last(self, kind: type[S]) -> S | None:
        return next((step for step in reversed(self.steps) if isinstance(step, kind)), None)

    def _of(self, kind: type[Made], component: int) -> list[Made]:
        return [step for step in self.steps if isinstance(step, kind) and step.component == component]


def without_specks(mask: np.ndarray, share: float) -> np.ndarray:
    """The mask without its 8-connected pieces under ``share`` of the image; its largest piece always stays.

    Args:
        mask: bool ``[H, W]``.
        share: of the image area, 1e-4 by DESIGN.md (104 px at 1024 x 1024).
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if rows.size == 0:
        return mask
    # Only where the mask is: most are small beside the image, and each component has one.
    place = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    labels, _ = ndimage.label(mask[place], np.ones((3, 3)))
    areas = np.bincount(labels.ravel())
    areas[0] = 0
    keep = areas >= share * mask.size
    keep[areas.argmax()] = True
    kept = np.zeros_like(mask)
    kept[place] = keep[labels]
    return kept


def answer(
    engine: Engine,
    image: EncodedRadiograph,
    instruction: Instruction,
    *,
    stages: int = 2,
    seed: int = 0,
    limits: Limits | None = None,
    watch: Callable[[Step, Session], None] | None = None,
) -> Trace:
    """The whole answer to one instruction; a finding that the engine cannot answer and a failed model are answers too.

    Args:
        watch: called with each step as it is made and the session that made it, when given.
    """
    try:
        session = Session(engine, image, instruction, stages=stages, seed=seed, limits=limits)
    except UnsupportedFinding as problem:
        return unanswered(engine.identity, image, instruction, "unsupported", str(problem))
    try:
        for step in session.run():
            if watch is not None:
                watch(step, session)
    except EngineError as problem:
        return session.trace(failure=problem)
    return session.trace()


def unanswered(
    bundle: BundleIdentity, image: EncodedRadiograph, instruction: Instruction, status: str, message: str
) -> Trace:
    """The trace of a question that got no answer: no step, and the reason."""
    return Trace(image.radiograph.record, instruction, bundle, result=Result(status, message=message))
