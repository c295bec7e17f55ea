"""The engine, away from the user interface: calls go in and return at once, events come out by :meth:`EngineWork.poll`.

    work = EngineWork(connect)
    work.show(Path("chest.dcm"), Masks())
    work.ask("Segment the effusion in the left lung")
    for event in work.poll(): ...                          # from a timer

Three threads, none of which touches MRML or Qt:

- **work** makes every call of the engine but cancels, one after another. It is the same thread for good: a GPU's
  libraries keep their plans by thread.
- **cancel** makes the requests that end a run, and the engine's own end.
- **read** needs no engine: it reads the image's file and the saved session, and decodes masks.

**The latest wins.** A new run takes the place of the one that is made or waits. Another image drops whatever was asked
of the last one. A task that was cancelled is heard of once more, with what was decided until then.

**Cancelling works at any moment.** A run that the engine makes or holds in its queue is stopped there; one that is not
yet sent, since the engine still starts, never is. The start itself goes on, for the next question.

Whatever is raised becomes a :class:`Failed` with one sentence.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from xflow_core.domain.errors import (
    CallError,
    EngineError,
    RadiographError,
    ServiceGone,
    UnsupportedFinding,
    XFlowError,
)
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BundleIdentity, ClickStep, ImageRecord, Mask, Result, Step, StopStep, Trace
from xflow_core.service.client import Image
from xflow_core.service.local import Progress
from xflow_core.service.protocol import ArrayImage, ImageCheck, sha256_of

from .history import Restored, Version, session_from_json
from .question import sentence_of
from .steps import Edit, Masks, branch, continued, divided, drawn, may_stand

Source: TypeAlias = Path | ArrayImage
Watch: TypeAlias = Callable[[Progress], None]
T = TypeVar("T")


class RunLike(Protocol):
    """What a client's and a local engine's run have in common."""

    @property
    def traces(self) -> tuple[Trace, ...]: ...
    def __iter__(self) -> Iterator[Step]: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...


class EngineLike(Protocol):
    """What :class:`~xflow_core.service.local.LocalEngine` and :class:`~xflow_core.service.client.Client` both do."""

    def upload(self, source: bytes, *, accept_image: bool = False) -> Image: ...
    def check(self, image: Image) -> ImageCheck: ...
    def run(self, image: Image, instruction: str, *, accept_image: bool = False) -> RunLike: ...
    def resume(self, image: Image, trace: Trace) -> RunLike: ...
    def capabilities(self) -> Any: ...
    def health(self) -> Any: ...


# Events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineState:
    """How the engine is: a stage of :class:`~xflow_core.service.local.Progress`, or ``none`` before it was asked for
    and ``failed`` when it cannot be had; ``message`` in words."""

    stage: str = "none"
    message: str = ""


@dataclass(frozen=True)
class ImageRead:
    """The image's bytes are there, and their sha256 is known; no engine was needed."""

    image: int
    sha256: str


@dataclass(frozen=True)
class ImageSent:
    """The engine has the image."""

    image: int
    record: ImageRecord


@dataclass(frozen=True)
class ImageChecked:
    """What the guards say of it."""

    image: int
    check: ImageCheck


@dataclass(frozen=True)
class Began:
    """The engine has taken a run: from here on its steps come."""

    task: int


@dataclass(frozen=True)
class Stepped:
    """An answer of the task has one step more, or begins; ``answer`` counts the task's answers from 0."""

    task: int
    answer: int
    trace: Trace


@dataclass(frozen=True)
class Answered:
    """An answer of the task ended; ``version.trace`` has no result when it was cut off."""

    task: int
    answer: int
    version: Version


@dataclass(frozen=True)
class Ended:
    """Nothing more comes of the task."""

    task: int
    cancelled: bool


@dataclass(frozen=True)
class Failed:
    """The task, or sending the image, ended with an error; ``error`` is one sentence. What was decided stays."""

    image: int
    task: int | None
    error: XFlowError


