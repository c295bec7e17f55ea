"""The session as the panel sees it: phases, sentences, steps, edits, branches, and what comes back."""

from __future__ import annotations

import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from phantom import LUNG_BOXES, SIZE
from phantom_backend import phantom_bundle
from PIL import Image
from service.phantom_server import DISCS, GatedParts, Served, engine_of, picture, serving
from XFlowSlicerLib.engine_work import EngineWork
from XFlowSlicerLib.presenter import SessionPresenter

from tests.xflow_slicer.phantom_answers import told_to_stop
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import BoxesStep, ClickStep, Mask, MaskStep, StopStep, Trace
from xflow_core.policies.protocols import GuardReport
from xflow_core.service.client import Client
from xflow_core.service.local import LocalEngine
from xflow_core.service.protocol import ArrayImage

TEXT = "Segment the opacity"
IMAGE = picture()
EMPTY = picture([])


class Shown(SessionPresenter):
    """A presenter with a clock: ``wait`` polls as the panel's timer does; ``news`` counts calls of ``changed``."""

    def __init__(self, connect: Callable[..., Any]) -> None:
        self.news = 0
        super().__init__(EngineWork(connect), self._count)

    def _count(self) -> None:
        self.news += 1

    def wait(self, holds: Callable[[], Any], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"it did not come: {self.phase}, {self.message}"
            self.poll()
            time.sleep(0.005)

    def settle(self) -> None:
        self.wait(lambda: self.phase in ("ready", "failed", "no_image") and not self.running)

    @property
    def running(self) -> bool:
        return any(version.status == "running" for answer in self.answers for version in answer.branches)

    def asked(self, text: str = TEXT) -> Trace:
        assert self.ask(text)
        self.settle()
        assert self.trace is not None
        return self.trace


Make = Callable[..., Shown]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Shown] = []

    def shown(connect: Callable[..., Any], source: Any = IMAGE, key: str = "one") -> Shown:
        made.append(Shown(connect))
        if source is not None:
            made[-1].set_image(source, key)
        return made[-1]

    yield shown
    for presenter in made:
        presenter.close()
        assert presenter._work.wait_closed(30)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture
def shown(make: Make, served: Served) -> Shown:
    presenter = make(client_of(served))
    presenter.settle()
    return presenter


def client_of(server: Served) -> Callable[..., Client]:
    return lambda watch: Client(server.url, server.token)


def places(trace: Trace, kind: type, component: int) -> list[int]:
    return [k for k, s in enumerate(trace.steps) if isinstance(s, kind) and s.component == component]


# Phases and sentences -------------------------------------------------------------------------------------------


def test_a_session_goes_from_no_image_to_an_answer(make: Make, served: Served) -> None:
    presenter = make(client_of(served), None)
    assert presenter.phase == "no_image"
    assert presenter.message.startswith("Choose a radiograph")
    assert not presenter.can_ask and presenter.picture is None and presenter.rows == ()
    assert not presenter.ask(TEXT)
    assert presenter.message == "Choose a radiograph first."
    presenter.set_image(IMAGE, "one")
    assert presenter.phase == "sending"
    phases = ["sending"]
    presenter.settle()
    assert presenter.phase == "ready"
    assert presenter.message == "Type a question, choose a finding, or survey all seven."
    assert presenter.size == SIZE
    assert presenter.engine.stage == "ready"
    assert presenter.ask(TEXT)
    assert (presenter.phase, presenter.can_cancel) == ("waiting", True)
    while presenter.phase != "ready":
        presenter.poll()
        phases.append(presenter.phase)
        time.sleep(0.002)
    assert "running" in phases and "failed" not in phases
    presenter.settle()
    (answer,) = presenter.answers
    assert (answer.title, answer.status) == ("opacity, whole chest", "present")
    assert presenter.message == answer.sentence
    assert answer.sentence.startswith("Opacity is present in both lungs")
    assert presenter.take_finished() == (presenter.trace,)
    assert presenter.take_finished() == ()


