"""Work in a thread, and its end told by polling."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "XFlowSlicer"))

from XFlowSlicerLib.background import Background


@pytest.fixture
def background() -> Background:
    return Background("XFlow test")


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.005)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "XFlow test"]


def test_what_comes_of_a_work_is_told_in_the_thread_that_polls(background: Background) -> None:
    told: list[tuple[object, threading.Thread]] = []
    background.start(lambda: 1, lambda value: told.append((value, threading.current_thread())), told.append)  # type: ignore[arg-type]
    background.start(
        lambda: 1 // 0, told.append, lambda problem: told.append((type(problem), threading.current_thread()))
    )  # type: ignore[arg-type]
    until(lambda: background.poll() or len(told) == 2)
    assert told == [(1, threading.current_thread()), (ZeroDivisionError, threading.current_thread())]
    assert not background.busy
    background.close()


def test_closing_waits_for_nothing_tells_nothing_and_ends_the_thread(background: Background) -> None:
    told: list[object] = []
    go = threading.Event()
    background.start(go.wait, told.append, told.append)
    until(lambda: len(threads()) == 1)
    start = time.monotonic()
    background.close()
    assert time.monotonic() - start < 0.05
    go.set()
    until(lambda: not threads())
    background.poll()
    background.start(go.wait, told.append, told.append)
    assert told == [] and threads() == []


def test_a_thread_that_waits_for_work_ends_too(background: Background) -> None:
    told: list[object] = []
    background.start(lambda: 1, told.append, told.append)
    until(lambda: background.poll() or bool(told))
    background.close()
    until(lambda: not threads())