@dataclass(frozen=True)
class SessionRead:
    """A saved session, or why it cannot be restored."""

    image: int
    restored: Restored | None
    error: XFlowError | None = None


Event: TypeAlias = (
    EngineState | ImageRead | ImageSent | ImageChecked | Began | Stepped | Answered | Ended | Failed | SessionRead
)


# What is asked -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """A sentence; it may ask for several findings."""

    text: str


@dataclass(frozen=True)
class Resume:
    """A trace without a result, to be gone on from."""

    trace: Trace


@dataclass(frozen=True)
class Replay:
    """An edit of a trace, and what follows from it."""

    trace: Trace
    edit: Edit


@dataclass(frozen=True, eq=False)
class Draw:
    """A mask that the user drew, bool ``[H, W]``, for one component, or None for all that it changes."""

    trace: Trace
    component: int | None
    mask: np.ndarray
    revise: bool = True


Part: TypeAlias = Ask | Resume | Replay | Draw


@dataclass(eq=False)
class _Image:
    """The image that is shown: its bytes, read once by whichever thread comes first, and whether an engine has it."""

    number: int
    source: Source
    masks: Masks
    accept: bool
    dropped: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    data: bytes = b""
    sha256: str = ""
    sent: tuple[EngineLike, Image] | None = None

    def read(self) -> None:
        with self.lock:
            if self.sha256:
                return
            if isinstance(self.source, ArrayImage):
                self.data = self.source.to_bytes()
            else:
                try:
                    self.data = self.source.read_bytes()
                except OSError as problem:
                    raise RadiographError(
                        f"{self.source.name} cannot be read: {problem.strerror or problem}; load the image again."
                    ) from None
            self.sha256 = sha256_of(self.data)


class _Left(Exception):
    """The engine was left, or XFlow closed, while it started; whoever left it has said what comes next."""


@dataclass(frozen=True, eq=False)
class _Call:
    """A question to the engine itself."""

    question: Callable[[EngineLike], Any]
    done: Callable[[Any], None]
    failed: Callable[[Exception], None]


@dataclass(frozen=True, eq=False)
class _Called:
    """Its outcome, to be told in the caller's thread."""

    tell: Callable[[], None]


@dataclass(eq=False)
class _Task:
    number: int
    image: _Image
    parts: tuple[Part, ...]
    accept: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    run: RunLike | None = None
    answers: int = 0

    @property
    def dropped(self) -> bool:
        return self.cancelled.is_set() or self.image.dropped.is_set()