def test_the_panel_is_told_once_for_each_poll_with_news_and_not_otherwise(shown: Shown) -> None:
    shown.ask(TEXT)
    before = shown.news
    polls = 0
    while shown.phase != "ready":
        polls += shown.poll()
        time.sleep(0.002)
    assert shown.news - before == polls
    assert not shown.poll()
    assert shown.news - before == polls


def test_five_outcomes_are_five_different_answers(make: Make) -> None:
    class Breaks(GatedParts):
        def judge(self, image: Any, instruction: Any, *rest: Any, **named: Any) -> Any:
            if instruction.finding == "effusion":
                raise MemoryError("no room")
            return super().judge(image, instruction, *rest, **named)

    parts = Breaks()
    with serving(engine_of(parts), parts) as server:
        presenter = make(client_of(server))
        for text in (TEXT, "Segment the effusion", "Segment the edema"):
            presenter.asked(text)
        presenter.set_image(EMPTY, "two")
        presenter.settle()
        presenter.asked()
        said = {presenter.answers[0].status: presenter.answers[0].sentence}
        presenter.set_image(ArrayImage(np.full(SIZE, 7, np.uint16), dense_is_bright=True), "blank")
        presenter.wait(lambda: presenter.refused is not None)
        assert presenter.message == presenter.refused == "It is blank: all pixels are alike."
        presenter.asked()
        said[presenter.answers[0].status] = presenter.answers[0].sentence
        assert presenter.rows[-1].kind == "refused" and "blank" in presenter.rows[-1].text
        presenter.set_image(IMAGE, "one")
        for answer in presenter.answers:
            said[answer.status] = answer.sentence
    assert set(said) == {"present", "absent", "refused", "unsupported", "failed"}
    assert len(set(said.values())) == 5
    assert "does not mean that effusion is absent" in said["failed"]
    assert "no room" in said["failed"]


def test_an_image_that_the_guards_refuse_is_asked_about_when_the_user_accepts_it(make: Make, served: Served) -> None:
    presenter = make(client_of(served), ArrayImage(np.full(SIZE, 7, np.uint16), dense_is_bright=True))
    presenter.asked()
    assert presenter.answers[0].status == "refused"
    presenter.accept_image = True
    presenter.asked()
    assert presenter.answers[0].status == "present"
    assert [version.title for version in presenter.answers[0].branches] == ["as asked", "asked again"]
    assert any(warning.startswith("Run against the guards") for warning in presenter.warnings)
    presenter.set_image(IMAGE, "another")
    assert not presenter.accept_image, "of that image alone"


def test_a_colour_picture_is_refused_with_what_to_do_and_can_be_accepted(
    make: Make, served: Served, tmp_path: Path
) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 240, 3), np.uint8)).save(buffer, "PNG")
    (tmp_path / "photo.png").write_bytes(buffer.getvalue())
    presenter = make(client_of(served), tmp_path / "photo.png")
    presenter.settle()
    assert presenter.phase == "failed"
    assert "colour" in presenter.message and presenter.refused == presenter.message
    presenter.accept_image = True
    presenter.settle()
    assert presenter.phase == "ready"
    presenter.asked()
    assert presenter.answers[0].status in ("present", "absent")


def test_a_guard_s_warnings_stand_there_before_anything_is_asked(make: Make) -> None:
    class Guarded(GatedParts):
        def inspect(self, image: Any) -> GuardReport:
            return GuardReport(warnings=("It may be a lateral view.",))

    parts = Guarded()
    with serving(replace(engine_of(parts), guard=parts), parts) as server:
        presenter = make(client_of(server))
        presenter.wait(lambda: "It may be a lateral view." in presenter.warnings)
        assert presenter.answers == () and presenter.phase == "ready"


def test_a_line_that_is_not_understood_is_not_sent(shown: Shown, served: Served) -> None:
    before = served.parts.calls.copy()
    assert not shown.ask("segment the pneumothorax")
    assert "seven findings" in shown.message
    assert not shown.ask("  ")
    assert shown.message == "Type a question, or choose a finding."
    assert served.parts.calls == before
    assert shown.understood("effusion LLL").sentence == "effusion, patient's left lung base"
    assert shown.complete("eff")[0] == "effusion"


