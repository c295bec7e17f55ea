"""The engine's calls leave the user interface's thread, can be cancelled at any moment, and end with it."""

from __future__ import annotations

import errno
import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from phantom import LUNG_BOXES, SIZE
from phantom_backend import phantom_bundle
from service.phantom_server import DISCS, GatedParts, Served, picture, serving
from XFlowSlicerLib import steps
from XFlowSlicerLib.engine_work import (
    Answered,
    Ask,
    Began,
    Draw,
    Ended,
    EngineState,
    EngineWork,
    Event,
    Failed,
    ImageChecked,
    ImageRead,
    ImageSent,
    Replay,
    Resume,
    SessionRead,
    Stepped,
    sentence_for_error,
)
from XFlowSlicerLib.history import History, session_json
from XFlowSlicerLib.steps import Masks

from tests.xflow_slicer.phantom_answers import told_to_stop
from xflow_core.domain.errors import CallError, RadiographError, ServiceGone
from xflow_core.domain.geometry import Point
from xflow_core.domain.trace import ClickStep, MaskStep, StopStep, Trace
from xflow_core.service.client import Client
from xflow_core.service.local import LocalEngine

TEXT = "Segment the opacity"
IMAGE = picture()
# What waited for the engine would take seconds, or for ever; a machine that is busy takes some of this from any call.
AT_ONCE = 0.5
E = TypeVar("E")


