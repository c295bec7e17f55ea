"""What the panel shows and does, without a widget: one radiograph, its questions, their answers, steps and edits.

    presenter = SessionPresenter(EngineWork(connect), changed=panel.update)
    presenter.set_image(Path("chest.dcm"), key="vtkMRMLScalarVolumeNode1")
    presenter.ask("Segment the effusion in the left lung")
    ...                                      # a timer calls presenter.poll(); it calls changed() when there is news
    presenter.flip("left lung")              # stages an edit, shown but not run
    presenter.replay()                       # a new branch; the old one stays

All methods and attributes are for the user interface's thread. None waits, none calls the engine: that is
:mod:`.engine_work`'s. Whatever goes wrong is told by :attr:`~SessionPresenter.message`, and nothing is raised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from xflow_core.domain.errors import RadiographRefused, XFlowError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import (
    BoxesStep,
    ClickStep,
    ImageRecord,
    LungsStep,
    MaskStep,
    PresenceStep,
    ResultStep,
    Step,
    Trace,
)

from . import question, steps
from .engine_work import (
    Answered,
    Ask,
    Began,
    Draw,
    Ended,
    EngineLike,
    EngineState,
    EngineWork,
    Event,
    Failed,
    ImageChecked,
    ImageRead,
    ImageSent,
    Part,
    Replay,
    Resume,
    SessionRead,
    Source,
    Stepped,
    Watch,
)
from .history import Answer, History, Version, session_json
from .steps import Edit, Masks, NotOffered, Offers, Picture, Row, ShownBox, ShownClick

AS_ASKED, ASKED_AGAIN = "as asked", "asked again"
_REMEMBERED = 16
"""Radiographs whose answers stay in memory when another one is chosen."""


@dataclass(eq=False)
class _Going:
    """A task of the engine's: what it was asked, and where its answers stand in the history."""

    task: int
    title: str
    parts: tuple[Part, ...]
    accept: bool
    sentence: str = ""
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    begun: bool = False
    cancelled: bool = False


@dataclass(eq=False)
class _Radiograph:
    """All that is known of the radiograph that is shown; another one has another of these.

    Attributes:
        image: its number at the work's.
        sha256: once its file was read.
        remembered: the sha256 of the pixels that ``history`` is about, when it came from memory.
        accept: ask against the guards.
        sending: it is on its way to the engine.
        going: the task whose steps are followed.
        tasks: that one, and those before it of which something may still be heard.
        failure, failed: what went wrong last, and the task in which it did, when it was one.
        notice: a sentence that stands until the next action.
        finished: results for the scene.
    """

    source: Source | None = None
    key: str = ""
    image: int = 0
    sha256: str = ""
    remembered: str = ""
    masks: Masks = field(default_factory=Masks)
    record: ImageRecord | None = None
    warnings: tuple[str, ...] = ()
    refused: str | None = None
    accept: bool = False
    sending: bool = False
    history: History = field(default_factory=History)
    going: _Going | None = None
    tasks: dict[int, _Going] = field(default_factory=dict)
    failure: XFlowError | None = None
    failed: _Going | None = None
    notice: str = ""
    finished: list[Trace] = field(default_factory=list)


@dataclass(eq=False)
class _View:
    """How the branch that is shown is looked at; another branch has another of these.

    Attributes:
        step: the selected one; None follows the last.
        pending, preview: an edit that is not replayed, and the trace with it in its place.
        rows, picture: the last ones made, with what they were made of.
    """

    step: int | None = None
    pending: Edit | None = None
    preview: Trace | None = None
    rows: tuple[Trace, tuple[Row, ...]] | None = None
    picture: tuple[Trace, int, Picture] | None = None


@dataclass(frozen=True, eq=False)
class _Left:
    """What stays in memory of a radiograph that is not shown."""

    sha256: str
    history: History
    masks: Masks