def test_a_survey_asks_all_seven_and_says_which_cannot_be_answered(shown: Shown) -> None:
    assert shown.survey()
    shown.settle()
    assert tuple(answer.instruction.finding for answer in shown.answers) == FINDINGS
    supported = {"opacity", "effusion", "cardiomegaly"}
    assert {a.instruction.finding for a in shown.answers if a.status != "unsupported"} == supported
    assert len(shown.take_finished()) == 7


def test_after_several_questions_what_was_found_is_summed_up_and_the_first_finding_is_shown(shown: Shown) -> None:
    shown.survey()
    shown.settle()
    statuses = [answer.status for answer in shown.answers]
    assert shown.selected_answer == statuses.index("present")
    present, *_, unanswered = shown.message.split(". ")
    assert present.startswith("Present: ") and "opacity" in present
    assert unanswered == "Not answered: pneumonia, atelectasis, consolidation, edema."
    shown.select_answer(0 if shown.selected_answer else 1)
    assert "Present: " not in shown.message, "a single answer is looked at"


def test_nothing_may_be_edited_where_there_is_no_step(shown: Shown) -> None:
    offers = shown.offers
    assert not offers.flips
    assert all((offers.add_click, offers.delete_click, offers.add_box, offers.remove_box, offers.stop, offers.draw))


def test_a_run_that_is_cancelled_before_anything_was_decided_does_not_speak_of_it(shown: Shown) -> None:
    shown.ask(TEXT)
    shown.cancel()
    assert shown.message == "Cancelled."


# Steps ----------------------------------------------------------------------------------------------------------


def test_steps_are_looked_at_one_by_one_and_the_last_is_followed_until_one_is_selected(shown: Shown) -> None:
    trace = shown.asked()
    last = len(trace.steps) - 1
    assert shown.step == last
    assert shown.picture.step == last
    shown.next_step()
    assert shown.step == last
    for k in range(last - 1, -1, -1):
        shown.previous_step()
        assert (shown.step, shown.picture.step) == (k, k)
    shown.previous_step()
    assert shown.step == 0
    assert shown.picture.mask is None
    shown.select_row(4)
    assert shown.step == shown.rows[4].step == 2
    shown.select_step(99)
    assert shown.step == last
    assert shown.picture is shown.picture and shown.rows is shown.rows


def test_a_step_that_was_selected_stays_while_the_answer_grows(shown: Shown, served: Served) -> None:
    served.parts.closed = True
    shown.ask(TEXT)
    shown.wait(lambda: shown.trace is not None and len(shown.trace.steps) == 6)
    assert shown.step == 5
    shown.select_step(2)
    served.parts.closed = False
    served.parts.gate.release(100)
    shown.settle()
    assert shown.step == 2


def test_scrubbing_a_large_image_is_quick(make: Make, served: Served) -> None:
    presenter = make(client_of(served))
    trace = presenter.asked()
    rows_, columns = np.ogrid[:3000, :3000]
    grown = [
        replace(step, mask=Mask.of((rows_ - 1500) ** 2 + (columns - 900) ** 2 < (600 + 20 * k) ** 2))
        if isinstance(step, MaskStep)
        else step
        for k, step in enumerate(trace.steps[:-1])
    ]
    large = replace(trace, image=replace(trace.image, size=(3000, 3000)), steps=tuple(grown), result=None)
    presenter._now.masks.prepare(large)
    history, _ = presenter._now.history.with_version(replace(presenter.answers[0].version, trace=large, text="{}"))
    presenter._now.history = history
    presenter.discard()
    spent = []
    for _ in range(len(large.steps)):
        began = time.perf_counter()
        presenter.previous_step()
        assert presenter.picture is not None and presenter.rows and presenter.offers
        spent.append(time.perf_counter() - began)
    assert statistics.median(spent) < 0.05


