"""How long the UI thread was kept, event by event.

A window is frozen while one event is being worked on: a paint, a timer's slot, a click and all that it calls. The watch
times each event that Qt delivers, with everything the event caused before it returned. While an event loop that was
started inside an event (a dialogue) runs, the outer event's clock stands; the loop's own events are timed one by one.

Of each event it also knows how long VTK drew (:func:`drawing`). Where there is no graphics card that is most of it, and
says nothing about the module; ``longest_call`` leaves it out. The rest is also given in processor time of the UI
thread: on a busy machine a thread waits for its turn, and only the processor time says what the event cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qtpy import QtCore
from shiboken6 import isValid

from tests.slicer_host.pythonqt import HostApplication

# Levels that no event loop has: of a call outside any, and of an event that only plays a person.
_ANY_LOOP, _NO_LOOP = -1, -2


@dataclass(frozen=True)
class Held:
    """One event that kept the UI thread: how long (seconds), how much of that VTK drew, the processor time of the rest,
    and what it was."""

    seconds: float
    drawing: float
    processor: float
    what: str

    @property
    def call(self) -> float:
        """Seconds without drawing."""
        return self.seconds - self.drawing

    def __str__(self) -> str:
        drawn = f"drawing {1000 * self.drawing:.0f} ms, " if self.drawing > 0 else ""
        return f"{1000 * self.seconds:.0f} ms ({drawn}processor {1000 * self.processor:.0f} ms) in {self.what}"


@dataclass
class _Open:
    """An event that is being worked on, in the event loop of some level."""

    level: int
    since: float | None
    what: str = ""
    busy: float = 0.0
    drawing: float = 0.0
    processor_since: float = 0.0
    processor: float = 0.0


class EventLoopWatch:
    """Times every event once started. The figures speak of the time since the last ``reset``."""

    def __init__(self, keep: float = 0.02) -> None:
        """Events shorter than ``keep`` (seconds) are counted, not listed."""
        self._keep = keep
        self._open: list[_Open] = []
        self._during = ""
        self.reset()

    def start(self) -> None:
        HostApplication.watch = self
        dispatcher = QtCore.QAbstractEventDispatcher.instance()
        dispatcher.aboutToBlock.connect(self._pause)
        dispatcher.awake.connect(self._go_on)

    def stop(self) -> None:
        HostApplication.watch = None
        dispatcher = QtCore.QAbstractEventDispatcher.instance()
        dispatcher.aboutToBlock.disconnect(self._pause)
        dispatcher.awake.disconnect(self._go_on)

    def reset(self) -> None:
        self.events = 0
        self.held: list[Held] = []
        self._longest = Held(0.0, 0.0, 0.0, "no event yet")
        self._longest_call = self._longest

    @property
    def longest(self) -> float:
        """The longest time that one event kept the UI thread, in seconds, drawing included."""
        return self._longest.seconds

    @property
    def longest_event(self) -> str:
        """The same in words: how long, and which event."""
        return str(self._longest)

    @property
    def longest_call(self) -> float:
        """The longest time that one event kept the UI thread without VTK's drawing, in seconds."""
        return self._longest_call.call

    @property
    def longest_call_event(self) -> str:
        return str(self._longest_call)

    def over(self, seconds: float) -> tuple[Held, ...]:
        """The events that took longer, drawing left out, in the order they came; ``seconds`` not below ``keep``."""
        return tuple(one for one in self.held if one.call > seconds)

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        """Time a call that a script makes outside any event, as if it were one."""
        self._enter(_ANY_LOOP)
        try:
            yield
        finally:
            self._leave(lambda: what)

    def around(self, receiver: Any, event: Any, deliver: Callable[[Any, Any], bool]) -> bool:
        """Deliver an event and time it. Called by the application for each."""
        level = QtCore.QThread.currentThread().loopLevel()
        if self._open and self._open[-1].level in (level, _ANY_LOOP):
            return deliver(receiver, event)
        kind, name = event.type(), _name(receiver)
        self._enter(level)
        try:
            return deliver(receiver, event)
        finally:
            self._leave(lambda: f"{getattr(kind, 'name', kind)} of {name}{self._during}")

    def name_event(self, what: str) -> None:
        """Say what the event is that is being worked on, where its receiver says too little."""
        if self._open:
            self._open[-1].what = what

    @contextmanager
    def by_hand(self, what: str) -> Iterator[None]:
        """The event that is being worked on only plays a person who does ``what``: what Qt makes of it is timed."""
        if self._open:
            self._open[-1].level = _NO_LOOP
        self._during = f", at {what}"
        try:
            yield
        finally:
            self._during = ""

    def _enter(self, level: int) -> None:
        self._pause()
        self._open.append(_Open(level, None))
        self._go_on()

    def _leave(self, what: Callable[[], str]) -> None:
        self._pause()
        done = self._open.pop()
        self._go_on()
        seconds = done.busy
        self.events += 1
        if seconds <= self._keep and seconds <= self._longest.seconds and seconds <= self._longest_call.call:
            return
        held = Held(seconds, done.drawing, max(done.processor, 0.0), done.what or what())
        if held.seconds > self._longest.seconds:
            self._longest = held
        if held.call > self._longest_call.call:
            self._longest_call = held
        if seconds > self._keep:
            self.held.append(held)

    def _pause(self) -> None:
        """The innermost event waits: for an event loop that it started, which has work of its own or nothing to do."""
        if self._open and self._open[-1].since is not None:
            event = self._open[-1]
            event.busy += time.perf_counter() - event.since
            event.processor += time.thread_time() - event.processor_since
            event.since = None

    def _go_on(self) -> None:
        if self._open and self._open[-1].since is None:
            self._open[-1].since = time.perf_counter()
            self._open[-1].processor_since = time.thread_time()

    def _drew(self, seconds: float, processor: float) -> None:
        if self._open:
            self._open[-1].drawing += seconds
            self._open[-1].processor -= processor


@contextmanager
def drawing() -> Iterator[None]:
    """Around a VTK render: what it takes is told to the watch as drawing."""
    start, processor = time.perf_counter(), time.thread_time()
    try:
        yield
    finally:
        if HostApplication.watch is not None:
            HostApplication.watch._drew(time.perf_counter() - start, time.thread_time() - processor)


def _name(receiver: Any) -> str:
    if receiver is None or not isValid(receiver):
        return "an object that is gone"
    name = QtCore.QObject.objectName(receiver)
    kind = type(receiver).__name__
    return f"{kind} {name}" if name else kind
