"""Edits are traces: what may stand, what is counted anew, and what no session could have made."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phantom import SIZE, phantom, phantom_engine

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.geometry import Point
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import Click, ClickStep, Mask, MaskStep, StopStep, Trace
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.workflow.edits import check_steps, continue_from_mask, replace_step
from xflow_core.workflow.session import Session

DISCS = [(0.25, 0.5, 12), (0.7, 0.3, 9)]
CLICK = Click("positive", Point(0.7, 0.35))


def session(clicks: int = 2, **options: int) -> Session:
    engine, parts = phantom_engine()
    parts.wanted_clicks = clicks
    made = Session(engine, EncodedRadiograph(phantom(DISCS)), parse_instruction("Segment the opacity")[0], **options)
    list(made.run())
    return made


def drawn_mask() -> Mask:
    array = np.zeros(SIZE, bool)
    array[60:90, 30:70] = True
    return Mask.of(array)


def of(trace: Trace, component: int, kind: type) -> list:
    return [step for step in trace.steps if isinstance(step, kind) and step.component == component]


def test_what_a_session_makes_can_stand_and_so_can_every_prefix() -> None:
    trace = session().trace()
    for k in range(len(trace.steps) + 1):
        check_steps(replace(trace, steps=trace.steps[:k]))


def test_the_user_s_mask_stands_and_the_clicks_are_counted_anew() -> None:
    first = session(clicks=99)
    assert len(of(first.trace(), 0, ClickStep)) == 4, "the limit was reached"
    branch = first.continue_from_mask(0, drawn_mask())
    made = list(branch.run())
    trace = branch.trace()
    check_steps(trace)
    assert of(trace, 0, MaskStep)[4].mask == drawn_mask()
    assert len(of(trace, 0, ClickStep)) == 8
    assert of(trace, 1, MaskStep) == of(first.trace(), 1, MaskStep)
    assert all(step.kind == "result" or step.component == 0 for step in made)
    assert trace.branch_of.trace == first.trace().id


def test_a_mask_kept_as_drawn_is_stopped_by_the_user_and_is_in_the_result() -> None:
    branch = session().continue_from_mask(1, drawn_mask(), revise=False)
    assert [step.kind for step in branch.run()] == ["result"]
    assert of(branch.trace(), 1, StopStep) == [StopStep(component=1, reason="user", origin="user")]
    assert not (drawn_mask().array & ~branch.steps[-1].mask.array).any()


def test_a_trace_of_one_stage_gets_its_second_from_an_edited_mask() -> None:
    first = session(stages=1)
    branch = first.continue_from_mask(0, drawn_mask())
    list(branch.run())
    assert branch.trace().stages == 2
    assert of(branch.trace(), 0, ClickStep)
    assert first.continue_from_mask(0, drawn_mask(), revise=False).trace().stages == 1


@pytest.mark.parametrize("component", [2, -1])
def test_a_component_without_a_mask_cannot_be_continued(component: int) -> None:
    with pytest.raises(ValueRefused, match="no mask of component"):
        continue_from_mask(session().trace(), component, drawn_mask())
    with pytest.raises(ValueRefused, match=r"\(3, 3\)"):
        continue_from_mask(session().trace(), 0, Mask.of(np.ones((3, 3), bool)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_steps_out_of_order_are_refused_or_were_no_disorder(seed: int) -> None:
    trace = _TRACE
    steps = list(trace.steps)
    chance = random.Random(seed)
    a, b = chance.sample(range(len(steps)), 2)
    steps[a], steps[b] = steps[b], steps[a]
    mixed = replace(trace, steps=tuple(steps), result=None)
    try:
        check_steps(mixed)
    except ValueRefused:
        return
    # Steps of different components may stand in any order.
    for component in (0, 1):
        for kind in (MaskStep, ClickStep, StopStep):
            assert of(mixed, component, kind) == of(trace, component, kind)


_TRACE = session().trace()


def test_an_edit_leaves_the_trace_that_it_came_from_alone() -> None:
    trace = session().trace()
    text = trace.to_json()
    branch = replace_step(trace, 2, trace.steps[2])
    assert trace.to_json() == text
    assert branch.result is None
    assert branch.steps[2].origin == "user"


@pytest.mark.parametrize("step", [ClickStep(component=1, turn=1, click=CLICK), StopStep(component=1, reason="user")])
def test_a_click_or_a_stop_may_be_added_where_a_trace_was_cut_off_after_a_mask(step: ClickStep | StopStep) -> None:
    first = session()
    whole = first.trace()
    cut = replace(whole, steps=whole.steps[: whole.steps.index(of(whole, 1, MaskStep)[0]) + 1], result=None)
    branch = replace_step(cut, len(cut.steps), step)
    assert branch.steps[-1] == replace(step, origin="user")
    assert (branch.branch_of.trace, branch.branch_of.step) == (cut.id, len(cut.steps))
    continued = Session.resume(first.engine, first.image, branch)
    list(continued.run())
    assert continued.finished
    assert of(continued.trace(), 1, type(step))[0].origin == "user"


def test_nothing_else_may_be_added_and_nothing_after_a_result() -> None:
    whole = session().trace()
    click = ClickStep(component=0, turn=3, click=CLICK)
    end = len(whole.steps)
    with pytest.raises(ValueRefused, match="a result is the last step"):
        replace_step(whole, end, click)
    cut = replace(whole, steps=whole.steps[:-1], result=None)
    with pytest.raises(ValueRefused, match="does not fit there"):
        replace_step(cut, end - 1, click)  # its component was stopped
    for step in (whole.steps[2], whole.steps[3], whole.steps[-1]):
        with pytest.raises(ValueRefused, match="There is no step"):
            replace_step(cut, end - 1, step)
    with pytest.raises(ValueRefused, match="a boxes step belongs there"):
        replace_step(replace(whole, steps=whole.steps[:2], result=None), 2, click)