# Edits ----------------------------------------------------------------------------------------------------------


def test_a_verdict_is_turned_shown_and_replayed_into_a_new_branch(shown: Shown) -> None:
    old = shown.asked()
    shown.take_finished()
    assert shown.flip("left lung")
    assert shown.pending.sentence == "left lung turned to absent"
    assert shown.message == "Edited: left lung turned to absent. Replay from here to see what follows."
    pending = [row for row in shown.rows if row.pending]
    assert [row.text for row in pending] == ["Right lung: present", "Left lung: absent"]
    assert all(row.stale for row in shown.rows if row.step > 1)
    assert shown.trace is old, "nothing has run"
    assert shown.replay()
    assert shown.pending is None
    shown.settle()
    (answer,) = shown.answers
    assert [version.title for version in answer.branches] == ["as asked", "left lung turned to absent"]
    assert shown.selected_branch == 1
    assert len(shown.trace.last(BoxesStep).boxes) == 1
    assert shown.take_finished() == (shown.trace,)
    shown.select_branch(0)
    assert shown.trace == old
    assert shown.take_finished() == (old,), "the scene gets the branch that is shown again"
    assert shown.step == len(old.steps) - 1


def test_an_edit_that_is_taken_back_leaves_everything_as_it_was(shown: Shown) -> None:
    shown.asked()
    rows = shown.rows
    shown.flip("left lung")
    shown.flip("left lung")
    assert shown.pending is None
    assert shown.rows == rows
    shown.flip("right lung")
    shown.discard()
    assert shown.pending is None and shown.rows == rows
    assert not shown.replay()
    assert "no edit to replay" in shown.message


def test_several_boxes_are_dragged_and_then_replayed_together(shown: Shown) -> None:
    shown.asked()
    lesions = [box for box in shown.picture.boxes if box.role == "lesion"]
    one, two = Box(0.15, 0.3, 0.35, 0.6), Box(0.6, 0.2, 0.8, 0.4)
    assert shown.move_box(lesions[0], one)
    assert shown.move_box(lesions[1], two)
    drawn = [box.box for box in shown.picture.boxes if box.role == "lesion"]
    assert drawn[:2] == [one, two]
    assert shown.pending.sentence == "box of component 1 moved; box of component 2 moved"
    kept = [step for step in shown.trace.steps if getattr(step, "component", None) == 2]
    shown.replay()
    shown.settle()
    assert [box.box for box in shown.trace.last(BoxesStep).boxes][:2] == [one, two]
    assert [step for step in shown.trace.steps if getattr(step, "component", None) == 2] == kept


def test_boxes_are_added_and_removed(shown: Shown) -> None:
    shown.asked()
    assert shown.add_box(Box(0.15, 0.7, 0.3, 0.85))
    added = shown.picture.boxes[-1]
    assert shown.remove_box(added), "it was only drawn"
    shown.discard()
    lesions = [box for box in shown.picture.boxes if box.role == "lesion"]
    assert not shown.remove_box(lesions[0])
    assert "turn that verdict to absent" in shown.message
    assert shown.pending is None
    assert not shown.remove_box(shown.picture.boxes[0])
    assert shown.message == "A lung box cannot be removed; move it."
    assert shown.add_box(Box(0.15, 0.7, 0.3, 0.85)) and shown.move_box(lesions[1], Box(0.6, 0.2, 0.8, 0.4))
    assert shown.remove_box(lesions[2])
    shown.replay()
    shown.settle()
    assert [box.region for box in shown.trace.last(BoxesStep).boxes] == ["right lung", "left lung", "right lung"]
    assert shown.answers[0].status == "present"


def test_a_lung_box_is_moved(shown: Shown) -> None:
    shown.asked()
    lung = next(box for box in shown.picture.boxes if box.name == "left lung")
    assert shown.move_box(lung, Box(0.55, 0.1, 0.9, 0.5))
    shown.replay()
    shown.settle()
    assert len(shown.trace.last(BoxesStep).boxes) == 2


