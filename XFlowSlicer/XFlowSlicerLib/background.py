"""Work that takes longer than a user interface may wait: one thread, and what comes of it by polling.

    background = Background()
    background.start(lambda: write(files), done=show, failed=tell)      # work runs in the thread
    background.poll()                                                   # a timer; done and failed are called in here

The work must touch neither MRML nor Qt. The thread is a daemon: it never keeps the application from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

_Work = tuple[Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]]


class Background:
    """One worker thread, made at the first need; works follow one another."""

    def __init__(self, name: str = "XFlow background") -> None:
        self._name = name
        self._works: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], bool]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unfinished = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether something was started whose end has not been polled yet."""
        return self._unfinished > 0

    def start(self, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        """Run ``work`` in the thread, then ``done(what it returned)`` or ``failed(what it raised)`` in :meth:`poll`."""
        if self._closed:
            return
        self._unfinished += 1
        self._works.put((work, done, failed))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def tell(self, call: Callable[[], None]) -> None:
        """For the work: have :meth:`poll` make a call on the way, such as to show how far it is."""
        self._calls.put((call, False))

    def poll(self) -> None:
        """Make the calls that are due, in the caller's thread."""
        while not self._closed:
            try:
                call, last = self._calls.get_nowait()
            except queue.Empty:
                return
            self._unfinished -= last
            call()

    def close(self) -> None:
        """Make no further calls; what runs in the thread runs to its end unheard. Does not wait."""
        self._closed = True
        self._works.put(None)

    def _run(self) -> None:
        while (task := self._works.get()) is not None and not self._closed:
            work, done, failed = task
            try:
                result = work()
            except Exception as problem:  # noqa: BLE001  the caller's `failed` decides what it means
                self._calls.put((_bound(failed, problem), True))
            else:
                self._calls.put((_bound(done, result), True))


def _bound(call: Callable[[Any], None], value: Any) -> Callable[[], None]:
    return lambda: call(value)
