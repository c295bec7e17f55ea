"""Exceptions that nobody raised: in a slot, a timer, a VTK observer or a thread Python prints them and goes on.

Here they are printed as Slicer does, and kept, so that a test can state that there were none.
"""

from __future__ import annotations

import sys
import threading
import traceback
from dataclasses import dataclass
from types import TracebackType

_faults: list[Fault] = []


@dataclass(frozen=True)
class Fault:
    """One exception, where it came up, and its traceback."""

    where: str
    error: BaseException
    text: str

    def __str__(self) -> str:
        return f"in {self.where}: {self.text}"


def record(where: str, error: BaseException) -> None:
    """Print an exception and keep it."""
    fault = _fault(where, error)
    _faults.append(fault)
    print(fault.text, file=sys.stderr, end="")


def faults() -> tuple[Fault, ...]:
    """What was recorded since the last :func:`clear_faults`."""
    return tuple(_faults)


def clear_faults() -> None:
    _faults.clear()


def install() -> None:
    """Record what Python hands to its hooks: the one for VTK's and PySide's callbacks, and the one for threads."""
    sys.excepthook = _unhandled
    before = threading.excepthook

    def in_thread(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
            name = arguments.thread.name if arguments.thread is not None else "unknown"
            _faults.append(_fault(f"thread {name}", arguments.exc_value))
        before(arguments)

    threading.excepthook = in_thread


def _unhandled(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    record("a callback", error.with_traceback(trace))


def _fault(where: str, error: BaseException) -> Fault:
    return Fault(where, error, "".join(traceback.format_exception(error)))