def test_clicks_are_added_moved_and_taken_away(shown: Shown) -> None:
    trace = shown.asked()
    shown.select_step(places(trace, MaskStep, 1)[0])
    assert shown.add_click("negative", Point(0.7, 0.32))
    assert shown.step == shown.pending.k, "the click is looked at"
    placed = next(click for click in shown.picture.clicks if click.step == shown.pending.k)
    assert (placed.polarity, placed.component, placed.origin) == ("negative", 1, "user")
    assert shown.move_click(placed, Point(0.71, 0.33))
    assert shown.pending.sentence == "− click 1 on component 2, for the model's"
    shown.replay()
    shown.settle()
    click = shown.trace.steps[places(shown.trace, ClickStep, 1)[0]]
    assert (click.origin, click.click.point) == ("user", Point(0.71, 0.33))
    theirs = next(click for click in shown.picture.clicks if click.component == 0)
    assert shown.move_click(theirs, Point(0.3, 0.55))
    assert shown.remove_click(theirs), "moved and then deleted is deleted"
    assert shown.pending.sentence == "click 1 deleted on component 1"
    shown.replay()
    shown.settle()
    assert len(places(shown.trace, ClickStep, 0)) == 1
    assert shown.trace.steps[places(shown.trace, ClickStep, 1)[0]].click.point == Point(0.71, 0.33), "an edit stays"
    assert shown.selected_branch == 2


def test_a_click_that_was_only_placed_is_taken_back(shown: Shown) -> None:
    trace = shown.asked()
    shown.add_click("positive", Point(0.25, 0.5), 0)
    placed = next(click for click in shown.picture.clicks if click.step == shown.pending.k)
    assert isinstance(trace.steps[placed.step], StopStep)
    assert shown.remove_click(placed)
    assert shown.pending is None


def test_a_click_at_the_cursor_is_meant_for_what_lies_there(shown: Shown) -> None:
    shown.asked()
    for component, (x, y, _) in enumerate(DISCS):
        assert shown.add_click("positive", Point(x, y))
        assert shown.pending.step.component == component
    shown.select_step(2)
    assert not shown.add_click("positive", Point(0.25, 0.5))
    assert "select a mask" in shown.message
    assert shown.stop_here() is False


def test_a_component_is_stopped_after_a_mask(shown: Shown) -> None:
    trace = shown.asked()
    shown.select_step(places(trace, MaskStep, 0)[1])
    assert shown.stop_here()
    shown.replay()
    shown.settle()
    assert len(places(shown.trace, ClickStep, 0)) == 1


def test_what_is_drawn_is_gone_on_from(shown: Shown, served: Served) -> None:
    trace = shown.asked()
    served.parts.wanted_clicks = 3
    drawn = LUNG_BOXES["left lung"].mask(SIZE)
    assert shown.can_continue
    assert shown.continue_from(1, drawn)
    shown.settle()
    masks = places(shown.trace, MaskStep, 1)
    assert shown.trace.steps[masks[2]].origin == "user"
    assert len(masks) > len(places(trace, MaskStep, 1))
    shown.select_branch(0)
    whole = trace.steps[-1].mask.array.copy()
    whole[100:104, 175:180] = True
    assert shown.continue_from(None, whole, revise=False)
    shown.settle()
    assert (shown.result_mask(shown.trace) == whole).all()
    assert [v.title for v in shown.answers[0].branches] == ["as asked", "mask of component 2 drawn", "mask drawn, kept"]


def test_nothing_is_edited_before_there_is_anything(shown: Shown) -> None:
    for edit in (
        lambda: shown.flip("left lung"),
        lambda: shown.add_box(Box(0, 0, 1, 1)),
        lambda: shown.add_click("positive", Point(0.5, 0.5)),
        lambda: shown.continue_from(None, np.ones(SIZE, bool)),
        lambda: shown.replay(),
        lambda: shown.retry(),
    ):
        assert edit() is False
        assert shown.message.endswith(".")
    assert shown.offers.flips == ()