class Heard:
    """The events of an EngineWork, polled as the panel does."""

    def __init__(self, work: EngineWork) -> None:
        self.work = work
        self.events: list[Event] = []

    def until(self, holds: Callable[[list[Event]], Any], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not holds(self.events):
            assert time.monotonic() < deadline, f"it did not come; last: {self.events[-3:]}"
            self.events += self.work.poll()
            time.sleep(0.005)

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def until_over(self, task: int, seconds: float = 60) -> None:
        self.until(lambda _: self.over(task), seconds)

    def over(self, task: int) -> bool:
        return any(isinstance(event, (Ended, Failed)) and event.task == task for event in self.events)

    def answers(self, task: int) -> list[Trace]:
        return [event.version.trace for event in self.all(Answered) if event.task == task]


class Recorded:
    """An engine or a run of one, every call of which is noted with the thread that made it."""

    def __init__(self, of: Any, calls: list[tuple[str, str]]) -> None:
        self._of = of
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls.append((name, threading.current_thread().name))
            made = found(*arguments, **named)
            return Recorded(made, self._calls) if name in ("run", "resume") else made

        return call

    def __iter__(self) -> Iterator[Any]:
        steps_ = iter(self._of)
        while True:
            self._calls.append(("next", threading.current_thread().name))
            try:
                step = next(steps_)
            except StopIteration:
                return
            yield step


Make = Callable[..., Heard]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes EngineWorks, and sees that each leaves no thread."""
    works: list[EngineWork] = []

    def made(connect: Callable[..., Any]) -> Heard:
        works.append(EngineWork(connect))
        return Heard(works[-1])

    yield made
    for work in works:
        work.close()
        assert work.wait_closed(30)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving() as server:
        yield server


def client_of(server: Served) -> Callable[..., Client]:
    return lambda watch: Client(server.url, server.token)


def local(folder: Path, calls: list[tuple[str, str]] | None = None, **settings: Any) -> Callable[..., Any]:
    """Connects to an engine of the phantom in a process of its own."""
    environment = phantom_bundle(folder, **settings)

    def connect(watch: Callable[..., None]) -> Any:
        engine = LocalEngine(bundles=["phantom"], log=folder / "log", environment=environment, watch=watch)
        return engine if calls is None else Recorded(engine, calls)

    return connect


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for does not."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


# The real engine -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(rg1: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Heard, list[tuple[str, str]]]]:
    """The compact bundle in a real engine process with RG1, every call of it recorded."""
    calls: list[tuple[str, str]] = []
    log = tmp_path_factory.mktemp("engine") / "log"
    work = EngineWork(lambda watch: Recorded(LocalEngine(device="cpu", log=log, watch=watch), calls))
    heard = Heard(work)
    work.show(rg1, Masks())
    heard.until(lambda _: heard.all(ImageChecked), 120)
    yield heard, calls
    work.close()
    assert work.wait_closed(30)


def test_a_question_to_the_real_engine_is_heard_step_by_step(real: tuple[Heard, list[tuple[str, str]]]) -> None:
    heard, _ = real
    task = heard.work.start([Ask("Segment the opacity")])
    heard.until_over(task, 120)
    kinds = [type(event) for event in heard.events if not isinstance(event, (EngineState, Stepped))]
    assert kinds.index(ImageRead) < kinds.index(ImageSent) < kinds.index(Began) < kinds.index(Answered)
    assert kinds[-1] is Ended
    stages = [event.stage for event in heard.all(EngineState)]
    assert stages[0] == "checking" and stages[-1] == "ready" and "starting" in stages
    (trace,) = heard.answers(task)
    assert trace.result is not None and trace.result.status == "present"
    assert [len(event.trace.steps) for event in heard.all(Stepped)] == list(range(1, len(trace.steps) + 1))
    (version,) = [event.version for event in heard.all(Answered)]
    assert version.ended and version.sentence.startswith("Opacity is present")


def test_no_call_of_the_engine_is_made_on_the_user_interface_s_thread(
    real: tuple[Heard, list[tuple[str, str]]],
) -> None:
    heard, calls = real
    task = heard.work.start([Ask("Segment the opacity")])
    heard.until_over(task, 120)
    (trace,) = heard.answers(task)
    mask = next(k for k, step in enumerate(trace.steps) if isinstance(step, MaskStep))
    edits = [
        steps.click_added(trace, mask, 0, "positive", Point(0.3, 0.6)),
        steps.verdict_flipped(trace, 1, trace.steps[1].verdicts[0].region),
        *([steps.click_deleted(trace, mask + 1)] if isinstance(trace.steps[mask + 1], ClickStep) else []),
    ]
    for edit in edits:
        task = heard.work.start([Replay(trace, edit)])
        heard.until_over(task, 120)
        (answer,) = heard.answers(task)
        assert answer.result is not None and answer.branch_of is not None and answer.branch_of.trace == trace.id
    task = heard.work.start([Draw(trace, None, trace.steps[mask].mask.array, False)])
    heard.until_over(task, 120)
    task = heard.work.start([Ask("Segment the opacity")])
    heard.until(lambda _: any(event.task == task for event in heard.all(Began)))
    heard.work.cancel()
    heard.until_over(task)
    threads = Counter(thread for _, thread in calls)
    assert set(threads) == {"XFlow work", "XFlow cancel"}
    assert {name for name, thread in calls if thread == "XFlow cancel"} <= {"cancel"}
    assert {"start", "upload", "check", "run", "resume", "next", "cancel"} <= {name for name, _ in calls}
    assert threading.current_thread().name not in threads


def test_an_image_that_is_no_radiograph_is_refused_in_a_sentence(
    real: tuple[Heard, list[tuple[str, str]]], rg1: Path, tmp_path: Path
) -> None:
    heard, _ = real
    (tmp_path / "notes.txt").write_text("no image")
    image = heard.work.show(tmp_path / "notes.txt", Masks())
    heard.until(lambda _: any(isinstance(event, Failed) and event.image == image for event in heard.events))
    assert isinstance(heard.all(Failed)[-1].error, RadiographError)
    missing = heard.work.show(tmp_path / "gone.dcm", Masks())
    heard.until(lambda _: any(isinstance(event, Failed) and event.image == missing for event in heard.events))
    assert "gone.dcm cannot be read" in str(heard.all(Failed)[-1].error)
    # The thread lives on.
    heard.work.show(rg1, Masks())
    task = heard.work.start([Ask("Segment the opacity")])
    heard.until_over(task, 120)
    assert heard.answers(task)


# Cancelling and the latest --------------------------------------------------------------------------------------


def test_cancelling_while_the_engine_starts_is_heard_at_once_and_nothing_is_sent(make: Make, tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []
    heard = make(local(tmp_path, calls))
    heard.work.show(IMAGE, Masks())
    task = heard.work.start([Ask(TEXT)])
    heard.until(lambda _: any(event.stage == "starting" for event in heard.all(EngineState)))
    heard.work.cancel()
    heard.until_over(task, 1)
    assert heard.all(Ended) == [Ended(task, True)]
    # The start goes on, and serves the next question.
    again = heard.work.start([Ask(TEXT)])
    heard.until_over(again)
    assert [name for name, _ in calls].count("run") == 1
    assert heard.answers(again)[0].result is not None


def test_cancelling_in_the_server_s_queue_takes_the_run_out_of_it(make: Make, served: Served) -> None:
    served.parts.closed = True
    other = served.client()
    blocking = other.run(other.upload(IMAGE), TEXT)
    assert [next(blocking).kind for _ in range(6)][-1] == "mask"
    assert served.parts.at_the_gate.acquire(timeout=30)
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    task = heard.work.start([Ask(TEXT)])
    heard.until(lambda _: heard.all(Began))
    heard.until(lambda _: heard.work.ahead == 1)
    heard.work.cancel()
    heard.until_over(task)
    assert heard.all(Ended)[-1] == Ended(task, True)
    assert heard.answers(task) == []
    assert other.capabilities().activity.runs_waiting <= 1
    served.parts.closed = False
    served.parts.gate.release(100)
    blocking.finish()


def test_what_was_decided_before_a_cancel_stays_and_can_be_gone_on_with(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    whole = heard.work.start([Ask(TEXT)])
    heard.until_over(whole)
    served.parts.closed = True
    task = heard.work.start([Ask(TEXT)])
    assert served.parts.at_the_gate.acquire(timeout=30)
    heard.until(lambda _: any(isinstance(event, Stepped) and event.task == task for event in heard.events))
    heard.work.cancel()
    heard.until(lambda _: told_to_stop(served))
    served.parts.closed = False
    served.parts.gate.release(100)
    heard.until_over(task)
    (cut,) = heard.answers(task)
    assert cut.result is None and len(cut.steps) >= 6
    again = heard.work.start([Resume(cut)])
    heard.until_over(again)
    assert heard.answers(again) == heard.answers(whole)


def test_the_latest_question_wins(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    served.parts.closed = True
    first = heard.work.start([Ask(TEXT)])
    assert served.parts.at_the_gate.acquire(timeout=30)
    second, third = heard.work.start([Ask(TEXT)]), heard.work.start([Ask("Segment the effusion")])
    heard.until(lambda _: told_to_stop(served))
    served.parts.closed = False
    served.parts.gate.release(100)
    heard.until_over(third)
    assert [event for event in heard.all(Ended) if event.task in (first, second)] == [
        Ended(second, True),
        Ended(first, True),
    ]
    assert heard.answers(first)[0].result is None
    assert heard.answers(second) == []
    assert heard.answers(third)[0].instruction.finding == "effusion"


def test_another_image_drops_what_was_asked_of_the_last_one(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    served.parts.closed = True
    first = heard.work.start([Ask(TEXT), Ask("Segment the effusion")])
    assert served.parts.at_the_gate.acquire(timeout=30)
    number = heard.work.show(picture(DISCS[:1]), Masks())
    second = heard.work.start([Ask(TEXT)])
    heard.until(lambda _: told_to_stop(served))
    served.parts.closed = False
    served.parts.gate.release(100)
    heard.until_over(second)
    assert Ended(first, True) in heard.events
    assert len(heard.answers(first)) == 1, "its second question was never asked"
    assert heard.answers(second)[0].image.sha256 == next(e for e in heard.all(ImageRead) if e.image == number).sha256


def test_nothing_can_be_asked_without_an_image(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    with pytest.raises(CallError, match="choose a radiograph first"):
        heard.work.start([Ask(TEXT)])
    heard.work.show(IMAGE, Masks())
    heard.work.show(None, Masks())
    with pytest.raises(CallError, match="choose a radiograph first"):
        heard.work.start([Ask(TEXT)])


# Answers of all kinds -------------------------------------------------------------------------------------------


def test_a_finding_that_the_bundle_cannot_answer_is_said_and_the_others_are_answered(
    make: Make, served: Served
) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    alone = heard.work.start([Ask("Segment the edema")])
    heard.until_over(alone)
    (trace,) = heard.answers(alone)
    assert trace.result.status == "unsupported"
    both = heard.work.start([Ask("opacity and edema in the left lung, no effusion")])
    heard.until_over(both)
    traces = heard.answers(both)
    assert [t.instruction.finding for t in traces] == ["opacity", "edema", "effusion"]
    assert "phantom cannot answer edema; it answers opacity" in traces[1].result.message
    assert [t.result.status for t in traces] == ["present", "unsupported", "present"]


def test_guards_are_heard_before_anything_is_asked(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    heard.until(lambda _: heard.all(ImageChecked))
    (checked,) = heard.all(ImageChecked)
    assert checked.check.refused is None


def test_a_deleted_click_is_replayed_without_it_over_the_wire(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    (trace,) = heard.answers(task)
    clicks = [k for k, step in enumerate(trace.steps) if isinstance(step, ClickStep) and step.component == 0]
    task = heard.work.start([Replay(trace, steps.click_deleted(trace, clicks[0]))])
    heard.until_over(task)
    (without,) = heard.answers(task)
    own = [s for s in without.steps if isinstance(s, (MaskStep, ClickStep, StopStep)) and s.component == 0]
    assert [step.kind for step in own] == ["mask", "click", "mask", "stop"]
    assert own[1].click == trace.steps[clicks[1]].click
    assert without.branch_of.trace == trace.id
    assert without.result.status == "present"
    lengths = [len(event.trace.steps) for event in heard.all(Stepped) if event.task == task]
    assert lengths == sorted(lengths), "what is shown only grows"


@pytest.mark.parametrize("revise", [True, False])
def test_a_mask_of_several_components_is_gone_on_from(make: Make, served: Served, revise: bool) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    (trace,) = heard.answers(task)
    drawn = trace.steps[-1].mask.array.copy()
    drawn[LUNG_BOXES["right lung"].mask(SIZE)] = False
    drawn[100:104, 175:180] = True
    task = heard.work.start([Draw(trace, None, drawn, revise)])
    heard.until_over(task)
    (answer,) = heard.answers(task)
    assert {step.component for step in answer.steps if step.origin == "user"} == {0, 2}
    assert revise or (answer.steps[-1].mask.array == drawn).all()
    task = heard.work.start([Draw(answer, None, answer.steps[-1].mask.array, revise)])
    heard.until_over(task)
    assert "The mask is as it was" in str(heard.all(Failed)[-1].error)


# The engine itself ----------------------------------------------------------------------------------------------


def test_the_engine_is_asked_about_itself_in_its_thread_and_told_in_the_callers(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    told: list[tuple[Any, str]] = []
    asked: list[str] = []

    def question(engine: Any) -> Any:
        asked.append(threading.current_thread().name)
        return engine.capabilities()

    def tell(found: Any) -> None:
        told.append((found, threading.current_thread().name))

    heard.work.call(question, tell, tell)
    heard.until(lambda _: told)
    assert asked == ["XFlow work"]
    assert told[0][0].bundles[0].identity.name == "phantom"
    assert told[0][1] == threading.current_thread().name
    problem = KeyError("x")

    def breaks(engine: Any) -> None:
        raise problem

    heard.work.call(breaks, tell, tell)
    heard.until(lambda _: len(told) == 2)
    assert told[1][0] is problem


def test_a_server_elsewhere_gets_the_image_with_the_first_question(make: Make, served: Served) -> None:
    heard = Heard(EngineWork(client_of(served), eager=lambda: False))
    heard.work.show(IMAGE, Masks())
    heard.until(lambda _: heard.all(ImageRead))
    time.sleep(0.2)
    heard.work.reconnect()
    time.sleep(0.2)
    heard.until(lambda _: True)
    assert not heard.all(ImageSent)
    assert served.client().capabilities().activity.images == 0
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    assert heard.answers(task) and heard.all(ImageSent)
    heard.work.close()
    assert heard.work.wait_closed(30)


def test_an_engine_at_rest_has_no_process_until_the_next_question(make: Make, tmp_path: Path) -> None:
    engines: list[LocalEngine] = []

    def connect(watch: Callable[..., None]) -> LocalEngine:
        engines.append(local(tmp_path)(watch))
        return engines[-1]

    heard = make(connect)
    heard.work.show(IMAGE, Masks())
    heard.until(lambda _: any(event.stage == "starting" for event in heard.all(EngineState)))
    heard.work.rest()
    heard.until(lambda _: heard.all(EngineState)[-1] == EngineState())
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    assert heard.answers(task)
    assert len(engines) == 2, "the first start was ended"
    assert not heard.all(Failed)
    pid = engines[1].pid
    heard.work.rest()
    heard.until(lambda _: not alive(pid) and not any(engine.running for engine in engines))


# Failures -------------------------------------------------------------------------------------------------------


def test_an_engine_that_cannot_be_had_is_said_and_tried_again(make: Make, served: Served) -> None:
    tries: list[int] = []

    def connect(watch: Callable[..., None]) -> Client:
        tries.append(1)
        if len(tries) < 3:
            raise CallError("There is no Python at /nowhere; choose the python of an environment with XFlow.")
        return Client(served.url, served.token)

    heard = make(connect)
    heard.work.show(IMAGE, Masks())
    heard.until(lambda _: heard.all(Failed))
    assert heard.all(Failed)[0].task is None
    assert heard.all(EngineState)[-1].stage == "failed"
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    assert str(heard.all(Failed)[-1].error).startswith("There is no Python at /nowhere")
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    assert heard.answers(task)
    assert heard.all(EngineState)[-1].stage == "ready"


def test_a_server_that_is_lost_leaves_what_was_decided_and_another_one_goes_on(make: Make) -> None:
    parts = GatedParts()
    with serving() as second:
        with serving(parts=parts) as first:
            heard = make(client_of(first))
            heard.work.show(IMAGE, Masks())
            whole = heard.work.start([Ask(TEXT)])
            heard.until_over(whole)
            parts.closed = True
            task = heard.work.start([Ask(TEXT)])
            assert parts.at_the_gate.acquire(timeout=30)
            first.process.stop()
            heard.until(lambda _: first.service.worker.state == "stopping")
        heard.until_over(task)
        (cut,) = heard.answers(task)
        assert cut.result is None and cut.steps
        failed = heard.all(Failed)[-1]
        assert failed.task == task and "server" in str(failed.error).lower()
        heard.work.reconnect(client_of(second))
        task = heard.work.start([Resume(cut)])
        heard.until_over(task)
        assert heard.answers(task) == heard.answers(whole)


def test_a_local_engine_that_is_killed_is_back_by_itself(make: Make, tmp_path: Path) -> None:
    engines: list[LocalEngine] = []

    def connect(watch: Callable[..., None]) -> LocalEngine:
        engines.append(local(tmp_path, seconds_per_call=0.1)(watch))
        return engines[-1]

    heard = make(connect)
    heard.work.show(IMAGE, Masks())
    task = heard.work.start([Ask(TEXT)])
    heard.until(lambda _: len(heard.all(Stepped)) == 3)
    os.kill(engines[0].pid, signal.SIGKILL)
    heard.until_over(task)
    assert heard.answers(task)[0].result.status == "present"
    assert [event.stage for event in heard.all(EngineState)][-1] == "ready"
    assert not heard.all(Failed)


def test_whatever_is_raised_becomes_one_sentence() -> None:
    for problem, words in [
        (OSError(errno.ENOSPC, "No space left on device"), "disk is full; make room"),
        (PermissionError(13, "Permission denied"), "Permission denied; try again"),
        (MemoryError(), "not enough memory"),
        (KeyError("x"), "mistake of its own (KeyError"),
        (ServiceGone("Gone."), "Gone."),
    ]:
        assert words in str(sentence_for_error(problem))


def test_a_bug_ends_its_task_alone(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    task = heard.work.start([Resume(None)])  # type: ignore[arg-type]
    heard.until_over(task)
    assert "report it if it comes back" in str(heard.all(Failed)[-1].error)
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    assert heard.answers(task)


# The session ----------------------------------------------------------------------------------------------------


def test_a_session_is_read_without_an_engine_and_only_for_its_own_image(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    heard.work.show(IMAGE, Masks())
    task = heard.work.start([Ask(TEXT)])
    heard.until_over(task)
    history, _ = History().with_version(replace(heard.all(Answered)[0].version, title="as asked"))
    text = session_json(history)
    assert text is not None

    def no_engine(watch: Callable[..., None]) -> Client:
        watch_forever.wait(30)
        raise CallError("There is none.")

    watch_forever = threading.Event()
    alone = make(no_engine)
    masks = Masks()
    alone.work.show(IMAGE, masks)
    alone.work.restore(text)
    alone.until(lambda _: alone.all(SessionRead), 10)
    assert alone.all(SessionRead)[0].restored.history == history
    alone.work.show(picture(DISCS[:1]), Masks())
    alone.work.restore(text)
    alone.until(lambda _: len(alone.all(SessionRead)) == 2, 10)
    assert "of another image" in str(alone.all(SessionRead)[1].error)
    alone.work.restore("{")
    alone.until(lambda _: len(alone.all(SessionRead)) == 3, 10)
    watch_forever.set()


# The end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "starting", "running", "idle"])
def test_closing_returns_at_once_and_leaves_neither_thread_nor_process(moment: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    engines: list[LocalEngine] = []

    def connect(watch: Callable[..., None]) -> LocalEngine:
        engines.append(local(tmp_path, seconds_per_call=0.3)(watch))
        return engines[-1]

    work = EngineWork(connect)
    heard = Heard(work)
    if moment != "before":
        work.show(IMAGE, Masks())
    if moment == "starting":
        heard.until(lambda _: any(event.stage == "starting" for event in heard.all(EngineState)))
    if moment in ("running", "idle"):
        task = work.start([Ask(TEXT)])
        heard.until(lambda _: heard.over(task) if moment == "idle" else heard.all(Stepped))
    pids = [engine.pid for engine in engines if engine.pid is not None]
    began = time.perf_counter()
    work.close()
    assert time.perf_counter() - began < AT_ONCE
    assert work.wait_closed(30)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) or not set(threading.enumerate()) <= before:
        assert time.monotonic() < deadline, [thread.name for thread in set(threading.enumerate()) - before]
        time.sleep(0.02)
    assert all(not engine.running for engine in engines)
    assert (moment in ("running", "idle")) == bool(pids)
    with pytest.raises(CallError):
        work.start([Ask(TEXT)])


def test_closing_leaves_a_server_in_the_middle_of_a_step_and_the_server_drops_the_run(served: Served) -> None:
    work = EngineWork(client_of(served))
    heard = Heard(work)
    work.show(IMAGE, Masks())
    served.parts.closed = True
    task = work.start([Ask(TEXT)])
    assert served.parts.at_the_gate.acquire(timeout=30)
    heard.until(lambda _: any(isinstance(event, Stepped) and event.task == task for event in heard.events))
    began = time.perf_counter()
    work.close()
    assert time.perf_counter() - began < AT_ONCE
    assert work.wait_closed(10)
    served.parts.closed = False
    served.parts.gate.release(100)
    deadline = time.monotonic() + 10
    while served.service.worker.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert served.service.worker.runs_done == 1


def test_calls_return_at_once_whatever_the_engine_does(make: Make, served: Served) -> None:
    heard = make(client_of(served))
    served.parts.closed = True
    big = replace(IMAGE, values=np.tile(IMAGE.values, (12, 12)))
    spent = []
    for call in (
        partial(heard.work.show, big, Masks()),
        partial(heard.work.show, IMAGE, Masks()),
        partial(heard.work.start, [Ask(TEXT)]),
        partial(heard.work.restore, "{}"),
        partial(heard.work.start, [Ask(TEXT)]),
        heard.work.cancel,
        heard.work.poll,
        heard.work.reconnect,
    ):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
        time.sleep(0.05)
    served.parts.closed = False
    served.parts.gate.release(100)
    assert max(spent) < AT_ONCE
    assert statistics.median(spent) < 0.05