class SessionPresenter:
    """See the module.

    Attributes:
        accept_image: ask against the guards' refusal; it becomes a warning of the trace. Of this image alone.
    """

    def __init__(self, work: EngineWork, changed: Callable[[], None]) -> None:
        """
        Args:
            changed: called after something changed, by the method that changed it; at most once in a poll.
        """
        self._work = work
        self._changed = changed
        self._left: OrderedDict[str, _Left] = OrderedDict()
        self._engine = EngineState()
        self._now, self._view = _Radiograph(), _View()

    # The image ----------------------------------------------------------------------------------------------------

    def set_image(self, source: Source | None, key: str = "") -> None:
        """Show another radiograph: it is read, sent to the engine and checked. What was asked of the last one is
        dropped; its answers stay in memory under its ``key``, and come back with it.

        Args:
            source: a file or an array; None for none.
            key: the caller's name for the radiograph.
        """
        self._leave()
        self._now, self._view = _Radiograph(), _View()
        self._now.source, self._now.key = source, key
        self._now.sending = source is not None and self._work.eager()
        back = self._left.pop(key, None) if source is not None and key else None
        if back is not None:
            self._now.history, self._now.masks, self._now.remembered = back.history, back.masks, back.sha256
        self._now.image = self._work.show(source, self._now.masks)
        self._changed()

    def use_engine(self, connect: Callable[[Watch], EngineLike] | None = None) -> None:
        """Leave the engine and use another one, or the same one anew; answers stay."""
        self._work.reconnect(connect)
        self._take(EngineState())
        self._changed()

    def stop(self) -> None:
        """Forget all: the scene was closed, or the radiograph is gone. What runs is cancelled."""
        self._left.clear()
        self._now.key = ""
        self.set_image(None)

    def close(self) -> None:
        """The module goes: end the engine and the threads; returns at once."""
        self._work.close()

    @property
    def image_key(self) -> str:
        return self._now.key

    @property
    def record(self) -> ImageRecord | None:
        """What the engine read, once it has."""
        return self._now.record

    @property
    def size(self) -> tuple[int, int] | None:
        """``(H, W)`` of the image, once it is known."""
        if self._now.record is not None:
            return self._now.record.size
        version = self._now.history.version
        return None if version is None else version.trace.image.size

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the image, and does not refuse it."""
        trace = self.trace
        found = (*self._now.warnings, *(trace.image.warnings if trace is not None else ()))
        return tuple(dict.fromkeys(found))

    @property
    def refused(self) -> str | None:
        """Why the image will be refused, unless :attr:`accept_image` is set."""
        return self._now.refused

    @property
    def accept_image(self) -> bool:
        return self._now.accept

    @accept_image.setter
    def accept_image(self, accept: bool) -> None:
        if accept == self._now.accept:
            return
        self._now.accept = accept
        if accept and self._now.record is None and self._now.source is not None:  # it was refused at reading
            self._now.failure, self._now.sending = None, self._work.eager()
            self._now.image = self._work.show(self._now.source, self._now.masks, accept_image=True)
        self._changed()

    # The question ---------------------------------------------------------------------------------------------------

    def complete(self, text: str) -> tuple[str, ...]:
        """Whole lines that a half-typed line may become."""
        return question.complete(text)

    def understood(self, text: str) -> question.Understood:
        """How a line is understood; no engine is needed."""
        return question.understood(text)

    def ask(self, text: str) -> bool:
        """Ask; a run that is made is cancelled. False when the line is not understood; ``message`` says why."""
        read = question.understood(text)
        if not read.ok:
            return self._refuse(read.sentence or "Type a question, or choose a finding.")
        return self._start((Ask(text),), AS_ASKED, f"Asking for {read.sentence}.")

    def survey(self) -> bool:
        """Ask for all seven findings, one after another."""
        parts = tuple(Ask(question.sentence_for((finding,))) for finding in FINDINGS)
        return self._start(parts, AS_ASKED, "Asking for all seven findings.")

    def cancel(self) -> None:
        """Stop before the next step; what was decided stays."""
        going = self._now.going
        self._work.cancel()
        if going is not None:
            going.cancelled = True
            self._now.going = None
            kept = " What was decided stays, and can be edited or gone on with." if going.places else ""
            self._now.notice = f"Cancelled.{kept}"
        self._changed()

    @property
    def can_ask(self) -> bool:
        return self._now.source is not None

    @property
    def can_cancel(self) -> bool:
        return self._now.going is not None

    @property
    def can_retry(self) -> bool:
        """Whether there is something to try again, or an answer that was cut off and can be gone on with."""
        if self._now.going is not None or self._now.source is None:
            return False
        version = self._now.history.version
        return self._now.failure is not None or (version is not None and version.ended and version.trace.result is None)

    def retry(self) -> bool:
        """Go on with the answer that was cut off, or do again what failed; what was decided is not computed again."""
        if not self.can_retry:
            return self._refuse("There is nothing to try again.")
        if self._now.failed is not None:
            return self._retry(self._now.failed)
        if self._now.failure is not None:
            return self._resend()
        version = self._now.history.version
        if version is not None and version.ended and version.trace.result is None:
            assert self._now.history.selected is not None and self._now.history.answer is not None
            place = self._now.history.selected, self._now.history.answer.selected
            return self._start((Resume(version.trace),), version.title, "Going on.", {0: place})
        return False

    def _retry(self, failed: _Going) -> bool:
        """The rest of a task: its answer that was cut off, then what it had not come to."""
        if any(isinstance(part, Replay) and part.edit.then for part in failed.parts):
            return self._start(failed.parts, failed.title, failed.sentence, failed.places)
        places = sorted(failed.places.items())
        versions = [(place, self._version_at(place)) for _, place in places]
        cut = [(place, version) for place, version in versions if version is not None and version.trace.result is None]
        parts: list[Part] = []
        kept: dict[int, tuple[int, int]] = {}
        if cut:
            place, version = cut[-1]
            parts.append(Resume(version.trace))
            kept[0] = place
        answered = len(versions)
        asked = [part for part in failed.parts if isinstance(part, Ask)]
        instructions = [i for part in asked for i in question.understood(part.text).instructions]
        if answered == 0:
            parts = list(failed.parts)
        else:
            parts += [Ask(question.sentence_of(instruction)) for instruction in instructions[answered:]]
        if not parts:
            return self._resend()
        return self._start(tuple(parts), failed.title, failed.sentence, kept)

    def _resend(self) -> bool:
        self._now.failure, self._now.sending = None, self._work.eager()
        self._now.image = self._work.show(self._now.source, self._now.masks, accept_image=self._now.accept)
        self._changed()
        return True

    # The answers ----------------------------------------------------------------------------------------------------

    @property
    def answers(self) -> tuple[Answer, ...]:
        """One for each question; with ``title``, ``status``, ``sentence``, ``branches`` and ``selected``."""
        return self._now.history.answers

    @property
    def selected_answer(self) -> int | None:
        return self._now.history.selected

    @property
    def selected_branch(self) -> int | None:
        return None if self._now.history.answer is None else self._now.history.answer.selected

    @property
    def trace(self) -> Trace | None:
        """What was decided in the branch that is shown."""
        version = self._now.history.version
        return None if version is None else version.trace

    def select_answer(self, i: int) -> None:
        if 0 <= i < len(self.answers) and i != self._now.history.selected:
            self._now.history = self._now.history.with_answer_selected(i)
            self._look()

    def select_branch(self, j: int) -> None:
        """Return to a branch; its result is handed out by :meth:`take_finished` again."""
        answer = self._now.history.answer
        if answer is not None and 0 <= j < len(answer.branches) and j != answer.selected:
            self._now.history = self._now.history.with_branch_selected(j)
            version = self._now.history.version
            if version is not None and version.ended and version.trace.result is not None:
                self._now.finished.append(version.trace)
            self._look()

    def take_finished(self) -> tuple[Trace, ...]:
        """The answers with a result that the scene was not given yet, each once."""
        finished, self._now.finished = tuple(self._now.finished), []
        return finished

    def result_mask(self, trace: Trace) -> np.ndarray | None:
        """The mask of a trace's result, bool ``[H, W]``; None without one. Decoded before, so quick."""
        step: ResultStep | None = trace.last(ResultStep)
        if step is None or step.mask is None:
            return None
        whole = np.zeros(step.mask.size, bool)
        self._now.masks.pixels(step.mask).onto(whole)
        return whole

    # The steps ------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int | None:
        """The selected step of the branch that is shown; the last one, also while it grows, until one is selected."""
        trace = self._shown
        if trace is None or not trace.steps:
            return None
        last = len(trace.steps) - 1
        return last if self._view.step is None else min(self._view.step, last)

    @property
    def rows(self) -> tuple[Row, ...]:
        """A row per decision; with an edit that is not replayed, in its place, what it will change is ``stale``."""
        trace = self._shown
        if trace is None:
            return ()
        if self._view.rows is None or self._view.rows[0] is not trace:
            found = steps.rows(trace, self._now.masks)
            edit = self._view.pending
            if edit is not None:
                found = tuple(
                    replace(row, pending=row.step == edit.k, stale=row.step > edit.k and row.step not in edit.kept)
                    for row in found
                )
            self._view.rows = trace, found
        return self._view.rows[1]

    @property
    def picture(self) -> Picture | None:
        """The image as it stood after the selected step, with an edit that is not replayed; None before any step."""
        trace, k = self._shown, self.step
        if trace is None or k is None:
            return None
        if self._view.picture is None or self._view.picture[0] is not trace or self._view.picture[1] != k:
            self._view.picture = trace, k, steps.picture_at(trace, k, self._now.masks)
        return self._view.picture[2]

    def select_step(self, k: int) -> None:
        """Look at the image as it stood after step ``k``."""
        trace = self._shown
        if trace is not None and trace.steps:
            self._view.step = min(max(k, 0), len(trace.steps) - 1)
            if self._view.pending is None:
                self._now.notice = ""
            self._changed()

    def select_row(self, i: int) -> None:
        """Look at the step of a row."""
        if 0 <= i < len(self.rows):
            self.select_step(self.rows[i].step)

    def previous_step(self) -> None:
        if self.step is not None:
            self.select_step(self.step - 1)

    def next_step(self) -> None:
        if self.step is not None:
            self.select_step(self.step + 1)

    # Edits ----------------------------------------------------------------------------------------------------------

    @property
    def offers(self) -> Offers:
        """What may be edited at the selected step."""
        trace, k = self.trace, self.step
        if trace is None or k is None:
            return Offers()
        return steps.offers(trace, min(k, len(trace.steps) - 1))

    @property
    def pending(self) -> Edit | None:
        """The edit that waits to be replayed."""
        return self._view.pending

    @property
    def can_replay(self) -> bool:
        return self._view.pending is not None and self._now.source is not None

    @property
    def can_continue(self) -> bool:
        """Whether there is a mask that the user may edit and go on from."""
        trace = self.trace
        return self._now.source is not None and trace is not None and trace.last(MaskStep) is not None

    def edit(self, edit: Edit) -> bool:
        """Stage an edit of the trace that is shown, made by the functions of :mod:`.steps`."""
        trace = self.trace
        if trace is None:
            return False
        self._view.pending = edit
        self._view.preview = steps.previewed(trace, edit)
        # A click is looked at where it stands; boxes and verdicts are, at any later step.
        if self._view.step is not None and self._view.step < edit.k:
            self._view.step = edit.k
        self._now.notice = f"Edited: {edit.sentence}. Replay from here to see what follows."
        self._changed()
        return True

    def move_box(self, shown: ShownBox, box: Box) -> bool:
        """A lung or lesion box was dragged."""
        if shown.role == "lung":
            return self._stage(LungsStep, lambda trace, k: steps.lung_moved(trace, k, shown.index, box))
        return self._stage(BoxesStep, lambda trace, k: steps.box_moved(trace, k, shown.index, box))

    def add_box(self, box: Box) -> bool:
        return self._stage(BoxesStep, lambda trace, k: steps.box_added(trace, k, box))

    def remove_box(self, shown: ShownBox) -> bool:
        if shown.role == "lung":
            return self._refuse("A lung box cannot be removed; move it.")
        return self._stage(BoxesStep, lambda trace, k: steps.box_removed(trace, k, shown.index))

    def flip(self, region: str) -> bool:
        """The other verdict for a region."""
        return self._stage(PresenceStep, lambda trace, k: steps.verdict_flipped(trace, k, region))

    def move_click(self, shown: ShownClick, point: Point) -> bool:
        edit = self._view.pending
        if edit is not None and edit.k == shown.step and isinstance(edit.step, ClickStep):
            moved = replace(edit.step, click=replace(edit.step.click, point=point))
            return self.edit(replace(edit, step=moved))
        return self._try(lambda trace: steps.click_moved(trace, shown.step, point))

    def remove_click(self, shown: ShownClick) -> bool:
        edit = self._view.pending
        if edit is not None and edit.k == shown.step and isinstance(edit.step, ClickStep) and not edit.then:
            self.discard()  # it was only placed or moved
            trace = self.trace
            there = trace.steps[shown.step] if trace is not None and shown.step < len(trace.steps) else None
            if not isinstance(there, ClickStep) or there.origin == "user":
                return True
        return self._try(lambda trace: steps.click_deleted(trace, shown.step))

    def add_click(self, polarity: str, point: Point, component: int | None = None) -> bool:
        """A click after the mask at the selected step; of the component that lies there, when none is named."""
        k = self.step

        def made(trace: Trace) -> Edit:
            place = -1 if k is None else min(k, len(trace.steps) - 1)
            chosen = steps.component_at(trace, place, point, self._now.masks) if component is None else component
            if chosen is None:
                raise NotOffered("There is no mask at this step; select a mask, or a later step.")
            return steps.click_added(trace, place, chosen, polarity, point)

        return self._try(made)

    def stop_here(self, component: int | None = None) -> bool:
        """No click after the mask at the selected step."""
        k = self.step

        def made(trace: Trace) -> Edit:
            place = -1 if k is None else min(k, len(trace.steps) - 1)
            middle = Point(0.5, 0.5)
            chosen = steps.component_at(trace, place, middle, self._now.masks) if component is None else component
            return steps.stopped(trace, place, chosen or 0)

        return self._try(made)

    def discard(self) -> None:
        """Drop the edit that was not replayed."""
        self._view.pending = self._view.preview = None
        self._view.rows = self._view.picture = None
        self._now.notice = ""
        self._changed()

    def replay(self) -> bool:
        """Replay from the edit: a new branch, and the old one stays. What is being made is cancelled."""
        trace, edit = self.trace, self._view.pending
        if trace is None or edit is None:
            return self._refuse("There is no edit to replay; drag a box or a click, or turn a verdict.")
        return self._start((Replay(trace, edit),), edit.sentence, f"Replaying: {edit.sentence}.")

    def continue_from(self, component: int | None, mask: np.ndarray, revise: bool = True) -> bool:
        """Go on from a mask that the user drew: a new branch.

        Args:
            component: None for a mask of all components; those that it changes are found.
            mask: bool ``[H, W]``; it is not copied, and must not be changed by the caller any more.
            revise: false keeps it as drawn.
        """
        trace = self.trace
        if trace is None or not self.can_continue:
            return self._refuse("There is no mask yet to go on from; ask for a finding first.")
        title = "mask drawn" if component is None else f"mask of component {component + 1} drawn"
        if not revise:
            title += ", kept"
        return self._start((Draw(trace, component, mask, revise),), title, "Going on from the drawn mask.")

    # The state ------------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """``no_image``, ``sending``, ``ready``, ``waiting`` (for the engine), ``running`` or ``failed``."""
        if self._now.source is None:
            return "no_image"
        if self._now.going is not None:
            return "running" if self._now.going.begun else "waiting"
        if self._now.failure is not None:
            return "failed"
        return "sending" if self._now.sending else "ready"

    @property
    def engine(self) -> EngineState:
        return self._engine

    @property
    def message(self) -> str:
        """What is going on, and what to do, in a sentence or two."""
        phase = self.phase
        if self._now.notice:
            return self._now.notice
        if phase == "no_image":
            return "Choose a radiograph: a frontal chest X-ray, from DICOM or a picture."
        if phase == "failed":
            assert self._now.failure is not None
            return self._said_of_failure(self._now.failure)
        if phase == "waiting":
            assert self._now.going is not None
            if self._engine.stage in ("checking", "starting", "loading"):
                return self._engine.message
            ahead = self._work.ahead
            queued = f" {ahead} run{'s' if ahead > 1 else ''} of others before it." if ahead else ""
            return self._now.going.sentence + queued
        if phase == "running":
            picture = self.picture
            return picture.title if picture is not None else "The engine is at work."
        if phase == "sending" and self._engine.stage in ("checking", "starting", "loading"):
            return self._engine.message
        if phase == "sending":
            return "Sending the image to the engine."
        if self._now.refused is not None and not self._now.accept:
            return self._now.refused
        answer = self._now.history.answer
        return answer.sentence if answer is not None else "Type a question, choose a finding, or survey all seven."

    def _said_of_failure(self, error: XFlowError) -> str:
        sentence = str(error)
        if isinstance(error, RadiographRefused):
            return sentence
        kept = self._now.history.version
        if kept is not None and kept.trace.result is None and kept.trace.steps:
            return f"{sentence} What was decided until then stays; try again to go on from there."
        return sentence

    # The session ----------------------------------------------------------------------------------------------------

    def to_json(self) -> str | None:
        """The session for the scene to keep, in a moment; None while there is no answer."""
        return session_json(self._now.history)

    def restore(self, text: str, instance: str | None = None) -> None:
        """Bring back a session that the scene kept of this image. Read in a thread, and the engine is not needed; what
        cannot be restored is said. Without effect where there are answers already.

        Args:
            instance: the image's SOP Instance UID, where it has one: its file may not be at hand where the scene is
                opened, and its pixels have another sha256.
        """
        if self._now.source is not None and not self._now.history.answers:
            self._work.restore(text, instance)

    # Events ---------------------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Take what the threads have to tell; whether there was anything. Called by a timer."""
        events = self._work.poll()
        for event in events:
            self._take(event)
        if events:
            self._changed()
        return bool(events)

    def _take(self, event: Event) -> None:
        if isinstance(event, EngineState):
            self._engine = event
            if event.stage == "none":  # it was left
                self._now.failure = None
                self._now.sending = self._now.source is not None and self._work.eager()
        elif isinstance(event, (Began, Stepped, Answered, Ended)):
            self._take_of_task(event)
        elif event.image != self._now.image:
            return
        elif isinstance(event, ImageRead):
            self._now.sha256 = event.sha256
            if self._now.remembered not in ("", event.sha256):
                # The same radiograph by name, and other pixels: the answers are not about these.
                self._now.history, self._now.remembered = History(), ""
                self._now.notice = "The image has changed; the earlier answers were put away."
                self._view = _View()
        elif isinstance(event, ImageSent):
            self._now.record, self._now.sending = event.record, False
            self._now.warnings = event.record.warnings
        elif isinstance(event, ImageChecked):
            self._now.warnings, self._now.refused = event.check.warnings, event.check.refused
        elif isinstance(event, Failed):
            self._take_failure(event)
        else:
            self._take_session(event)

    def _take_of_task(self, event: Began | Stepped | Answered | Ended) -> None:
        going = self._now.tasks.get(event.task)
        if going is None:
            return  # of an image that is not shown any more
        if isinstance(event, Began):
            going.begun = True
        elif isinstance(event, Stepped):
            self._put(going, event.answer, Version(going.title, event.trace))
        elif isinstance(event, Answered):
            trace = event.version.trace
            if trace.result is None and not trace.steps:
                return  # cancelled before anything was decided
            self._put(going, event.answer, replace(event.version, title=going.title))
            if trace.result is not None:
                self._now.finished.append(trace)
                if going.cancelled:
                    self._now.notice = ""  # it ended before it could be stopped
        else:
            if self._now.going is going and len(going.places) > 1:
                self._sum_up(going)
            self._over(going)

    def _sum_up(self, going: _Going) -> None:
        """After several questions: what was found, and the first answer that found something is shown."""
        answers = [(i, self.answers[i]) for i, _ in going.places.values()]
        present = [i for i, answer in answers if answer.status == "present"]
        if present:
            self._now.history = self._now.history.with_answer_selected(present[0])
            self._view = _View()
        found: dict[str, list[str]] = {"Present": [], "Absent": [], "Not answered": []}
        for _, answer in answers:
            status = answer.status.capitalize()
            found[status if status in found else "Not answered"].append(_short(answer.title))
        self._now.notice = " ".join(f"{word}: {', '.join(titles)}." for word, titles in found.items() if titles)

    def _over(self, going: _Going) -> None:
        self._now.tasks.pop(going.task, None)
        if self._now.going is going:
            self._now.going = None

    def _put(self, going: _Going, answer: int, version: Version) -> None:
        """A version in its place; a new branch, and looked at, when it is the task's first of this answer."""
        place = going.places.get(answer)
        if place is None:
            if version.title == AS_ASKED and self._now.history.place_of(version.trace.instruction) is not None:
                going.title = ASKED_AGAIN
                version = replace(version, title=ASKED_AGAIN)
            # A task that was cancelled does not take the eye from what is shown.
            show = self._now.going is going or self._now.history.selected is None
            self._now.history, going.places[answer] = self._now.history.with_version(version, show=show)
            if show:
                self._view = _View()
            return
        self._now.history = self._now.history.with_changed(place, version)

    def _take_failure(self, event: Failed) -> None:
        self._now.sending = False
        if isinstance(event.error, RadiographRefused):
            self._now.refused = str(event.error)
        if event.task is None:
            self._now.failure, self._now.failed = event.error, None
            return
        going = self._now.tasks.get(event.task)
        if going is None:
            return
        if self._now.going is going:
            self._now.failure, self._now.failed = event.error, going
        self._over(going)

    def _take_session(self, event: SessionRead) -> None:
        if event.restored is None:
            self._now.notice = str(event.error)
        elif not self._now.history.answers:
            self._now.history = event.restored.history
            self._now.notice = " ".join(event.restored.lost)
            self._view = _View()

    # Within ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._view = _View()
        self._now.notice = ""
        self._changed()

    def _leave(self) -> None:
        """Keep what was answered of the radiograph that is shown."""
        if not (self._now.key and self._now.sha256):
            return
        ended = self._now.history.ended()
        if ended.answers:
            self._left[self._now.key] = _Left(self._now.sha256, ended, self._now.masks)
            while len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)

    @property
    def _shown(self) -> Trace | None:
        """The trace that is shown: with the edit that is not replayed yet."""
        return self.trace if self._view.preview is None else self._view.preview

    def _version_at(self, place: tuple[int, int]) -> Version | None:
        i, j = place
        if i < len(self.answers) and j < len(self.answers[i].branches):
            return self.answers[i].branches[j]
        return None

    def _start(
        self, parts: tuple[Part, ...], title: str, sentence: str, places: dict[int, tuple[int, int]] | None = None
    ) -> bool:
        if self._now.source is None:
            return self._refuse("Choose a radiograph first.")
        try:
            task = self._work.start(parts, accept_image=self._now.accept)
        except XFlowError as problem:
            return self._refuse(str(problem))
        if self._now.going is not None:
            self._now.going.cancelled = True
        self._now.going = _Going(task, title, parts, self._now.accept, sentence, dict(places or {}))
        self._now.tasks[task] = self._now.going
        self._now.failure = self._now.failed = None
        self._now.notice = ""
        self._view = _View()
        self._changed()
        return True

    def _refuse(self, sentence: str) -> bool:
        self._now.notice = sentence
        self._changed()
        return False

    def _stage(self, kind: type[Step], make: Callable[[Trace, int], Edit]) -> bool:
        """Stage an edit of the one step of a kind; further edits of that step are made on top of it."""
        trace = self.trace
        if trace is None:
            return self._refuse("There is nothing to edit yet; ask for a finding first.")
        k = steps.place_of(trace, kind)
        before = self._view.pending if self._view.pending is not None and self._view.pending.k == k else None
        base = trace if before is None or self._view.preview is None else self._view.preview
        try:
            edit = make(base, k)
        except XFlowError as problem:
            return self._refuse(str(problem))
        if before is not None:
            edit = _both(before, edit)
        if _same(edit.step, trace.steps[k]):
            self.discard()
            return True
        return self.edit(edit)

    def _try(self, make: Callable[[Trace], Edit]) -> bool:
        trace = self.trace
        if trace is None:
            return self._refuse("There is nothing to edit yet; ask for a finding first.")
        try:
            edit = make(trace)
        except XFlowError as problem:
            return self._refuse(str(problem))
        return self.edit(edit)


def _short(title: str) -> str:
    """An answer's title without the place, where it is the usual one."""
    return title.removesuffix(", whole chest").removesuffix(", heart")


def _both(first: Edit, second: Edit) -> Edit:
    """Two edits of one step as one."""
    sentence = second.sentence if first.sentence == second.sentence else f"{first.sentence}; {second.sentence}"
    if first.removed is not None or second.removed is not None:
        # Components were renumbered in between: all of them are made anew.
        return replace(second, sentence=sentence, kept=(), removed=None)
    return replace(second, sentence=sentence, kept=tuple(k for k in second.kept if k in first.kept))


def _same(step: Step, other: Step) -> bool:
    """Whether two steps decide the same, whoever decided it."""
    if isinstance(step, PresenceStep) and isinstance(other, PresenceStep):
        return [(v.region, v.present) for v in step.verdicts] == [(v.region, v.present) for v in other.verdicts]
    return False