def test_an_edit_belongs_to_what_is_shown(shown: Shown) -> None:
    shown.asked()
    shown.asked("Segment the effusion")
    shown.flip("left lung")
    shown.select_answer(0)
    assert shown.pending is None
    assert shown.answers[shown.selected_answer].title == "opacity, whole chest"


# Cancelling, failing, going on ----------------------------------------------------------------------------------


def test_a_cancelled_answer_can_be_edited_or_gone_on_with(shown: Shown, served: Served) -> None:
    whole = shown.asked()
    served.parts.closed = True
    shown.ask(TEXT)
    shown.wait(lambda: shown.selected_branch == 1 and len(shown.trace.steps) == 6)
    assert served.parts.at_the_gate.acquire(timeout=30)
    shown.cancel()
    assert not shown.can_cancel and shown.phase == "ready"
    assert shown.message.startswith("Cancelled. What was decided stays")
    shown.wait(lambda: told_to_stop(served))
    served.parts.closed = False
    served.parts.gate.release(100)
    shown.settle()
    assert shown.answers[0].status == "cancelled"
    assert shown.can_retry
    assert shown.add_click("positive", Point(0.7, 0.32))
    shown.discard()
    assert shown.retry()
    shown.settle()
    assert shown.trace == whole
    assert len(shown.answers[0].branches) == 2, "it went on in its place"
    assert not shown.can_retry


def test_a_new_question_takes_the_place_of_the_one_that_is_made(shown: Shown, served: Served) -> None:
    served.parts.closed = True
    shown.ask(TEXT)
    assert served.parts.at_the_gate.acquire(timeout=30)
    shown.ask("Segment the effusion")
    shown.wait(lambda: told_to_stop(served))
    served.parts.closed = False
    served.parts.gate.release(100)
    shown.settle()
    assert [answer.status for answer in shown.answers] == ["cancelled", "present"]
    assert shown.selected_answer == 1


def test_a_lost_server_is_said_and_another_one_goes_on_with_the_rest(make: Make) -> None:
    parts = GatedParts()
    with serving() as second:
        with serving(parts=parts) as first:
            presenter = make(client_of(first))
            whole = presenter.asked()
            parts.closed = True
            presenter.ask("effusion and opacity")
            assert parts.at_the_gate.acquire(timeout=30)
            first.process.stop()
            presenter.wait(lambda: first.service.worker.state == "stopping")
        presenter.settle()
        assert presenter.phase == "failed"
        assert presenter.message.endswith("What was decided until then stays; try again to go on from there.")
        presenter.use_engine(client_of(second))
        presenter.ask("segment the pneumothorax")
        assert presenter.can_ask
        presenter.settle()
        cut = next(i for i, answer in enumerate(presenter.answers) if answer.status == "cancelled")
        presenter.select_answer(cut)
        assert presenter.retry()
        presenter.settle()
        effusion = next(answer for answer in presenter.answers if answer.instruction.finding == "effusion")
        assert effusion.status == "present" and len(effusion.branches) == 1
        assert presenter.answers[0].branches[0].trace == whole


def test_trying_again_goes_on_with_the_answer_that_was_cut_off_and_the_questions_that_were_not_come_to(
    make: Make, tmp_path: Path
) -> None:
    environment = phantom_bundle(tmp_path, crash_at="revise", crashes=3)

    def connect(watch: Callable[..., None]) -> LocalEngine:
        return LocalEngine(bundles=["phantom"], log=tmp_path / "log", environment=environment, watch=watch)

    presenter = make(connect)
    presenter.ask("opacity and effusion")
    presenter.settle()
    assert presenter.phase == "failed"
    assert "lost 3 times at the same place" in presenter.message
    assert [answer.status for answer in presenter.answers] == ["cancelled"]
    assert presenter.retry()
    presenter.settle()
    assert [(a.instruction.finding, a.status) for a in presenter.answers] == [
        ("opacity", "present"),
        ("effusion", "present"),
    ]


