"""The second stage of several components at a time.

Components are revised independently of one another (paper, A.3), so their decisions may be made at the same time, for
policies whose decisions share passes of a model then. The steps are handed out as if one component had been revised
after the other: which they are, and in which order, does not depend on how many were in work.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from xflow_core.domain.trace import LesionBox, Step

Part: TypeAlias = tuple[Step, str]
"""A step, and the part of the run that it belongs to."""

Revision: TypeAlias = Callable[[LesionBox], Iterator[Part]]
"""Makes the steps of one component's revision, one after another."""


@functools.cache
def _threads(together: int) -> ThreadPoolExecutor:
    """The same threads for every run: on a GPU a fresh one makes its plans for convolutions anew (a second)."""
    return ThreadPoolExecutor(together, thread_name_prefix="xflow-component")


class Ahead:
    """Revisions of several components in threads.

    Args:
        components: in the order in which their steps will be asked for.
        revise: gives a component's steps; called in a thread for each.
        together: at a time; the runs of a process share the threads.
    """

    def __init__(self, components: Sequence[LesionBox], revise: Revision, together: int) -> None:
        self._ended = threading.Event()
        self._made: dict[int, queue.SimpleQueue[Part | BaseException]] = {
            component.component: queue.SimpleQueue() for component in components
        }
        pool = _threads(together)
        self._revisions = [pool.submit(self._revise, component, revise) for component in components]

    def __contains__(self, component: int) -> bool:
        return component in self._made

    def next(self, component: int) -> Part:
        """The component's next step, waited for; what went wrong in its place is raised here."""
        made = self._made[component].get()
        if isinstance(made, BaseException):
            raise made
        return made

    def close(self) -> None:
        """No further step is begun; nobody waits for those that are."""
        self._ended.set()
        for revision in self._revisions:
            revision.cancel()

    def _revise(self, component: LesionBox, revise: Revision) -> None:
        made = self._made[component.component]
        try:
            for step in revise(component):
                made.put(step)
                if self._ended.is_set():
                    return
        except BaseException as problem:  # noqa: BLE001  raised where the step is asked for
            made.put(problem)
