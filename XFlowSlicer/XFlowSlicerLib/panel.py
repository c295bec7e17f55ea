"""The panel: the module's widgets, the session presenter and the scene, brought together.

The only place that knows all three. One timer polls the presenter; what the engine's thread has to say arrives there,
in the user interface's thread, and nothing here waits for it. Everything shown is read anew from the presenter
(:meth:`Panel.refresh`); widgets are written only where they differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import qt
import slicer

from xflow_core.domain.errors import XFlowError
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import BoxesStep, LungsStep, ResultStep, Trace
from xflow_core.service.protocol import ArrayImage

from . import record, remembered, terminology, volumes
from .engine_section import EngineSection, say
from .engine_work import EngineWork
from .export_section import ExportSection
from .marks import Marks
from .presenter import SessionPresenter
from .question_line import QuestionLine, say_line
from .segments import RadiographSegments
from .slice_views import AwaitedClick, cursor, is_shown, show_radiograph
from .step_table import StepTable
from .steps import Offers, Picture, Row, ShownBox, ShownClick
from .words import translator

_ = translator(__file__)

POLL_MS = 40
_AT_WORK = ("sending", "waiting", "running")
_THREADS_SHARE = 0.003
"""Seconds in each poll that the threads have Python for themselves while they work. Nobody sees them."""

SETTLED_POLLS = 8
"""So many polls after the last volume arrived, the frontal of those that did is chosen: the views of a study come one
after the other."""


class Panel:
    """The module's panel.

    Args:
        root: the loaded ``XFlowSlicer.ui``.
        ui: its widgets by name.
    """

    def __init__(self, root: Any, ui: Any) -> None:
        self._root = root
        self._ui = ui
        self._entered = False
        self._elsewhere = False
        self._phase = ""
        self._volume: Any = None
        self._volume_tag: int | None = None
        self._image: volumes.EngineImage | None = None
        self._segments: RadiographSegments | None = None
        self._marks: Marks | None = None
        self._arrived: list[str] = []
        self._polls_since_arrival = 0
        self._said: tuple[str, str] = ("", "")
        self._stale = False
        self._tips: dict[str, str] = {}
        self._image_words: tuple[str, str] = ("", "")
        self._finished: list[Trace] = []
        self._shown_picture: Any = None
        self._shown_engine: Any = None
        self._shown_answers: Any = None
        self._awaited = AwaitedClick()
        terminology.load(slicer.modules.terminologies.logic())
        self._work = EngineWork(
            lambda watch: self._engine.connect(watch), eager=lambda: not self._engine.settings.sends_images_away
        )
        self.presenter = SessionPresenter(self._work, self.refresh)
        self._engine = EngineSection(ui, self._engine_changed, self._ask_engine, self._stop_engine)
        self._export = ExportSection(ui, self._to_export)
        self._table = StepTable(ui.stepsTable, self._row_selected)
        self._question = QuestionLine(ui, self._ask, self._question_changed)
        self._set_up_widgets()
        self._shortcuts = self._make_shortcuts()
        self._soon = qt.QTimer()
        self._soon.setSingleShot(True)
        self._soon.setInterval(0)
        self._soon.connect("timeout()", self._show_in_scene)
        self._timer = qt.QTimer()
        self._timer.setInterval(POLL_MS)
        self._timer.connect("timeout()", self.poll)
        self._timer.start()
        self.refresh()

    # The module's life.

    def enter(self) -> None:
        """The user opened the module."""
        self._entered = True
        for shortcut in self._shortcuts:
            shortcut.setEnabled(True)
        if self._volume is None:
            self._consider([node.GetID() for node in _volumes_of_the_scene()])
        self.refresh()

    def exit(self) -> None:
        """The user went to another module: the results are shown as they are, and a run goes on."""
        self._entered = False
        for shortcut in self._shortcuts:
            shortcut.setEnabled(False)
        self._await_no_click()
        self._shown_picture = None
        self._show_picture()

    def close(self) -> None:
        """The module is taken down. Waits for nothing."""
        self._timer.stop()
        self._soon.stop()
        self._forget_volume()
        for shortcut in self._shortcuts:
            shortcut.setEnabled(False)
            shortcut.deleteLater()
        self._engine.close()
        self._export.close()
        self.presenter.close()
        self._work.close()

    def poll(self) -> None:
        """Take what the threads have to say; the timer."""
        if self.presenter.phase in _AT_WORK or self._export.busy:
            # Slicer holds Python's lock while it waits for events, so the threads run in here alone.
            time.sleep(_THREADS_SHARE)
        self.presenter.poll()
        self._engine.poll()
        self._export.poll()
        self._choose_arrived()
        self._look_at_views()

    # The scene.

    def scene_closing(self) -> None:
        self.presenter.stop()
        self._arrived = []
        self._forget_volume()
        self.presenter.set_image(None)

    def scene_closed(self) -> None:
        self._ui.volumeSelector.setCurrentNode(None)
        self._say("")
        self.refresh()

    def scene_imported(self) -> None:
        """A scene was read: go on with the radiograph whose session is in it."""
        if self._volume is not None and not self.presenter.answers:
            self._restore()
        if self._volume is None:
            found = _volumes_of_the_scene()
            with_record = [node.GetID() for node in found if record.load(node) is not None]
            self._consider(with_record[:1] or [node.GetID() for node in found])

    def scene_saving(self) -> None:
        """Keep the session as it is now, the selected branch included."""
        self._keep_record()
        if self._segments is not None:
            self._segments.hide_preview()  # what a step hides must not be saved as hidden
            self._shown_picture = None
            self._soon.start()

    def node_added(self, node: Any) -> None:
        """A volume that arrives while none is chosen is considered once those that come with it are there, too."""
        if self._volume is None and node.IsA("vtkMRMLScalarVolumeNode") and not slicer.mrmlScene.IsClosing():
            self._consider([node.GetID()])

    def node_removed(self, node: Any) -> None:
        if self._volume is not None and node.GetID() == self._volume.GetID():
            self._choose_volume(None)
        if node.IsA("vtkMRMLVolumeNode") and not slicer.mrmlScene.IsClosing():
            # Its session goes with it, once the removal is over.
            qt.QTimer.singleShot(0, lambda: record.sweep(slicer.mrmlScene))

    def _consider(self, ids: Sequence[str]) -> None:
        self._arrived += [one for one in ids if one not in self._arrived]
        self._polls_since_arrival = 0

    def _choose_arrived(self) -> None:
        if not self._arrived or not self._entered or slicer.mrmlScene.IsBatchProcessing():
            return
        self._polls_since_arrival += 1
        if self._polls_since_arrival < SETTLED_POLLS:
            return
        found = [slicer.mrmlScene.GetNodeByID(one) for one in self._arrived]
        self._arrived = []
        found = [node for node in found if node is not None and node.GetImageData() is not None]
        if self._volume is not None or not found:
            return
        try:
            chosen, sentence = volumes.frontal_of(found)
        except XFlowError as problem:
            self._say(str(problem), "warning")
        else:
            self._ui.volumeSelector.setCurrentNode(chosen)
            if len(found) > 1:
                self._say(sentence)
        self.refresh()

    def _look_at_views(self) -> None:
        """Boxes belong to their radiograph: they are not shown over another image."""
        elsewhere = self._entered and self._volume is not None and not is_shown(self._volume)
        if elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
            words = _("The slice views show another image. Choose it above, or select a step to see this one again.")
            self._say(words if elsewhere else "", "warning" if elsewhere else "")
            self._shown_picture = None
            self.refresh()

    def _stepping(self, step: Callable[[], None]) -> Callable[[], None]:
        """``step``, in sight of the radiograph."""

        def look() -> None:
            if self._volume is not None and not is_shown(self._volume):
                show_radiograph(self._volume)
            step()

        return look

    # The radiograph.

    def _choose_volume(self, volume: Any) -> None:
        """Another radiograph, or none; what runs for the old one is dropped."""
        if volume is self._volume and volume is not None:
            return
        self._forget_volume()
        self._say("")
        if volume is None:
            self._image_words = ("", "")
            self.presenter.set_image(None)
            self.refresh()
            return
        try:
            image = volumes.engine_image(volume)
        except XFlowError as problem:
            self._image_words = (str(problem), "warning")
            self.presenter.set_image(None)
            self.refresh()
            return
        self._volume, self._image = volume, image
        self._volume_tag = volume.AddObserver(
            slicer.vtkMRMLVolumeNode.ImageDataModifiedEvent, lambda *_: qt.QTimer.singleShot(0, self._pixels_changed)
        )
        self._segments = RadiographSegments(volume, image.frame, before_change=self._save_state_of_editor)
        self._marks = Marks(volume, image.frame)
        self._image_words = (" ".join(image.notes), "")
        show_radiograph(volume)
        self._ui.acceptCheck.checked = False
        self.presenter.accept_image = False
        self.presenter.set_image(image.source, image.key)
        self._restore()
        self.refresh()

    def _restore(self) -> None:
        """Go on with the session that the scene keeps, unless there is one in memory."""
        text = record.load(self._volume)
        if text is not None and not self.presenter.answers:
            self.presenter.restore(text, volumes.instance_of(self._volume))

    def _pixels_changed(self) -> None:
        """The chosen volume's pixels are others: it is another image."""
        volume, before = self._volume, self._image
        if volume is None or before is None:
            return
        try:
            same = volumes.engine_image(volume).key == before.key
        except XFlowError:
            same = False
        if not same:
            self._choose_volume(None)
            self._choose_volume(volume)

    def _forget_volume(self) -> None:
        """Take what belongs to the panel out of the scene; the results stay."""
        self._await_no_click()
        if self._marks is not None:
            self._marks.clear()
        if self._segments is not None:
            self._segments.close()
        if self._volume is not None and self._volume_tag is not None:
            self._volume.RemoveObserver(self._volume_tag)
        self._volume = self._volume_tag = self._image = self._segments = self._marks = None
        self._shown_picture = None
        self._finished = []

    def _keep_record(self) -> None:
        if self._volume is not None:
            text = self.presenter.to_json()
            if text:
                record.save(self._volume, text)

    # What the user does.

    def _set_up_widgets(self) -> None:
        ui = self._ui
        ui.volumeSelector.setMRMLScene(slicer.mrmlScene)
        ui.volumeSelector.connect("currentNodeChanged(vtkMRMLNode*)", self._choose_volume)
        for name, call in {
            "askButton": self._ask,
            "surveyButton": self._survey,
            "cancelButton": self._cancel,
            "tryAgainButton": self._try_again,
            "previousButton": self._stepping(self.presenter.previous_step),
            "nextButton": self._stepping(self.presenter.next_step),
            "flipButton": self._flip,
            "deleteClickButton": self._delete_click,
            "discardButton": self._discard,
            "replayButton": self._replay,
            "editorButton": self._open_segment_editor,
            "continueButton": self._continue_from_edit,
            "undoButton": self._undo,
            "redoButton": self._redo,
        }.items():
            getattr(ui, name).connect("clicked(bool)", self._told(call))
        for polarity, button in self._click_buttons().items():
            button.checkable = True
            button.connect("clicked(bool)", self._awaiting(polarity))
        ui.acceptCheck.connect("clicked(bool)", lambda _on: self._accept_image())
        ui.darkBoneCheck.connect("clicked(bool)", lambda _on: self._state_polarity())
        ui.answerCombo.connect("activated(int)", self._told_with(self.presenter.select_answer))
        ui.branchCombo.connect("activated(int)", self._told_with(self.presenter.select_branch))
        ui.reviseCheck.checked = remembered.read_flag("revise", True)
        ui.reviseCheck.connect("toggled(bool)", lambda on: remembered.keep("revise", on))
        ui.statusLabel.setMinimumHeight(ui.statusLabel.fontMetrics().height())
        notice = qt.QFont(ui.noticeLabel.font)
        notice.setBold(True)
        ui.noticeLabel.setFont(notice)

    def _click_buttons(self) -> dict[str, Any]:
        return {"positive": self._ui.addPositiveButton, "negative": self._ui.addNegativeButton}

    def _make_shortcuts(self) -> list[Any]:
        """Keys that work wherever the focus is in Slicer's window, while the module is open. What is typed into a line
        of text stays there: it takes its keys before a shortcut does."""
        window = slicer.util.mainWindow() or self._root
        made = []
        for keys, call in {
            "[": self._stepping(self.presenter.previous_step),
            "]": self._stepping(self.presenter.next_step),
            "+": lambda: self._add_click("positive"),
            "-": lambda: self._add_click("negative"),
            "Ctrl+Return": self._replay,
            "Esc": self._escape,
        }.items():
            shortcut = qt.QShortcut(qt.QKeySequence(keys), window)
            shortcut.connect("activated()", self._told(call))
            made.append(shortcut)
        delete = qt.QShortcut(qt.QKeySequence("Del"), self._ui.stepsTable)
        delete.setContext(qt.Qt.WidgetShortcut)
        delete.connect("activated()", self._told(self._delete_click))
        made.append(delete)
        for shortcut in made:
            shortcut.setEnabled(False)
        return made

    def _told(self, call: Callable[[], Any]) -> Callable[..., None]:
        """``call`` as a slot: what it refuses is said in the panel, and what it changed is shown at once."""

        def slot(*_arguments: Any) -> None:
            self._say("")
            self._stale = True
            try:
                call()
            except XFlowError as problem:
                self._say(str(problem), "warning")
                self._stale = True
            if self._stale:
                self.refresh()

        return slot

    def _told_with(self, call: Callable[[int], Any]) -> Callable[[int], None]:
        return lambda index: self._told(lambda: call(index))()

    def _ask(self) -> None:
        self._say("")
        if self._volume is None:
            self._say(self._image_words[0] or _("Choose a radiograph first."), "warning")
        elif self._question.ok:
            self.presenter.ask(self._question.text)
        self.refresh()

    def _survey(self) -> None:
        self.presenter.survey()

    def _cancel(self) -> None:
        self.presenter.cancel()

    def _try_again(self) -> None:
        self.presenter.retry()

    def _accept_image(self) -> None:
        self.presenter.accept_image = bool(self._ui.acceptCheck.checked)
        self.refresh()

    def _state_polarity(self) -> None:
        """The user knows how the pixels without a file are to be read: it is another image for the engine."""
        volumes.state_polarity(self._volume, not self._ui.darkBoneCheck.checked)
        self._pixels_changed()

    def _question_changed(self) -> None:
        self._enable()

    def _escape(self) -> None:
        if self._awaited.waiting:
            self._await_no_click()
        elif self.presenter.can_cancel:
            self._cancel()
        elif self.presenter.pending is not None:
            self._discard()

    def _row_selected(self, row: Row) -> None:
        self._say("")
        self._stepping(lambda: self.presenter.select_step(row.step))()
        self.refresh()

    def _flip(self) -> None:
        region = self._region_to_flip(self.presenter.offers)
        if region is not None:
            self.presenter.flip(region)

    def _region_to_flip(self, offers: Offers) -> str | None:
        """The region of the verdict's row that is selected, or the only one that there is."""
        row, flips = self._table.selected, offers.flips
        if row is not None and row.kind == "presence" and row.region in flips:
            return row.region
        return flips[0] if len(flips) == 1 else None

    def _add_click(self, polarity: str) -> None:
        if self._volume is None or self._image is None:
            return
        point = cursor(self._volume, volumes.in_place(self._volume, self._image.frame))
        if point is None:
            self._say(_("Point at the place in the image with the mouse, then press + or -."), "warning")
            return
        self.presenter.add_click(polarity, point)

    def _awaiting(self, polarity: str) -> Callable[[bool], None]:
        """Awaits a click in the image, or no longer."""

        def toggle(on: bool) -> None:
            self._await_no_click()
            if not on:
                self._say("")
                return self.refresh()
            self._click_buttons()[polarity].checked = True
            more = _("more") if polarity == "positive" else _("less")
            self._say(_("Click in the image where {more} belongs to the finding. Esc ends it.").format(more=more))
            # The click's event is VTK's: nodes are changed once it is over.
            self._awaited.wait(lambda: qt.QTimer.singleShot(0, lambda: self._awaited_click(polarity)))
            return self.refresh()

        return toggle

    def _awaited_click(self, polarity: str) -> None:
        self._await_no_click()
        self._told(lambda: self._add_click(polarity))()

    def _await_no_click(self) -> None:
        self._awaited.stop()
        for button in self._click_buttons().values():
            button.checked = False

    def _delete_click(self) -> None:
        picture = self.presenter.picture
        shown = next((c for c in picture.clicks if c.step == self.presenter.step), None) if picture else None
        if shown is not None:
            self.presenter.remove_click(shown)

    def _box_dragged(self, shown: ShownBox, box: Box) -> None:
        # Inside the drag's own event: the nodes must not change before it is over.
        qt.QTimer.singleShot(0, self._told(lambda: self.presenter.move_box(shown, box)))

    def _click_dragged(self, shown: ShownClick, point: Point) -> None:
        qt.QTimer.singleShot(0, self._told(lambda: self.presenter.move_click(shown, point)))

    def _discard(self) -> None:
        self.presenter.discard()

    def _replay(self) -> None:
        if self.presenter.can_replay:
            self.presenter.replay()

    def _continue_from_edit(self) -> None:
        trace, segments = self.presenter.trace, self._segments
        segment = None if trace is None or segments is None else segments.segment_of(trace)
        mask = None if segment is None else segments.edited_mask(segment)
        if mask is None:
            raise XFlowError(_("The answer's segment is not in the scene any more; replay a step to draw it anew."))
        if not segments.is_edited(segment):
            raise XFlowError(_("The segment is as XFlow drew it; edit it first, for instance in the Segment Editor."))
        self.presenter.continue_from(None, mask, revise=bool(self._ui.reviseCheck.checked))

    def _open_segment_editor(self) -> None:
        trace, segments = self.presenter.trace, self._segments
        if trace is None or segments is None or segments.node is None:
            return
        node, segment, volume = segments.node, segments.segment_of(trace), self._volume
        slicer.util.selectModule("SegmentEditor")
        editor = _segment_editor()
        if editor is not None:
            editor.setSegmentationNode(node)
            editor.setSourceVolumeNode(volume)
            if segment is not None:
                editor.setCurrentSegmentID(segment)

    def _save_state_of_editor(self) -> None:
        """Have the Segment Editor's own undo step over a change of XFlow's, where it shows the same segmentation."""
        editor = _segment_editor()
        save = getattr(editor, "saveStateForUndo", None)
        if save is not None and self._segments is not None and editor.segmentationNode() is self._segments.node:
            save()

    def _undo(self) -> None:
        name = None if self._segments is None else self._segments.undo()
        if name is not None:
            self._say(_("Taken back: {name}. The answer's steps stay.").format(name=name))

    def _redo(self) -> None:
        name = None if self._segments is None else self._segments.redo()
        if name is not None:
            self._say(_("Put back: {name}.").format(name=name))

    def _to_export(self) -> tuple[Any, Sequence[Trace], Any] | None:
        traces = [answer.branches[answer.selected].trace for answer in self.presenter.answers]
        traces = [trace for trace in traces if trace.result is not None]
        return (self._volume, traces, self._segments) if self._volume is not None and traces else None

    # The engine.

    def _engine_changed(self) -> None:
        self.presenter.use_engine()

    def _ask_engine(
        self, question: Callable[[Any], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        self._work.call(question, done, failed)

    def _stop_engine(self) -> None:
        self._work.rest()

    # What is shown.

    def _say(self, text: str, tone: str = "") -> None:
        """A sentence of the panel's own, until the user does something else."""
        self._said = (text, tone)

    def refresh(self) -> None:
        """Show what the presenter holds: the widgets now, results and the picture each in an event of its own, so that
        what the user does in between is not kept waiting."""
        self._stale = False
        self._show_image()
        self._show_status()
        self._show_answers()
        self._table.show(self.presenter.rows, self.presenter.step)
        self._show_pending()
        self._enable()
        self._soon.start()

    def _show_in_scene(self) -> None:
        if self._take_finished():
            self._enable()
            self._soon.start()
        else:
            self._show_picture()

    def _take_finished(self) -> bool:
        """Give the scene one result that it does not have yet; whether there was one."""
        self._finished += self.presenter.take_finished()
        if not self._finished or self._segments is None:
            return False
        trace = self._finished.pop(0)
        self._segments.write(trace, self.presenter.result_mask(trace))
        if not self._finished:
            self._keep_record()
        return True

    def _show_image(self) -> None:
        ui, presenter = self._ui, self.presenter
        words, tone = self._image_words
        say(ui.imageLabel, words, tone)
        if presenter.refused:
            say(ui.warningLabel, presenter.refused, "error")
        else:
            say(ui.warningLabel, "\n".join(presenter.warnings), "warning")
        ui.acceptCheck.visible = bool(presenter.refused) or bool(ui.acceptCheck.checked)
        source = None if self._image is None else self._image.source
        ui.darkBoneCheck.visible = isinstance(source, ArrayImage)
        if isinstance(source, ArrayImage):
            ui.darkBoneCheck.checked = not source.dense_is_bright

    def _show_status(self) -> None:
        presenter = self.presenter
        if self._phase in ("waiting", "running") and presenter.phase not in ("waiting", "running"):
            self._say("")  # what a run has come to goes before what was said while it ran
        self._phase = presenter.phase
        text, tone = self._said
        if not text:
            text = presenter.message
            tone = "error" if presenter.phase == "failed" else ""
            if presenter.pending is not None and presenter.selected_answer is not None and not tone:
                text = presenter.answers[presenter.selected_answer].sentence  # the edit is named beside its buttons
            if text == presenter.refused:  # it stands under the radiograph already
                text = ""
            elif presenter.phase == "no_image":
                text = _("Choose a radiograph, or drop a DICOM file or a picture of one on Slicer's window.")
                text = "" if self._image_words[0] else text
        say_line(self._ui.statusLabel, text, bool(tone))
        self._ui.tryAgainButton.visible = presenter.can_retry
        if presenter.engine != self._shown_engine:
            self._shown_engine = presenter.engine
            self._engine.show_state(presenter.engine.stage, presenter.engine.message)
            if presenter.engine.stage == "failed":
                self._engine.failed(presenter.engine.message)

    def _show_answers(self) -> None:
        ui, presenter = self._ui, self.presenter
        answers = presenter.answers
        state = (answers, presenter.selected_answer)
        if self._shown_answers is not None and all(a is b for a, b in zip(state, self._shown_answers, strict=True)):
            return
        self._shown_answers = state
        _fill(ui.answerCombo, [_answer_words(answer) for answer in answers], presenter.selected_answer)
        chosen = None if presenter.selected_answer is None else answers[presenter.selected_answer]
        branches = () if chosen is None else chosen.branches
        titles = [f"{place}: {branch.title}" for place, branch in enumerate(branches, 1)]
        _fill(ui.branchCombo, titles, presenter.selected_branch)
        for widget in (ui.answerLabel, ui.answerCombo):
            widget.visible = bool(answers)
        for widget in (ui.branchLabel, ui.branchCombo):
            widget.visible = len(branches) > 1
        ui.answerCombo.toolTip = chosen.sentence if chosen is not None else ""

    def _show_pending(self) -> None:
        pending = self.presenter.pending
        self._ui.pendingFrame.visible = pending is not None
        if pending is not None:
            words = pending.sentence[:1].upper() + pending.sentence[1:]
            say(self._ui.pendingLabel, _("{edit}. Nothing has run yet.").format(edit=words))

    def _enable(self) -> None:
        ui, presenter = self._ui, self.presenter
        offers = presenter.offers
        ready = self._volume is not None
        _enable(ui.askButton, ready and presenter.can_ask and self._question.ok)
        _enable(ui.surveyButton, ready and presenter.can_ask)
        _enable(ui.cancelButton, presenter.can_cancel)
        stepping = bool(presenter.rows)
        _enable(ui.previousButton, stepping)
        _enable(ui.nextButton, stepping)
        flips = self._region_to_flip(offers) is not None
        self._offer(ui.flipButton, stepping and flips, "" if flips else _("Select the verdict to turn."))
        for button in self._click_buttons().values():
            self._offer(button, stepping and not offers.add_click, offers.add_click)
        self._offer(ui.deleteClickButton, stepping and not offers.delete_click, offers.delete_click)
        _enable(ui.replayButton, presenter.can_replay)
        node = None if self._segments is None else self._segments.node
        _enable(ui.editorButton, node is not None)
        _enable(ui.continueButton, node is not None and presenter.can_continue and not presenter.can_cancel)
        _enable(ui.reviseCheck, node is not None)
        names = () if self._segments is None else self._segments.names
        redo_names = () if self._segments is None else self._segments.redo_names
        for button, word, name in (
            (ui.undoButton, _("Undo"), names[-1] if names else ""),
            (ui.redoButton, _("Redo"), redo_names[-1] if redo_names else ""),
        ):
            _enable(button, bool(name))
            _name(button, word, name)
        _enable(ui.exportButton, bool(presenter.answers))

    def _offer(self, button: Any, offered: bool, reason: str) -> None:
        """Enable a button, or say in its tooltip why it is not."""
        tip = self._tips.setdefault(button.name, button.toolTip)
        _enable(button, offered)
        tip = tip if offered or not reason else f"{tip}\n{reason}"
        if button.toolTip != tip:
            button.toolTip = tip

    def _show_picture(self) -> None:
        """The boxes, clicks and mask of the selected step; at the result, and outside the module, the results."""
        if self._marks is None or self._segments is None:
            return
        presenter = self.presenter
        picture = presenter.picture if self._entered and not self._elsewhere else None
        trace = presenter.trace
        if picture is self._shown_picture and picture is not None:
            return
        self._shown_picture = picture
        if picture is None:
            self._marks.clear()
            self._segments.hide_preview()
            return
        kind = "" if trace is None or picture.step >= len(trace.steps) else trace.steps[picture.step].kind
        self._marks.show(_with_handles(picture, kind), self._box_dragged, self._click_dragged)
        if trace is None or (kind == ResultStep.kind and presenter.pending is None):
            self._segments.hide_preview(only=self._segment_of_the_answer() or "")
        else:
            mask = picture.mask if picture.mask is not None else np.zeros(self._image.frame.size, bool)
            self._segments.show_preview(mask, trace.instruction.finding, alone=True)

    def _segment_of_the_answer(self) -> str | None:
        """The segment of the answer that is looked at, whichever of its branches it holds."""
        presenter = self.presenter
        if presenter.selected_answer is None or self._segments is None:
            return None
        branches = presenter.answers[presenter.selected_answer].branches
        held = (self._segments.segment_of(branch.trace) for branch in reversed(branches))
        return next((segment for segment in held if segment is not None), None)


def _with_handles(picture: Picture, kind: str) -> Picture:
    """The boxes can be dragged where they are decided, and the lesions' at the result, too: handles everywhere would
    cover the image."""
    draggable = {"lung": (LungsStep.kind,), "lesion": (BoxesStep.kind, ResultStep.kind)}
    boxes = (replace(box, editable=box.editable and kind in draggable[box.role]) for box in picture.boxes)
    return replace(picture, boxes=tuple(boxes))


def _answer_words(answer: Any) -> str:
    words = {
        "present": _("present"),
        "absent": _("absent"),
        "refused": _("image refused"),
        "unsupported": _("not supported"),
        "failed": _("no answer"),
        "running": _("running…"),
        "cancelled": _("cancelled"),
    }
    title = answer.title[:1].upper() + answer.title[1:]
    return f"{title}: {words.get(answer.status, answer.status)}"


def _fill(combo: Any, texts: Sequence[str], selected: int | None) -> None:
    """Show ``texts`` in a combo box, written only where they differ."""
    blocked = combo.blockSignals(True)
    try:
        for place, text in enumerate(texts):
            if place >= combo.count:
                combo.addItem(text)
            elif combo.itemText(place) != text:
                combo.setItemText(place, text)
            combo.setItemData(place, text, qt.Qt.ToolTipRole)
        while combo.count > len(texts):
            combo.removeItem(combo.count - 1)
        combo.setCurrentIndex(-1 if selected is None else selected)
    finally:
        combo.blockSignals(blocked)


def _enable(widget: Any, enabled: bool) -> None:
    if widget.enabled != bool(enabled):
        widget.setEnabled(bool(enabled))


def _name(button: Any, word: str, name: str) -> None:
    """``Undo: effusion, left lung``, shortened to the button's width; whole in the tooltip."""
    whole = f"{word}: {name}" if name else word
    room = button.width - 2 * button.fontMetrics().height()
    shown = button.fontMetrics().elidedText(whole, qt.Qt.ElideRight, room)
    if button.text != shown:
        button.text = shown
    if button.toolTip != whole:
        button.toolTip = whole


def _volumes_of_the_scene() -> list[Any]:
    nodes = slicer.util.getNodesByClass("vtkMRMLScalarVolumeNode")
    return [node for node in nodes if not node.GetHideFromEditors() and not node.IsA("vtkMRMLLabelMapVolumeNode")]


def _segment_editor() -> Any:
    """Slicer's Segment Editor, if its module was opened in this session; asking for it otherwise would build it."""
    widget = getattr(slicer.modules, "SegmentEditorWidget", None)
    return getattr(widget, "editor", None)
