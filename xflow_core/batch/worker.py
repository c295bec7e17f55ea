"""A worker: its own process, one engine, one image at a time, or several in threads (``Settings.together``).

It reads JSON lines on stdin, first the :class:`~.job.Settings`, then tasks, and answers each on stdout:

    {"loaded": true}                        once, when the engine is ready: a death before it is no image's fault
    {"answered": {..}}                      the rows of a task; of several in work, whichever is done
    {"stop": sentence, "exit_status": n}    the bundle cannot be used here; no task will fare better

It ends when stdin does, so none outlives the process that started it by more than the image in work, and it ends itself
when an image takes longer than ``Settings.image_seconds``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO

from xflow_core.bundles.loading import LAYOUT_VARIABLE, load_engine
from xflow_core.bundles.manifest import find_bundle
from xflow_core.domain.errors import BundleError, XFlowError
from xflow_core.workflow.engine import Engine

from .image import answer_image
from .job import SLOT_VARIABLE, Settings, Task


class _LazyEngine:
    """The engine, loaded when the first image needs it: a resumed run may need none."""

    def __init__(self, settings: Settings, out: TextIO) -> None:
        self.settings = settings
        self.out = out
        self.engine: Engine | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Engine:
        with self._lock:
            return self._loaded()

    def _loaded(self) -> Engine:
        if self.engine is None:
            found = find_bundle(self.settings.bundle).identity
            if found != self.settings.identity:
                raise BundleError(
                    f"The bundle {self.settings.bundle!r} is another one here ({found.name} {found.version}) than "
                    "where the batch was started; install the same."
                )
            _choose_gpu(self.settings.device)
            if self.settings.layout is not None:
                # On a cluster the caller's environment is not the worker's.
                os.environ[LAYOUT_VARIABLE] = self.settings.layout
            engine = load_engine(self.settings.bundle, self.settings.device)
            if self.settings.together > 1:
                # The images in work share the model's passes; their components wait for their turn.
                engine = replace(engine, components_together=1)
            self.engine = engine
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self.settings.threads)
            # What a library says of an image may quote its header: from here on it goes nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            _say(self.out, {"loaded": True})
        return self.engine


def main() -> None:
    """Serve until stdin ends."""
    # Stopping is for the process that started this one: it lets the image in work come to its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # What a library prints must not come between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    settings = Settings.from_json(sys.stdin.readline())
    engine = _LazyEngine(settings, out)
    clock = _Clock(settings.image_seconds)

    def answer(line: str) -> bool:
        try:
            with clock.running():
                answered = answer_image(Task.from_json(line), settings, engine)
            _say(out, {"answered": json.loads(answered.to_json())})
            return True
        except XFlowError as problem:
            _say(out, {"stop": str(problem), "exit_status": problem.exit_status})
            return False
        except BrokenPipeError:
            # Whoever asked is gone; nothing more may be written, also not at the interpreter's end.
            os._exit(0)

    if settings.together == 1:
        for line in sys.stdin:
            if not answer(line):
                return
        return
    # Whoever asks hands over no more lines than are to be in work, and ends stdin when it reads "stop".
    with ThreadPoolExecutor(settings.together) as pool:
        for line in sys.stdin:
            pool.submit(answer, line).add_done_callback(_end_if_failed)


def _end_if_failed(done: Future[bool]) -> None:
    """An error that is nobody's answer ends the process, as it does without threads; whoever asked sees that."""
    if done.exception() is not None:
        os._exit(1)


class _Clock:
    """Ends the process when one of the images in work takes longer than allowed, also when a library's own code hangs
    and holds the interpreter's lock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._begun: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        now = time.monotonic()
        with self._lock:
            self._begun.append(now)
            self._set()
        try:
            yield
        finally:
            with self._lock:
                self._begun.remove(now)
                self._set()

    def _set(self) -> None:
        if self._begun:
            left = self._seconds - (time.monotonic() - min(self._begun))
            faulthandler.dump_traceback_later(max(left, 0.001), exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()


_SAYING = threading.Lock()


def _say(out: TextIO, message: dict[str, Any]) -> None:
    with _SAYING:
        out.write(json.dumps(message) + "\n")
        out.flush()


def _choose_gpu(device: str) -> None:
    """Spread the workers of one machine over its GPUs."""
    if device == "cpu":
        return
    try:
        import torch
    except ModuleNotFoundError:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get(SLOT_VARIABLE, "0")) % torch.cuda.device_count())


if __name__ == "__main__":
    main()
