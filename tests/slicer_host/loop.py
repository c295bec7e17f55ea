"""Calls made as Slicer makes them: inside a running event loop.

A test calls from outside any. Qt treats that differently where it matters: what ``deleteLater`` condemns there is gone
as soon as a dialogue opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from qtpy import QtCore

from tests.slicer_host.pythonqt import HostApplication

Result = TypeVar("Result")


def in_event_loop(action: Callable[[], Result], what: str = "a call of the host") -> Result:
    """Run an action as one event of an event loop, then what it left to do.

    Args:
        what: the action in words, for the watch.

    Raises:
        Exception: whatever the action raises.
    """
    loop = QtCore.QEventLoop()
    results: list[Result] = []
    errors: list[Exception] = []

    def act() -> None:
        if HostApplication.watch is not None:
            HostApplication.watch.name_event(what)
        try:
            results.append(action())
        except Exception as error:  # noqa: BLE001  raised again below, outside Qt
            errors.append(error)
        finally:
            QtCore.QTimer.singleShot(0, loop.quit)

    QtCore.QTimer.singleShot(0, act)
    loop.exec()
    if errors:
        raise errors[0]
    return results[0]


def work_off() -> None:
    """Let Qt handle what is pending."""
    in_event_loop(lambda: None)
