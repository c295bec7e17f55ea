"""An engine on this machine: ``xflow serve`` of any Python environment as a child that is looked after.

    with LocalEngine("/opt/xflow/bin/python") as engine:
        image = engine.upload(path.read_bytes())
        run = engine.run(image, "Segment the effusion in the left lung")
        for step in run: ...
        export(run.trace)

The caller's Python needs no torch; the child's brings its own. What is looked after:

- **Ready.** :meth:`LocalEngine.start` returns when the engine answers, and tells how far it is until then.
- **Gone.** A thread waits for the child's end, so that it is noticed at once; a run notices by its broken or silent
  stream.
- **Back.** A run that lost its engine starts it again, sends its image again and goes on after the steps that it has: a
  session is its trace, so nothing that was decided is lost or made twice. An engine that is lost again and again at the
  same place is given up with a sentence.
- **Gone with us.** The child never outlives this process; see :mod:`.child`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from xflow_core.domain.errors import EngineError, ServiceError, ServiceGone
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import Mask, Step, Trace

from .child import BoundedLog, EngineProcess, check_protocols, check_python, default_log
from .client import Client, Image, Run
from .protocol import ArrayImage, Capabilities, Health, ImageCheck

T = TypeVar("T")

_POLL = 0.1
_MOMENT = 1.0
"""From a broken stream to the known end of a process that was killed."""

_LAST_MOMENTS = 10.0
"""For a process to end that says it is stopping, and for one that seems deaf to say that it is well."""

_UNREACHED = 50
"""So often a new engine that listens may not be reached."""

_PATIENCE = 3
"""So often an engine may be lost at the same place."""


@dataclass(frozen=True)
class Progress:
    """How an engine is.

    Attributes:
        stage: ``checking``, ``starting``, ``loading``, ``ready`` or ``lost``.
        message: the same in words.
        seconds: since its start began.
    """

    stage: str
    message: str
    seconds: float


Watcher = Callable[[Progress], None]


class LocalEngine:
    """``xflow serve`` of a Python environment on this machine, with the calls of a :class:`~.client.Client`.

    A call that finds the engine gone starts it again and repeats itself. An engine that ends while nothing is asked of
    it is started again by the next call, and ``watch`` hears of it at once. Usable from several threads.
    """

    def __init__(
        self,
        python: str | Path | None = None,
        *,
        bundles: Sequence[str] = (),
        device: str = "auto",
        port: int = 0,
        log: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        ready_within: float = 300.0,
        watch: Watcher | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """
        Args:
            python: the program of the environment that has the engine; this process's own by default.
            bundles: the bundles to offer, by name or folder; the first answers when a call names none.
            port: a free one by default.
            log: :func:`default_log` by default.
            environment: the child's variables; :func:`.child.engine_environment` by default.
            ready_within: seconds for a start, models and all.
            watch: hears how a start goes on, every tenth of a second, in the thread that waits for it; and of an engine
                that is lost, in a thread of its own. What it raises during a start ends that start and the child.
            arguments: further ones of ``xflow serve``.
        """
        self.python = str(python or sys.executable)
        self.log_path = Path(log) if log is not None else default_log()
        self.ready_within = ready_within
        self.starts = 0
        self._environment = environment
        self._watch = watch
        self._arguments = ["--port", str(port), "--device", device]
        for bundle in bundles:
            self._arguments += ["--bundle", bundle]
        self._arguments += arguments
        self._lock = threading.RLock()
        self._log: BoundedLog | None = None
        self._process: EngineProcess | None = None
        self._client: Client | None = None
        self._address = ("", "")
        self._checked = False
        self._wanted = False

    def __enter__(self) -> LocalEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Client:
        """A client of the engine, which is started unless it runs; returns when it is ready for questions.

        The client is of this engine alone: it does not survive it, as the calls of this class do.

        Raises:
            CallError: the environment cannot have an engine: no such Python, XFlow not installed there.
            EngineError: the engine ended, did not get ready in time, cannot be reached, or is of another version.
        """
        with self._lock:
            self._wanted = True
            return self._running()

    def stop(self) -> None:
        """End the engine, also while it starts; what is running there is lost. A later :meth:`start` brings it back."""
        self._wanted = False
        process = self._process
        if process is not None:
            process.stop()  # before the lock, which a thread may hold while it waits for this very process
        with self._lock:
            if self._process is not None:
                self._process.stop()
            if self._client is not None:
                self._client.close()
            if self._log is not None:
                self._log.close()
            self._client = self._process = self._log = None

    def address(self) -> tuple[str, str]:
        """The running engine's URL and token, for further clients of it."""
        with self._lock:
            self._client_now()
            return self._address

    @property
    def pid(self) -> int | None:
        """The engine's process, None when there is none."""
        process = self._process
        return None if process is None or process.ended.is_set() else process.pid

    @property
    def running(self) -> bool:
        return self.pid is not None

    # What a client does.

    def health(self) -> Health:
        return self.asked(lambda client: client.health())

    def capabilities(self) -> Capabilities:
        return self.asked(lambda client: client.capabilities())

    def upload(self, source: bytes | Path | ArrayImage, *, accept_image: bool = False) -> Image:
        """Send an image, and keep it: it is sent again to an engine that does not have it (any more)."""
        return self.asked(lambda client: client.upload(source, accept_image=accept_image))

    def check(self, image: Image, *, bundle: str | None = None) -> ImageCheck:
        """What speaks against the image, before anything is asked; see :meth:`.client.Client.check`."""
        return self.asked(lambda client: client.check(image, bundle=bundle))

    def forget(self, image: Image) -> bool:
        return self.asked(lambda client: client.forget(image))

    def unload(self) -> None:
        self.asked(lambda client: client.unload())

    def run(
        self,
        image: Image,
        instruction: str,
        *,
        bundle: str | None = None,
        stages: int = 2,
        seed: int = 0,
        accept_image: bool = False,
    ) -> LocalRun:
        """Ask; see :meth:`.client.Client.run`."""

        def asked(client: Client) -> Run:
            return client.run(image, instruction, bundle=bundle, stages=stages, seed=seed, accept_image=accept_image)

        return LocalRun(self, image, asked, instruction)

    def resume(self, image: Image, trace: Trace) -> LocalRun:
        """Go on where a trace ends."""
        return LocalRun(self, image, lambda client: client.resume(image, trace))

    def replace(self, image: Image, trace: Trace, k: int, step: Step) -> LocalRun:
        """The user's step ``k``, and what follows from it."""
        return LocalRun(self, image, lambda client: client.replace(image, trace, k, step))

    def continue_from(
        self, image: Image, trace: Trace, component: int, mask: np.ndarray | Mask, *, revise: bool = True
    ) -> LocalRun:
        """The user's mask of a component, and what follows from it."""
        return LocalRun(self, image, lambda client: client.continue_from(image, trace, component, mask, revise=revise))

    # How it is kept alive.

    def asked(self, call: Callable[[Client], T]) -> T:
        """What ``call`` returns for a client of the running engine; it is repeated with another one if that is lost.

        Raises:
            EngineError: the engine was not started, or cannot be started again.
            ServiceGone: it was lost each time.
        """
        for attempt in range(_PATIENCE):
            client = self._client_now()
            try:
                return call(client)
            except ServiceGone:
                self.lost(client)
                if attempt == _PATIENCE - 1:
                    raise
        raise AssertionError("unreachable")

    def _client_now(self) -> Client:
        with self._lock:
            if not self._wanted:
                raise EngineError("The engine was not started, or was stopped; start it first.")
            return self._running()

    def _running(self) -> Client:
        if self._client is None or self._process is None or self._process.ended.is_set():
            if self._client is not None:
                self._client.close()
            self._client = self._begin()
        return self._client

    def lost(self, client: Client) -> None:
        """Called after ``client`` found the engine gone: makes sure that it is, or that it is well."""
        with self._lock:
            process = self._process
            if client is not self._client or process is None:
                return  # another thread's call was the first to notice
            # The sockets of a process that was killed break a moment before its end is known.
            if process.ended.wait(_MOMENT):
                return
            try:
                if client.health(_LAST_MOMENTS).state != "stopping":
                    return
                process.ended.wait(_LAST_MOMENTS)
            except ServiceGone:
                pass
            process.kill()  # alive and deaf

    def _begin(self) -> Client:
        """Start a child and return a client of it, once it is ready."""
        began = time.monotonic()
        deadline = began + self.ready_within

        def tell(stage: str, message: str) -> None:
            if not self._wanted:
                raise EngineError("The engine was stopped while it started.")
            if self._watch is not None:
                self._watch(Progress(stage, message, time.monotonic() - began))

        if not self._checked:
            tell("checking", f"Looking for XFlow in {self.python}.")
            check_python(self.python, self._environment)
            self._checked = True
        if self._log is None:
            self._log = BoundedLog(self.log_path)

        def ended(process: EngineProcess) -> None:
            if self._wanted and self._process is process and self._client is not None and self._watch is not None:
                self._watch(Progress("lost", process.epitaph(), time.monotonic() - began))

        process = EngineProcess(self.python, self._arguments, self._log, self._environment, ended)
        client: Client | None = None
        try:
            said = process.await_address(deadline, lambda: tell("starting", "Starting the engine."))
            address = said.url, _token_in(said.token_file)
            client = Client(*address)
            self._await_ready(process, client, deadline, tell)
        except BaseException:
            if client is not None:
                client.close()
            process.stop(grace=1.0)
            raise
        self._process, self._address = process, address
        self.starts += 1
        tell("ready", "The engine is ready.")
        return client

    def _await_ready(
        self, process: EngineProcess, client: Client, deadline: float, tell: Callable[[str, str], None]
    ) -> None:
        unreached = 0
        while True:
            if process.ended.is_set():
                raise EngineError(process.epitaph())
            try:
                health = client.health()
            except ServiceGone:
                unreached += 1
                assert process.listening is not None
                if unreached > _UNREACHED and not process.ended.is_set():
                    raise EngineError(
                        f"The engine listens on {process.listening.host}:{process.listening.port}, but this program "
                        "cannot reach it there; let the firewall or proxy of this machine pass local connections."
                    ) from None
                tell("loading", "Waiting for the engine to answer.")
            else:
                unreached = 0
                check_protocols(health.protocols)
                if health.ready:
                    return
                tell("loading", health.doing)
            if time.monotonic() > deadline:
                raise EngineError(
                    f"The engine was not ready after {self.ready_within:.0f} s; its log is {process.log.path}."
                )
            process.ended.wait(_POLL)