def test_an_engine_that_is_killed_is_not_noticed(make: Make, tmp_path: Path) -> None:
    engines: list[LocalEngine] = []
    environment = phantom_bundle(tmp_path, seconds_per_call=0.1)

    def connect(watch: Callable[..., None]) -> LocalEngine:
        engines.append(LocalEngine(bundles=["phantom"], log=tmp_path / "log", environment=environment, watch=watch))
        return engines[-1]

    presenter = make(connect)
    presenter.wait(lambda: presenter.engine.stage in ("starting", "loading"))
    assert presenter.phase == "sending"
    assert presenter.message == presenter.engine.message
    presenter.ask(TEXT)
    presenter.wait(lambda: presenter.trace is not None and len(presenter.trace.steps) > 2)
    os.kill(engines[0].pid, signal.SIGKILL)
    presenter.settle()
    assert presenter.answers[0].status == "present"
    assert presenter.engine.stage == "ready"
    assert engines[0].starts == 2


def test_an_engine_that_cannot_be_had_is_said_and_the_saved_session_is_there_all_the_same(
    make: Make, shown: Shown
) -> None:
    shown.asked()
    text = shown.to_json()

    def connect(watch: Callable[..., None]) -> Client:
        raise CallError("XFlow is not installed for /usr/bin/python3; install it there.")

    presenter = make(connect)
    presenter.restore(text)
    presenter.wait(lambda: presenter.answers and presenter.phase == "failed")
    assert presenter.message == "XFlow is not installed for /usr/bin/python3; install it there."
    assert presenter.engine.stage == "failed"
    assert presenter.trace == shown.trace
    presenter.select_step(4)
    assert presenter.picture.mask.any()
    assert presenter.flip("left lung") and presenter.pending is not None
    assert presenter.take_finished() == (), "the scene has what it saved"


# The session ----------------------------------------------------------------------------------------------------


def test_a_session_is_saved_restored_and_gone_on_with(make: Make, shown: Shown, served: Served) -> None:
    assert shown.to_json() is None
    shown.asked()
    shown.flip("left lung")
    shown.replay()
    shown.settle()
    shown.asked("Segment the effusion")
    shown.select_answer(0)
    shown.select_branch(0)
    presenter = make(client_of(served))
    presenter.restore(shown.to_json())
    presenter.wait(lambda: presenter.answers)
    assert presenter._now.history == shown._now.history
    assert presenter.to_json() == shown.to_json()
    presenter.settle()
    presenter.flip("right lung")
    presenter.replay()
    presenter.settle()
    assert presenter.selected_branch == 2
    assert len(presenter.trace.last(BoxesStep).boxes) == 2
    presenter.restore("{}")
    presenter.settle()
    assert len(presenter.answers) == 2, "a session that is at work is not overwritten"


def test_a_session_is_gone_on_with_where_its_file_is_not_at_hand(make: Make, shown: Shown, served: Served) -> None:
    shown.asked()
    data = json.loads(shown.to_json())
    data["image"]["sha256"] = "e" * 64  # of the DICOM file, elsewhere
    for branch in data["answers"][0]["branches"]:
        branch["trace"]["image"].update(sha256="e" * 64, sop_instance_uid="1.2.3")
    presenter = make(client_of(served))
    presenter.restore(json.dumps(data), "1.2.3")
    presenter.wait(lambda: presenter.answers)
    assert presenter.trace.steps == shown.trace.steps
    assert any("not at hand here" in warning for warning in presenter.warnings)
    presenter.settle()
    presenter.flip("left lung")
    presenter.replay()
    presenter.settle()
    assert presenter.selected_branch == 1 and presenter.answers[0].status == "present"


def test_a_damaged_session_or_another_image_s_is_said(make: Make, shown: Shown, served: Served) -> None:
    shown.asked()
    text = shown.to_json()
    presenter = make(client_of(served), EMPTY)
    presenter.restore(text)
    presenter.wait(lambda: "of another image" in presenter.message)
    presenter.restore(text[:100])
    presenter.wait(lambda: "damaged" in presenter.message)
    assert presenter.answers == ()
    presenter.asked()
    assert presenter.answers[0].status == "absent"


