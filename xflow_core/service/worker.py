"""The thread that computes: one for the device, kept for good, with a queue that is fair to all clients."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from xflow_core.domain.errors import Cancelled, EngineError, RadiographRefused, ServiceError, ValueRefused, XFlowError
from xflow_core.domain.instruction import Instruction
from xflow_core.domain.trace import BundleIdentity, Trace
from xflow_core.policies.protocols import GuardReport
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.workflow.engine import Engine, admitted
from xflow_core.workflow.session import Session, unanswered

from .images import HeldImage, ImageStore
from .protocol import CheckLine, DoneLine, EndLine, ErrorLine, ImageCheck, Line, RunLine, StepLine, TraceLine

log = logging.getLogger("xflow.service")


@dataclass(frozen=True)
class OfferedBundle:
    """A bundle by what its manifest says, and how its models are brought into memory."""

    identity: BundleIdentity
    findings: tuple[str, ...]
    load: Callable[[], Engine] = field(compare=False)


@dataclass(frozen=True)
class Question:
    """A new question about an image, or a trace to be continued."""

    of: Instruction | Trace
    stages: int = 2
    seed: int = 0
    accept_image: bool = False


@dataclass(eq=False)
class Run:
    """The questions of one request, and where their answers go; ``emit`` is called from the worker's thread.

    Without a question it is a check: what speaks against the image.
    """

    client: str
    bundle: OfferedBundle
    image: HeldImage
    questions: tuple[Question, ...]
    emit: Callable[[Line], None]
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    cancelled: threading.Event = field(default_factory=threading.Event)
    playing: Iterator[None] | None = None


class Worker:
    """Makes the steps of all runs, one at a time, in one thread.

    The clients take turns, a turn is one step, and a client's own runs follow one another: a client with many runs or
    with a slow one holds nobody up for longer than a step. The thread stays the same for good, since a GPU's libraries
    keep their plans by thread.

    Args:
        bundles: what is offered; the first is loaded at the start.
        images: where runs borrow their images from; they go back when a run ends.
        max_waiting: runs at one time.
        idle_seconds: without a run for so long, the models leave the memory until the next one; None for never.
        on_failure: called from the thread when the first bundle cannot be loaded; nothing can be answered then.
    """

    def __init__(
        self,
        bundles: tuple[OfferedBundle, ...],
        images: ImageStore,
        *,
        max_waiting: int = 1000,
        idle_seconds: float | None = None,
        on_failure: Callable[[XFlowError], None] = lambda problem: None,
    ) -> None:
        self.bundles = bundles
        self.images = images
        self.max_waiting = max_waiting
        self.idle_seconds = idle_seconds
        self.on_failure = on_failure
        self.state = "loading"
        self.doing = f"loading the bundle {bundles[0].identity.name}"
        self.device = "not known yet"
        self.memory_bytes: int | None = None
        self.encoder_passes = 0
        self.runs_done = 0
        self.steps_made = 0
        self._engines: dict[str, Engine] = {}
        self._changed = threading.Condition()
        self._turns: deque[str] = deque()
        self._runs: dict[str, deque[Run]] = {}
        self._unload = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="xflow-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the step that is being made; what waits is told."""
        with self._changed:
            self._stopping = True
            self.state, self.doing = "stopping", "stopping"
            self._changed.notify_all()
        self._thread.join(timeout)

    def submit(self, run: Run) -> None:
        """Take a run; its first line is emitted at once, from the caller's thread.

        Raises:
            ServiceError: ``busy``: too many wait already, or the server is stopping.
        """
        with self._changed:
            ahead = self.waiting
            if self._stopping or ahead >= self.max_waiting:
                what = "is stopping" if self._stopping else f"has {ahead} runs waiting already"
                raise ServiceError(f"The server {what}; try again in a moment.", "busy")
            run.emit(RunLine(run.id, ahead))
            if run.client not in self._runs:
                self._runs[run.client] = deque()
                self._turns.append(run.client)
            self._runs[run.client].append(run)
            self._changed.notify_all()

    def cancel(self, run_id: str) -> bool:
        """Stop a run before its next step; false when no such run is waiting or running."""
        with self._changed:
            run = next((run for runs in self._runs.values() for run in runs if run.id == run_id), None)
            if run is None:
                return False
            run.cancelled.set()
            if run.playing is not None:
                return True
            self._remove(run)
        self._finish(run, DoneLine(cancelled=True))
        return True

    def unload(self) -> None:
        """Drop the models from memory as soon as no run needs them; the next run brings them back."""
        with self._changed:
            self._unload = True
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Runs that wait or run."""
        with self._changed:
            return sum(map(len, self._runs.values()))

    def loaded(self, bundle: OfferedBundle) -> bool:
        return bundle.identity.sha256 in self._engines

    # In the thread.

    def _work(self) -> None:
        if self._begin():
            while not self._stopping:
                run = self._take()
                if run is not None:
                    self._advance(run)
                elif not self._stopping:
                    self._drop_models()
        with self._changed:
            left = [run for runs in self._runs.values() for run in runs]
            self._runs.clear()
            self._turns.clear()
        for run in left:
            self._finish(run, ErrorLine("The server was stopped.", "busy"))

    def _begin(self) -> bool:
        """Load the first bundle; false when it cannot be."""
        problem: XFlowError | None = None
        try:
            self._engine(self.bundles[0])
        except XFlowError as said:
            problem = said
        # A model's library raises what it likes.
        except Exception as raised:  # noqa: BLE001
            problem = EngineError(f"The bundle {self.bundles[0].identity.name!r} cannot be loaded: {raised!r}.")
        with self._changed:
            if problem is not None:
                self._stopping = True
            self.state = self.doing = "stopping" if self._stopping else "ready"
        if problem is not None:
            self.on_failure(problem)
        return problem is None

    def _take(self) -> Run | None:
        """The next run in turn, its client taken from the turns; None when the models are to leave the memory, or the
        worker stops."""
        with self._changed:
            while not self._stopping:
                if self._turns:
                    run = self._runs[self._turns.popleft()][0]
                    run.playing = run.playing or self._play(run)
                    return run
                if self._unload:
                    self._unload = False
                    return None
                if not self._changed.wait(self.idle_seconds if self._engines else None):
                    return None
        return None

    def _advance(self, run: Run) -> None:
        last = self._turn(run)
        self.images.measured(run.image)
        with self._changed:
            if last is None:
                self._turns.append(run.client)
                return
            self._remove(run, its_turn=True)
        self._finish(run, last)

    def _remove(self, run: Run, *, its_turn: bool = False) -> None:
        runs = self._runs[run.client]
        runs.remove(run)
        if not runs:
            del self._runs[run.client]
            if not its_turn:
                self._turns.remove(run.client)
        elif its_turn:
            self._turns.append(run.client)

    def _turn(self, run: Run) -> Line | None:
        """One step of the run; its last line when there is no other."""
        assert run.playing is not None
        try:
            next(run.playing)
        except StopIteration:
            return DoneLine(cancelled=run.cancelled.is_set())
        except Cancelled:
            return DoneLine(cancelled=True)
        except XFlowError as problem:
            return ErrorLine(str(problem), "value" if isinstance(problem, ValueRefused) else "internal")
        # Whatever goes wrong in one run ends that run alone.
        except Exception as problem:  # noqa: BLE001
            log.error("a run failed: %s", where(problem))
            return ErrorLine("The server failed in this run; its log says where.", "internal")
        return None

    def _finish(self, run: Run, last: Line) -> None:
        run.playing = None
        self.images.give_back(run.image)
        with self._changed:
            self.runs_done += 1
        run.emit(last)

    def _play(self, run: Run) -> Iterator[None]:
        if not run.questions:
            run.emit(CheckLine(self._check(run.image, self._engine(run.bundle))))
        for question in run.questions:
            if run.cancelled.is_set():
                raise Cancelled("Cancelled before the next question.")
            yield from self._answer(run, question)

    def _answer(self, run: Run, question: Question) -> Iterator[None]:
        asked = question.of
        instruction = asked if isinstance(asked, Instruction) else asked.instruction
        spent = {"read": run.image.read_seconds}
        try:
            engine = self._engine(run.bundle)
            start = time.perf_counter()
            image = self._admit(run.image, engine, question.accept_image or isinstance(asked, Trace))
            spent["read"] += time.perf_counter() - start
        except XFlowError as problem:
            status = "refused" if isinstance(problem, RadiographRefused) else "failed"
            bare = EncodedRadiograph(run.image.radiograph)
            without = unanswered(run.bundle.identity, bare, instruction, status, str(problem))
            spent["total"] = spent["read"]
            run.emit(TraceLine(without))
            run.emit(EndLine(without.result, spent))
            return
        yield
        if isinstance(asked, Trace):
            session = Session.resume(engine, image, asked)
        else:
            session = Session(engine, image, asked, stages=question.stages, seed=question.seed)
        run.emit(TraceLine(session.trace()))
        trace: Trace | None = None
        try:
            steps = session.run()
            while True:
                if run.cancelled.is_set():
                    session.cancel()
                before = len(session.steps)
                passes = image.passes
                try:
                    step = next(steps, None)
                finally:
                    self.encoder_passes += image.passes - passes
                if step is None:
                    break
                self.steps_made += 1
                run.emit(StepLine(before, step))
                yield
        except Cancelled:
            trace = session.trace(seconds=spent)
            run.emit(EndLine(None, trace.seconds, trace.memory_layout))
            raise
        except XFlowError as problem:
            trace = session.trace(failure=problem, seconds=spent)
        trace = trace or session.trace(seconds=spent)
        run.emit(EndLine(trace.result, trace.seconds, trace.memory_layout))

    def _admit(self, held: HeldImage, engine: Engine, accept: bool) -> EncodedRadiograph:
        if held.refusal is not None and not accept:
            raise RadiographRefused(held.refusal)
        return admitted(*self._inspected(held, engine), accept_image=accept)

    def _check(self, held: HeldImage, engine: Engine) -> ImageCheck:
        image, report = self._inspected(held, engine)
        warnings = tuple(dict.fromkeys((*image.radiograph.record.warnings, *report.warnings)))
        return ImageCheck(warnings, held.refusal or " ".join(report.refusals) or None)

    def _inspected(self, held: HeldImage, engine: Engine) -> tuple[EncodedRadiograph, GuardReport]:
        """The image as the engine encodes it and what its guards say, both computed once."""
        name = engine.identity.sha256
        if name not in held.views:
            image = EncodedRadiograph(held.radiograph)
            try:
                held.views[name] = image, engine.inspect(image)
            finally:
                self.encoder_passes += image.passes
        return held.views[name]

    def _engine(self, bundle: OfferedBundle) -> Engine:
        name = bundle.identity.sha256
        if name not in self._engines:
            self._engines[name] = bundle.load()
            self.device, self.memory_bytes = _device()
        return self._engines[name]

    def _drop_models(self) -> None:
        if not self._engines:
            return
        names = set(self._engines)
        self._engines.clear()
        self.images.drop_views(names)
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
        log.info("the models left the memory")


def where(problem: BaseException) -> str:
    """What kind of error, and in which line: never its message, which may hold what a log must not."""
    frame = problem.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = "" if frame is None else f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
    return f"{type(problem).__name__}{place}"


def _device() -> tuple[str, int | None]:
    """Where the models lie, and that device's memory in bytes."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.memory_allocated():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return f"cuda {properties.name}", int(properties.total_memory)
    try:
        return "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no such call, another system may lack the names
        return "cpu", None