class LocalRun:
    """A run that outlives its engine; iterate it for the steps, each the moment it is made, and each once.

    As a client's :class:`~.client.Run` has them, ``trace`` is the answer that is being made and ``traces`` are all of
    them so far, valid at every moment.
    """

    def __init__(
        self, engine: LocalEngine, image: Image, begin: Callable[[Client], Run], instruction: str | None = None
    ) -> None:
        self._engine = engine
        self._image = image
        self._begin = begin
        self._asked = () if instruction is None else parse_instruction(instruction)
        self._complete: tuple[Trace, ...] = ()
        self._standing: tuple[Trace, ...] = ()
        self._swap = threading.Lock()
        self._cancelled = False
        self._client, self._run = self._started()
        self._steps = self._surviving()

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def __next__(self) -> Step:
        return next(self._steps)

    @property
    def traces(self) -> tuple[Trace, ...]:
        return (*self._complete, *(self._run.traces or self._standing))

    @property
    def trace(self) -> Trace | None:
        return self.traces[-1] if self.traces else None

    @property
    def cancelled(self) -> bool:
        return self._cancelled or self._run.cancelled

    def cancel(self) -> None:
        """Stop before the next step; from any thread, also while the engine is gone."""
        with self._swap:
            self._cancelled = True
            with contextlib.suppress(ServiceGone):
                self._run.cancel()

    def finish(self) -> tuple[Trace, ...]:
        """Wait for the end; the traces."""
        for _ in self:
            pass
        return self.traces

    def close(self) -> None:
        """Hear no more of it, from any thread; the engine cancels it."""
        with self._swap:
            self._cancelled = True
            self._run.close()
        with contextlib.suppress(ValueError):  # another thread is iterating, and finds the end
            self._steps.close()

    def _surviving(self) -> Generator[Step, None, None]:
        losses, stood = 0, -1
        while True:
            try:
                yield from self._run
            except ServiceError as problem:
                if not (isinstance(problem, ServiceGone) or problem.kind == "busy"):
                    raise  # busy: the server is being stopped by somebody else
                if self._cancelled:
                    return
                self._engine.lost(self._client)
                stands = sum(len(trace.steps) for trace in self.traces)
                losses, stood = (losses + 1 if stands == stood else 1), stands
                if losses == _PATIENCE:
                    raise EngineError(
                        f"The engine was lost {losses} times at the same place, after {stands} steps; it was given up. "
                        f"What was decided until then stands. Its log is {self._engine.log_path}."
                    ) from None
            complete, standing = self._rest()
            if self.cancelled or (complete and standing is None):
                return
            if standing is not None:
                self._begin = partial(_resume, self._image, standing)
            client, run = self._started()
            with self._swap:
                self._client, self._run = client, run
                self._complete, self._standing = complete, () if standing is None else (standing,)
                if self._cancelled:
                    with contextlib.suppress(ServiceGone):
                        run.cancel()

    def _rest(self) -> tuple[tuple[Trace, ...], Trace | None]:
        """The answers that are complete, and the trace to go on from: None before the first and after the last."""
        traces = self.traces
        if not traces:
            return (), None
        last = traces[-1]
        if last.result is None:
            return traces[:-1], last
        if len(traces) >= len(self._asked):
            return traces, None
        if last.result.status == "refused":
            # Nothing was computed, and a trace would be continued against the guards: the sentence is asked anew.
            return (), None
        # Of a sentence about several findings, the next: a trace without a step yet.
        asked = self._asked[len(traces)]
        return traces, replace(last, instruction=asked, steps=(), result=None, branch_of=None, seconds={})

    def _started(self) -> tuple[Client, Run]:
        return self._engine.asked(lambda client: (client, self._begin(client)))


def _resume(image: Image, trace: Trace, client: Client) -> Run:
    return client.resume(image, trace)


def _token_in(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as problem:
        raise EngineError(f"The engine's token in {path} cannot be read: {problem.strerror or problem}.") from None