def test_a_radiograph_that_is_chosen_again_is_shown_as_it_was_left(shown: Shown) -> None:
    shown.asked()
    shown.flip("left lung")
    shown.replay()
    shown.settle()
    shown.select_branch(0)
    shown.asked("Segment the effusion")
    shown.select_answer(0)
    before = shown._now.history
    shown.set_image(EMPTY, "two")
    shown.set_image(IMAGE, "one")
    assert shown._now.history == before
    assert (shown.selected_answer, shown.selected_branch) == (0, 0)
    assert shown.picture.mask.any()


def test_a_server_elsewhere_gets_nothing_before_the_first_question(served: Served) -> None:
    presenter = SessionPresenter(EngineWork(client_of(served), eager=lambda: False), lambda: None)
    presenter.set_image(IMAGE, "one")
    time.sleep(0.3)
    presenter.poll()
    assert presenter.phase == "ready" and presenter.can_ask
    assert served.client().capabilities().activity.images == 0
    presenter.ask(TEXT)
    deadline = time.monotonic() + 30
    while presenter.phase != "ready":
        assert time.monotonic() < deadline
        presenter.poll()
        time.sleep(0.01)
    assert presenter.answers[0].status == "present"
    presenter.close()
    assert presenter._work.wait_closed(30)


def test_switching_images_in_the_middle_of_a_run_keeps_what_was_answered(shown: Shown, served: Served) -> None:
    first = shown.asked()
    served.parts.closed = True
    shown.ask("Segment the effusion")
    assert served.parts.at_the_gate.acquire(timeout=30)
    shown.set_image(EMPTY, "two")
    assert shown.answers == () and shown.picture is None and not shown.can_cancel
    shown.wait(lambda: told_to_stop(served))
    served.parts.closed = False
    served.parts.gate.release(100)
    shown.settle()
    shown.asked()
    assert shown.answers[0].status == "absent"
    assert all(trace.image.sha256 == shown.trace.image.sha256 for trace in shown.take_finished())
    shown.set_image(IMAGE, "one")
    assert [version.trace for answer in shown.answers for version in answer.branches] == [first]
    shown.settle()
    shown.flip("left lung")
    shown.replay()
    shown.settle()
    assert shown.answers[0].status == "present"


def test_other_pixels_under_the_same_name_do_not_inherit_the_answers(shown: Shown) -> None:
    shown.asked()
    shown.set_image(EMPTY, "two")
    shown.set_image(picture(DISCS[:1]), "one")
    shown.settle()
    assert shown.answers == ()
    assert shown.message.startswith("The image has changed")


def test_closing_the_scene_in_the_middle_of_a_run_leaves_nothing(shown: Shown, served: Served) -> None:
    shown.asked()
    served.parts.closed = True
    shown.ask("Segment the effusion")
    assert served.parts.at_the_gate.acquire(timeout=30)
    shown.stop()
    assert (shown.phase, shown.answers, shown.trace, shown.step) == ("no_image", (), None, None)
    served.parts.closed = False
    served.parts.gate.release(100)
    time.sleep(0.3)
    shown.poll()
    assert (shown.phase, shown.answers) == ("no_image", ())
    shown.set_image(IMAGE, "one")
    assert shown.answers == ()


def test_it_needs_neither_a_window_nor_a_scene_nor_models_where_it_is_imported() -> None:
    heavy = "('qt', 'slicer', 'vtk', 'torch', 'scipy', 'pydicom', 'starlette', 'PySide6')"
    code = (
        "import sys; sys.path.insert(0, 'XFlowSlicer'); import XFlowSlicerLib.presenter; "
        f"assert not [name for name in {heavy} if name in sys.modules]; "
        "assert not [name for name in sys.modules if name.startswith('xflow_core.workflow')]"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