class EngineWork:
    """Calls of an engine in a thread of their own. All methods return at once and are for one thread, the caller's.

    Args:
        connect: makes the engine when it is first needed and after it could not be had: a
            :class:`~xflow_core.service.local.LocalEngine` or :class:`~xflow_core.service.client.Client`. It is called
            in the work thread and may take its time; it is given a function that hears how the start goes on. What that
            function raises must end the start (closing does).
        eager: whether an image is sent, and so the engine is made, as soon as it is shown. Asked in the caller's
            thread; where it says no (a server elsewhere), the image is sent with the first question.
    """

    def __init__(self, connect: Callable[[Watch], EngineLike], eager: Callable[[], bool] = lambda: True) -> None:
        self.eager = eager
        self._connect = connect
        self._events: queue.SimpleQueue[Event | _Called] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._image: _Image | None = None
        self._send: _Image | None = None
        self._calls: list[_Call] = []
        self._waiting: _Task | None = None
        self._current: _Task | None = None
        self._engine: EngineLike | None = None
        self._starts = 0
        self._identity: tuple[BundleIdentity, tuple[str, ...]] | None = None
        self._closed = threading.Event()
        self._said = EngineState()
        self._cancels: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name="XFlow work", daemon=True),
            threading.Thread(target=_one_by_one, args=(self._cancels,), name="XFlow cancel", daemon=True),
            threading.Thread(target=_one_by_one, args=(self._reads,), name="XFlow read", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # What the user interface calls.

    def poll(self) -> list[Event]:
        """The events since the last call, in order; what :meth:`call` was given is called in here."""
        events: list[Event] = []
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return events
            if isinstance(event, _Called):
                event.tell()
            else:
                events.append(event)

    def show(self, source: Source | None, masks: Masks, *, accept_image: bool = False) -> int:
        """Read an image, send it and have it checked (see ``eager``); what was asked of the last one is dropped.

        Args:
            source: None for none.
            masks: where the masks of its traces are decoded to.
            accept_image: send it against the refusal of its reading (a colour picture).

        Returns:
            its number, which its events name.
        """
        number = next(self._numbers)
        image = None if source is None else _Image(number, source, masks, accept_image)
        with self._changed:
            if self._image is not None:
                self._image.dropped.set()
            self._stop_current()
            self._image = image
            self._send = image if self.eager() else None
            self._changed.notify_all()
        if image is not None:
            self._reads.put(lambda: self._read(image))
        return number

    def start(self, parts: Sequence[Part], *, accept_image: bool = False) -> int:
        """Do ``parts`` one after another for the image that is shown, in the place of what is being done.

        Args:
            accept_image: against the guards' refusal.

        Returns:
            the task's number, which its events name.

        Raises:
            CallError: no image is shown.
        """
        with self._changed:
            if self._image is None or self._closed.is_set():
                raise CallError("There is no image to ask about; choose a radiograph first.")
            self._stop_current()
            task = _Task(next(self._numbers), self._image, tuple(parts), accept_image)
            self._waiting = task
            self._changed.notify_all()
        return task.number

    def cancel(self) -> None:
        """Stop what is being done for the image before its next step, and drop what waits."""
        with self._changed:
            self._stop_current()

    def restore(self, text: str, instance: str | None = None) -> None:
        """Read a saved session of the image that is shown; no engine is needed.

        Args:
            instance: the image's SOP Instance UID, where it has one; see :func:`.history.session_from_json`.
        """
        image = self._image
        if image is not None:
            self._reads.put(lambda: self._restore(image, text, instance))

    def call(
        self, question: Callable[[EngineLike], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Ask the engine itself something, for instance ``lambda engine: engine.capabilities()``.

        Args:
            question: called in the work thread, with the engine, which is made if need be.
            done, failed: called in :meth:`poll` with what it returned, or raised.
        """
        with self._changed:
            self._calls.append(_Call(question, done, failed))
            self._changed.notify_all()

    def reconnect(self, connect: Callable[[Watch], EngineLike] | None = None) -> None:
        """Leave the engine, and use another one from the next call on; the image is sent to it as to the first."""
        with self._changed:
            if connect is not None:
                self._connect = connect
            self._leave()
            self._send = self._image if self.eager() else None
            self._changed.notify_all()

    def rest(self) -> None:
        """End the engine and have its memory back; the next question, or image, makes it again."""
        with self._changed:
            self._leave()

    def _leave(self) -> None:
        """With the lock held."""
        self._stop_current()
        engine, self._engine, self._identity, self._send = self._engine, None, None, None
        self._starts += 1
        if engine is not None:
            self._cancels.put(lambda: _end(engine))
        self._say(EngineState())

    def close(self) -> None:
        """End the threads and the engine that was made here; returns at once, and they end in the background."""
        with self._changed:
            if self._closed.is_set():
                return
            self._closed.set()
            if self._image is not None:
                self._image.dropped.set()
            self._stop_current(close=True)
            self._image = self._send = None
            engine = self._engine
            self._changed.notify_all()
        if engine is not None:
            self._cancels.put(lambda: _end(engine))
        self._reads.put(None)

    @property
    def closed(self) -> bool:
        """Whether all threads have ended after :meth:`close`."""
        return self._closed.is_set() and not any(thread.is_alive() for thread in self._threads)

    def wait_closed(self, seconds: float) -> bool:
        """Wait for the threads to end, for a caller that may wait; whether they did."""
        for thread in self._threads:
            thread.join(seconds)
        return self.closed

    @property
    def ahead(self) -> int:
        """How many runs of other users the engine makes before this one, as it said when it took it; 0 when unknown."""
        task = self._current
        return int(getattr(task.run, "ahead", 0)) if task is not None and task.run is not None else 0

    def _stop_current(self, close: bool = False) -> None:
        """With the lock held."""
        task, self._waiting = self._waiting, None
        if task is not None:
            task.cancelled.set()
            self._tell(Ended(task.number, True))
        task = self._current
        if task is not None and (close or not task.cancelled.is_set()):
            task.cancelled.set()
            run = task.run
            if run is not None:
                self._cancels.put(lambda: _hang_up(run) if close else _stop(run))

    def _tell(self, event: Event) -> None:
        self._events.put(event)

    # In the read thread.

    def _read(self, image: _Image) -> None:
        if image.dropped.is_set():
            return
        # The work thread meets the same error when it sends the image, and tells it.
        with contextlib.suppress(XFlowError):
            image.read()
            self._tell(ImageRead(image.number, image.sha256))

    def _restore(self, image: _Image, text: str, instance: str | None) -> None:
        try:
            if image.dropped.is_set():
                return
            image.read()
            size = image.source.values.shape if isinstance(image.source, ArrayImage) else None
            restored = session_from_json(text, image.sha256, image.masks.prepare, instance, size)
        # Whatever a damaged text makes it raise is said, and the thread lives on.
        except Exception as problem:  # noqa: BLE001
            self._tell(SessionRead(image.number, None, sentence_for_error(problem)))
        else:
            self._tell(SessionRead(image.number, restored))

    # In the work thread.

    def _work(self) -> None:
        while True:
            with self._changed:
                self._current = None
                while not (self._closed.is_set() or self._calls or self._send or self._waiting):
                    self._changed.wait()
                if self._closed.is_set():
                    break
                call, image, task = self._calls.pop(0) if self._calls else None, None, None
                if call is None:
                    image, self._send = self._send, None
                if call is None and image is None:
                    task, self._waiting = self._waiting, None
                    self._current = task
            if call is not None:
                self._answer_call(call)
            elif image is not None:
                self._present(image)
            elif task is not None:
                self._do(task)
        self._cancels.put(None)

    def _answer_call(self, call: _Call) -> None:
        try:
            found = call.question(self._made_engine())
        # What the question raises is told, and the thread lives on.
        except Exception as problem:  # noqa: BLE001
            error = EngineError("The engine was left while it started.") if isinstance(problem, _Left) else problem
            self._events.put(_Called(lambda: call.failed(error)))
        else:
            self._events.put(_Called(lambda: call.done(found)))

    def _present(self, image: _Image) -> None:
        """Send an image and have it checked."""
        try:
            engine = self._made_engine()
            if image.dropped.is_set():
                return
            sent = self._sent(engine, image)
            check = getattr(engine, "check", None)
            if check is not None and not image.dropped.is_set() and not self._waiting:
                self._tell(ImageChecked(image.number, check(sent)))
        except _Left:
            return
        # One image's failure is told, and the thread lives on.
        except Exception as problem:  # noqa: BLE001
            if not image.dropped.is_set():
                self._tell_failure(image, None, problem)

    def _do(self, task: _Task) -> None:
        try:
            engine = self._made_engine()
            for part in task.parts:
                if task.dropped:
                    break
                if isinstance(part, Ask):
                    self._ask(task, engine, part.text)
                else:
                    self._go_on(task, engine, part)
        # One task's failure is told, and the thread lives on.
        except Exception as problem:  # noqa: BLE001
            if not task.dropped:
                self._tell_failure(task.image, task.number, problem)
                return
        self._tell(Ended(task.number, task.dropped))

    def _tell_failure(self, image: _Image, task: int | None, problem: Exception) -> None:
        if isinstance(problem, ServiceGone):
            self._say(EngineState("lost", str(problem)))
        self._tell(Failed(image.number, task, sentence_for_error(problem)))

    def _ask(self, task: _Task, engine: EngineLike, text: str) -> None:
        image = self._sent(engine, task.image, task.accept)
        if task.dropped:
            return
        try:
            run = engine.run(image, text, accept_image=task.accept)
        except UnsupportedFinding as problem:
            self._ask_supported(task, engine, image, text, problem)
        else:
            self._follow(task, run)

    def _ask_supported(
        self, task: _Task, engine: EngineLike, image: Image, text: str, problem: UnsupportedFinding
    ) -> None:
        """Answer what the bundle can answer of a sentence, and say of the rest that it cannot."""
        identity, findings = self._bundle(engine)
        asked = parse_instruction(text)
        for instruction in asked:
            if task.dropped:
                return
            if instruction.finding in findings:
                self._follow(task, engine.run(image, sentence_of(instruction), accept_image=task.accept))
                continue
            message = str(problem)
            if len(asked) > 1:
                message = f"{identity.name} cannot answer {instruction.finding}; it answers {', '.join(findings)}."
            trace = Trace(image.record, instruction, identity, result=Result("unsupported", message=message))
            self._tell(Answered(task.number, task.answers, Version("", trace).finished()))
            task.answers += 1

    def _go_on(self, task: _Task, engine: EngineLike, part: Resume | Replay | Draw) -> None:
        """From a trace to its end; the trace is told before the engine is asked, so that it can be shown at once."""
        then: tuple[ClickStep | StopStep, ...] = ()
        if isinstance(part, Resume):
            trace = part.trace
        elif isinstance(part, Replay):
            trace, then = branch(part.trace, part.edit), part.edit.then
        else:
            masks = task.image.masks
            alone = part.component
            drawn_masks = divided(part.trace, part.mask, masks) if alone is None else {alone: Mask.of(part.mask)}
            trace = drawn(part.trace, drawn_masks, revise=part.revise)
        trace, then = continued(trace, then)
        self._step(task, trace)
        answered = task.answers
        try:
            image = self._sent(engine, task.image)
            while then and not task.dropped:
                trace, then = continued(self._next_mask(task, engine.resume(image, trace), trace, then[0]), then)
                self._step(task, trace)
            if not task.dropped and trace.result is None:
                self._follow(task, engine.resume(image, trace), trace)
        finally:
            # What was decided stays, whatever came in between.
            if task.answers == answered:
                self._ended(task, trace)

    def _next_mask(self, task: _Task, run: RunLike, trace: Trace, step: ClickStep | StopStep) -> Trace:
        """Until ``step`` may stand: its component has a mask again. What the model would decide next is not wanted."""
        run = self._begun(task, run)
        for _ in run:
            trace = run.traces[-1]
            self._step(task, trace)
            if may_stand(trace.steps, step) or task.dropped:
                run.cancel()
                for _ in run:
                    pass
                return trace
        return run.traces[-1] if run.traces else trace  # a model failed before

    def _begun(self, task: _Task, run: RunLike) -> RunLike:
        """The run, which a cancel from now on finds; one that came before is made now."""
        with self._changed:
            task.run = run
            too_late = task.dropped
        if too_late:
            run.cancel()
        else:
            self._tell(Began(task.number))
            if self._said.stage == "lost":
                self._say(EngineState("ready", "The engine is ready."))
        return run

    def _follow(self, task: _Task, run: RunLike, standing: Trace | None = None) -> None:
        """Tell the steps of a run as they come, and each answer when it has ended.

        Args:
            standing: what the run goes on from, and what is left when it fails before it says anything.
        """
        run = self._begun(task, run)
        first = task.answers
        try:
            for _ in run:
                traces = run.traces
                self._answer(task, first, traces[:-1])
                self._step(task, traces[-1])
        finally:
            # What was decided stays, whatever ended the run.
            traces = run.traces
            if not traces and standing is not None:
                traces = (standing,)
            self._answer(task, first, traces)
            with self._changed:
                task.run = None

    def _step(self, task: _Task, trace: Trace) -> None:
        task.image.masks.prepare(trace)
        self._tell(Stepped(task.number, task.answers, trace))

    def _answer(self, task: _Task, first: int, traces: Sequence[Trace]) -> None:
        """Tell the answers of a run that ended and were not told before."""
        for trace in traces[task.answers - first :]:
            self._ended(task, trace)

    def _ended(self, task: _Task, trace: Trace) -> None:
        task.image.masks.prepare(trace)
        self._tell(Answered(task.number, task.answers, Version("", trace).finished()))
        task.answers += 1

    def _sent(self, engine: EngineLike, image: _Image, accept: bool = False) -> Image:
        """The image as the engine has it; it is sent when this engine has not got it."""
        accept = accept or image.accept
        if image.sent is None or image.sent[0] is not engine or (accept and not image.sent[1].accepted):
            image.read()
            sent = engine.upload(image.data, accept_image=accept)
            image.sent = engine, sent
            self._tell(ImageSent(image.number, sent.record))
        return image.sent[1]

    def _bundle(self, engine: EngineLike) -> tuple[BundleIdentity, tuple[str, ...]]:
        """The bundle that answers, and its findings."""
        if self._identity is None:
            first = engine.capabilities().bundles[0]
            self._identity = first.identity, first.findings
        return self._identity

    def _made_engine(self) -> EngineLike:
        """The engine, made now unless it was before.

        Raises:
            _Left: it was left while it started.
            XFlowError: it cannot be had.
        """
        with self._changed:
            engine, connect, starts = self._engine, self._connect, self._starts
        if engine is not None:
            return engine

        def left() -> bool:
            return self._closed.is_set() or starts != self._starts

        def watch(progress: Progress) -> None:
            if not left():
                self._say(EngineState(progress.stage, progress.message))
            elif progress.stage != "lost":
                raise EngineError("The engine was left while it started.")

        if left():
            raise _Left
        try:
            engine = connect(watch)
            start = getattr(engine, "start", None)
            if start is not None:
                start()
            else:
                engine.health()
        except Exception as problem:
            if left():
                raise _Left from problem
            error = sentence_for_error(problem)
            self._say(EngineState("failed", str(error)))
            raise error from problem
        with self._changed:
            if not left():
                self._engine = engine
        if left():
            _end(engine)
            raise _Left
        self._say(EngineState("ready", "The engine is ready."))
        return engine

    def _say(self, state: EngineState) -> None:
        if state != self._said:
            self._said = state
            self._tell(state)


def sentence_for_error(problem: BaseException) -> XFlowError:
    """Whatever was raised as one of XFlow's own errors, whose message is a sentence that says what to do."""
    if isinstance(problem, XFlowError):
        return problem
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return EngineError("The disk is full; make room and try again. Nothing of the scene was changed.")
    if isinstance(problem, OSError):
        return EngineError(f"The system refused something that XFlow needs: {problem.strerror or problem}; try again.")
    if isinstance(problem, MemoryError):
        return EngineError("There is not enough memory for this image; close other programs and try again.")
    return EngineError(
        f"XFlow made a mistake of its own ({type(problem).__name__}: {problem}); the scene is as it was. Try again, "
        "and report it if it comes back."
    )


def _one_by_one(works: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := works.get()) is not None:
        work()


def _stop(run: RunLike) -> None:
    """Ask the engine to stop a run; one that cannot be asked any more is heard of no longer."""
    try:
        run.cancel()
    except (XFlowError, OSError):
        _hang_up(run)


def _hang_up(run: RunLike) -> None:
    """Hear no more of a run: the thread that waits for its next step finds its end."""
    with contextlib.suppress(XFlowError, OSError):
        run.close()


def _end(engine: EngineLike) -> None:
    """End an engine of this machine, or leave a server."""
    end = getattr(engine, "stop", None) or getattr(engine, "close", None)
    if end is not None:
        with contextlib.suppress(XFlowError, OSError):
            end()
