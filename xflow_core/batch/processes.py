"""Workers on this machine: processes of a fresh interpreter each, started anew when one dies."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import IO

from xflow_core.domain.errors import EngineError

from .job import SLOT_VARIABLE, Answered, Settings, Task, answer_without_trace

MAX_FAILED_STARTS = 3
GRACE_SECONDS = 5.0
"""How long a worker without a task may take to end."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerProcess:
    """One worker and the process behind it, which is started at the first task and again after it died.

    Not a ``multiprocessing`` process: that one imports the caller's main module again, which on a Ray cluster is Ray's.
    """

    def __init__(self, settings: Settings, slot: int = 0) -> None:
        self.settings = settings
        self.slot = slot
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[bytes] | None = None
        self._loaded = False
        self._failed_starts = 0
        self._killed = False

    def answer(self, task: Task) -> Answered:
        """Hand over a task and wait for its rows. A process that dies or hangs at it is a row with a reason.

        Raises:
            EngineError: no worker can be started, or the bundle cannot be used here; ``exit_status`` is the cause's.
        """
        while True:
            start = time.monotonic()
            answered, code = self._ask(task)
            if answered is not None:
                return answered
            if self._killed:
                raise EngineError("The worker was stopped.")
            took_too_long = time.monotonic() - start >= self.settings.image_seconds
            if self._loaded or took_too_long:
                self.close()
                reason = _too_long(self.settings.image_seconds) if took_too_long else _died_of(code)
                return answer_without_trace(task, self.settings, "worker", reason, EngineError.exit_status)
            last_words = self._last_words()
            self.close()
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise EngineError(
                    f"A worker cannot be started ({_ended(code)}{last_words}); if memory is short, take fewer."
                )

    def answer_many(self, next_task: Callable[[], Task | None]) -> Iterator[Answered]:
        """Answer tasks as they are given, ``Settings.together`` at a time, each in the order in which it is done.

        When the process dies or hangs with several images in work, it is not known at which: each of them is answered
        once more alone, so that only the one that ends the process again is a row with a reason.

        Raises:
            EngineError: see :meth:`answer`.
        """
        task = next_task()
        # Until the engine is loaded, what goes wrong is told apart by `answer`.
        while task is not None and (self.settings.together == 1 or not self._loaded):
            yield self.answer(task)
            task = next_task()
        in_work: dict[int, Task] = {}
        while task is not None or in_work:
            if task is not None:
                in_work[task.position] = task
                self._hand_over(task)
            if task is None or len(in_work) == self.settings.together:
                answered, _ = self._heard()
                if answered is not None:
                    del in_work[answered.position]
                    yield answered
                elif self._killed:
                    raise EngineError("The worker was stopped.")
                else:
                    self.close()
                    for lost in in_work.values():
                        yield self.answer(lost)
                    in_work.clear()
            task = next_task() if len(in_work) < self.settings.together else None

    def close(self) -> None:
        """Let the process end, or end it."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
        if self._stderr is not None:
            self._stderr.close()
        self._process, self._stderr, self._loaded = None, None, False

    def kill(self) -> None:
        """End the process at once, for good; may be called from another thread, whose :meth:`answer` then raises."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, task: Task) -> tuple[Answered | None, int]:
        """The rows, or None and how the process ended."""
        self._hand_over(task)
        return self._heard()

    def _hand_over(self, task: Task) -> None:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died; the end of its output says so
            self._process.stdin.write(task.to_json() + "\n")
            self._process.stdin.flush()

    def _heard(self) -> tuple[Answered | None, int]:
        """The rows of the next image that is done, or None and how the process ended."""
        process = self._process
        assert process is not None and process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # it died while it wrote
            message = json.loads(line)
            if "stop" in message:
                problem = EngineError(message["stop"])
                problem.exit_status = message["exit_status"]
                raise problem
            if "answered" in message:
                self._failed_starts = 0
                data = message["answered"]
                return Answered(data["position"], tuple(data["rows"]), data["exit_status"]), 0
            self._loaded = True
        return None, process.wait()

    def _start(self) -> None:
        threads = str(self.settings.threads)
        environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, threads), SLOT_VARIABLE: str(self.slot)}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            # -P: a file of the current folder must not be taken for a module.
            [sys.executable, "-P", "-m", "xflow_core.batch.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            encoding="utf-8",
            # A terminal's ctrl-C goes to its whole process group; the workers end when they are told to.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(self.settings.to_json() + "\n")
            self._process.stdin.flush()

    def _last_words(self) -> str:
        """The last line that a process wrote before any image was read, so that it holds nothing of one."""
        assert self._stderr is not None
        self._stderr.seek(0)
        lines = self._stderr.read()[-2000:].decode(errors="replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; {words}" if words else ""


def run_on_this_machine(
    settings: Settings, tasks: Iterator[Task], workers: int, stopping: Callable[[], bool]
) -> Generator[Answered, None, None]:
    """Answer the tasks, each in the order in which it is done; by ``workers`` workers, each with
    ``settings.together`` images at a time.

    Args:
        stopping: asked before a worker takes another task; when true, the images in work are brought to their end.

    Raises:
        EngineError: see :meth:`WorkerProcess.answer`; the images in work are brought to their end before.
    """
    waiting: queue.Queue[Answered | BaseException | None] = queue.Queue(maxsize=1000)
    lock = threading.Lock()
    failed = threading.Event()
    pool = [WorkerProcess(settings, slot) for slot in range(workers)]

    def next_task() -> Task | None:
        with lock:
            return None if failed.is_set() or stopping() else next(tasks, None)

    def serve(worker: WorkerProcess) -> None:
        try:
            for answered in worker.answer_many(next_task):
                waiting.put(answered)
        except BaseException as problem:  # noqa: BLE001  raised again by whoever waits for the answers
            failed.set()
            waiting.put(problem)
        finally:
            worker.close()
            waiting.put(None)

    for worker in pool:
        threading.Thread(target=serve, args=(worker,), daemon=True).start()
    problem: BaseException | None = None
    ended = 0
    try:
        while ended < workers:
            # With a time limit, since on Windows a wait without one cannot be interrupted.
            try:
                made = waiting.get(timeout=1.0)
            except queue.Empty:
                continue
            if made is None:
                ended += 1
            elif isinstance(made, Answered):
                yield made
            else:
                problem = problem or made
    finally:
        failed.set()
        if ended < workers:
            for worker in pool:
                worker.kill()
    if problem is not None:
        raise problem


def _died_of(code: int) -> str:
    return f"The worker was killed or crashed at this image ({_ended(code)}); --resume tries it again."


def _too_long(seconds: float) -> str:
    return f"The worker was still at this image after {seconds:g} s and was ended; --resume tries it again."


def _ended(code: int) -> str:
    """How a process ended, in words; negative codes are signals (subprocess)."""
    if code == -9:
        return "signal 9, as the system sends when memory is short"
    return f"signal {-code}" if code < 0 else f"exit status {code}"
