"""Components revised at the same time are told as if one had been revised after the other."""

from __future__ import annotations

import json
import threading
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import pytest
from phantom import PhantomParts, phantom, phantom_engine

from xflow_core.domain.errors import Cancelled, EngineError
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep, ClickStep, StopStep, Trace
from xflow_core.policies.protocols import Decision
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.workflow.session import Session

DISCS = [(0.25, 0.3, 9), (0.25, 0.7, 12), (0.7, 0.3, 9), (0.75, 0.7, 10)]
(ASKED,) = parse_instruction("Segment the opacity")


def start(together: int) -> tuple[Session, PhantomParts]:
    engine, parts = phantom_engine()
    engine = replace(engine, components_together=together)
    return Session(engine, EncodedRadiograph(phantom(DISCS)), ASKED), parts


def test_the_trace_does_not_depend_on_how_many_are_in_work():
    traces = []
    for together in (1, 2, 4):
        session, parts = start(together)
        list(session.run())
        traces.append((session.trace(), parts.calls["revise"]))
    assert len(traces[0][0].last(BoxesStep).boxes) == 4
    assert traces[0] == traces[1] == traces[2]


def test_they_really_are_in_work_at_the_same_time():
    """Each of the three that are begun beside the first one waits for the others."""
    session, parts = start(4)
    meet, revise = threading.Barrier(3, timeout=20), parts.revise

    def meeting(image: Any, instruction: Any, component: Any, *further: Any, **seed: int) -> Decision[Any]:
        if component.component > 0:
            meet.wait()
        return revise(image, instruction, component, *further, **seed)

    parts.revise = meeting  # type: ignore[method-assign]
    list(session.run())
    assert session.finished


def test_what_goes_wrong_in_a_later_component_ends_the_run_at_its_place():
    failed = []
    for together in (1, 4):
        session, parts = start(together)
        revise = parts.revise

        def failing(
            image: Any, instruction: Any, component: Any, *further: Any, revise: Any = revise, **seed: int
        ) -> Decision[Any]:
            if component.component == 2:
                raise MemoryError("no more of it")
            return revise(image, instruction, component, *further, **seed)

        parts.revise = failing  # type: ignore[method-assign]
        with pytest.raises(EngineError, match="no more of it") as problem:
            list(session.run())
        failed.append(session.trace(failure=problem.value))
    assert failed[0] == failed[1]
    assert [step.component for step in failed[0].steps if isinstance(step, StopStep)] == [0, 1]


def test_a_cancelled_run_keeps_its_steps_and_goes_on_as_if_it_had_not_been():
    whole, _ = start(1)
    list(whole.run())
    session, _ = start(4)
    steps = session.run()
    while not any(isinstance(step, ClickStep) and step.component == 1 for step in session.steps):
        next(steps)
    session.cancel()
    with pytest.raises(Cancelled):
        next(steps)
    assert session._ahead is None
    kept = Trace.from_json(json.loads(json.dumps(session.trace().to_json())))
    again = Session.resume(session.engine, EncodedRadiograph(session.image.radiograph), kept)
    list(again.run())
    assert again.steps == whole.steps


def test_a_run_that_is_left_begins_nothing_more():
    session, parts = start(4)
    parts.wanted_clicks = 4
    steps = session.run()
    while not any(isinstance(step, ClickStep) for step in session.steps):
        next(steps)
    assert session._ahead is not None
    revisions = session._ahead._revisions
    steps.close()
    wait(revisions)
    asked = parts.calls["revise"]
    assert session._ahead is None and not session.finished
    list(session.run())
    assert session.finished and parts.calls["revise"] > asked


def test_another_memory_layout_on_the_way_is_said_in_the_trace():
    session, _ = start(1)
    layouts = iter(["merged", "merged"])
    session.engine = replace(session.engine, memory_layout=lambda: next(layouts, "nf4"))
    list(session.run())
    trace = Trace.from_json(json.loads(json.dumps(session.trace().to_json())))
    assert trace == session.trace() and trace.memory_layout == "nf4"
    said = [k for k, step in enumerate(trace.steps) if any("'nf4', before it 'merged'" in note for note in step.notes)]
    assert said == [2]
    engine = replace(session.engine, memory_layout=lambda: "adapters")
    again = Session.resume(engine, session.image, replace(trace, steps=trace.steps[:4]))
    first = next(again.run())
    assert any("'adapters', before it 'nf4'" in note for note in first.notes)
