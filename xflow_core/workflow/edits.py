"""Edits of a trace: what stands, and what the user put in its place; the session computes the rest.

An edit is a trace without a result that branches off another one. It needs no models, so that a wrong one is refused
before any are asked.
"""

from __future__ import annotations

from dataclasses import replace

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.findings import lungs_for, verdict_regions
from xflow_core.domain.trace import (
    BoxesStep,
    Branch,
    ClickStep,
    LungsStep,
    Mask,
    MaskStep,
    PresenceStep,
    ResultStep,
    Step,
    StopStep,
    Trace,
)

_STAGE_ONE = (LungsStep, PresenceStep, BoxesStep)


def replace_step(trace: Trace, k: int, step: Step) -> Trace:
    """The steps before ``k``, and ``step`` as the user's ``k``-th.

    A stop may be replaced by a click and a click by a stop; every other kind by its own. At the end of a trace that was
    cut off, where ``k`` is its number of steps, a click or a stop may be added after its component's mask.

    Raises:
        ValueRefused: no such step, or the new one cannot stand there.
    """
    if k == len(trace.steps) and isinstance(step, (ClickStep, StopStep)):
        longer = _branch(trace, k, (*trace.steps, replace(step, origin="user")))
        check_steps(longer)
        return longer
    if not 0 <= k < len(trace.steps):
        raise ValueRefused(f"There is no step {k}; the trace has {len(trace.steps)}.")
    step = replace(step, origin="user")
    _check_replacement(trace, k, step)
    return _branch(trace, k, (*trace.steps[:k], step))


def continue_from_mask(trace: Trace, component: int, mask: Mask, *, revise: bool = True) -> Trace:
    """The user's ``mask`` in the place of the component's last one, from which the second stage goes on.

    The clicks on the component are counted anew from there. The other components' steps stay: none of them depends on
    this one's. A trace of one stage gets its second.

    Args:
        revise: false keeps the mask as drawn: the component is stopped by the user.

    Raises:
        ValueRefused: the component has no mask, or the new one is of another size.
    """
    places = [k for k, step in enumerate(trace.steps) if isinstance(step, MaskStep) and step.component == component]
    if not places:
        raise ValueRefused(f"The trace has no mask of component {component}.")
    k = places[-1]
    old = trace.steps[k]
    assert isinstance(old, MaskStep)
    drawn = MaskStep(component=component, turn=old.turn, mask=mask, origin="user")
    _check_replacement(trace, k, drawn)
    later = [step for step in trace.steps[k + 1 :] if not isinstance(step, ResultStep) and not _is_of(step, component)]
    stop = [] if revise else [StopStep(component=component, reason="user", origin="user")]
    branch = _branch(trace, k, (*trace.steps[:k], drawn, *later, *stop))
    return replace(branch, stages=2) if revise else branch


def check_steps(trace: Trace) -> None:
    """Refuse steps that no session could have made in this order: a trace may come from anywhere.

    Raises:
        ValueRefused: it says which step cannot stand where it does.
    """
    boxes: BoxesStep | None = None
    of: dict[int, list[MaskStep | ClickStep | StopStep]] = {}
    for k, step in enumerate(trace.steps):
        if k < len(_STAGE_ONE) and not isinstance(step, _STAGE_ONE[k]):
            # A verdict of absent everywhere ends the trace.
            if not (k == 2 and isinstance(step, ResultStep) and not step.present):
                raise ValueRefused(f"Step {k} is a {step.kind} step; a {_STAGE_ONE[k].kind} step belongs there.")
        elif isinstance(step, _STAGE_ONE) and k >= len(_STAGE_ONE):
            raise ValueRefused(f"Step {k} is a second {step.kind} step.")
        if isinstance(step, (LungsStep, PresenceStep, BoxesStep)):
            _check_question(trace, step)
            boxes = step if isinstance(step, BoxesStep) else None
        elif isinstance(step, (MaskStep, ClickStep, StopStep)):
            assert boxes is not None
            if step.component >= len(boxes.boxes):
                raise ValueRefused(f"Step {k} is of component {step.component}; there are {len(boxes.boxes)}.")
            _check_turn(k, step, of.setdefault(step.component, []))
            of[step.component].append(step)
        elif isinstance(step, ResultStep) and k != len(trace.steps) - 1:
            raise ValueRefused(f"Step {k} is a result, and a result is the last step.")
        if isinstance(step, (MaskStep, ResultStep)) and step.mask is not None:
            _check_size(trace, step.mask)


def _branch(trace: Trace, k: int, steps: tuple[Step, ...]) -> Trace:
    return replace(trace, steps=steps, result=None, branch_of=Branch(trace.id, k), seconds={})


def _is_of(step: Step, component: int) -> bool:
    return isinstance(step, (MaskStep, ClickStep, StopStep)) and step.component == component


def _check_replacement(trace: Trace, k: int, new: Step) -> None:
    old = trace.steps[k]
    swap = {type(old), type(new)} == {StopStep, ClickStep}
    if isinstance(new, ResultStep):
        raise ValueRefused("The result follows from the steps before it; replace one of those.")
    if type(old) is not type(new) and not swap:
        raise ValueRefused(f"A {old.kind} step cannot be replaced by a {new.kind} step.")
    if isinstance(new, (MaskStep, ClickStep, StopStep)):
        assert isinstance(old, (MaskStep, ClickStep, StopStep))
        if new.component != old.component:
            raise ValueRefused(f"The step is of component {old.component}, the new one of {new.component}.")
    if isinstance(new, MaskStep):
        assert isinstance(old, MaskStep)
        if new.turn != old.turn:
            raise ValueRefused(f"The mask is of turn {old.turn}, the new one of turn {new.turn}.")
        _check_size(trace, new.mask)
    if isinstance(new, ClickStep):
        turn = 1 + sum(isinstance(s, ClickStep) and s.component == new.component for s in trace.steps[:k])
        if new.turn != turn:
            raise ValueRefused(f"The click would be turn {turn} of its component, not {new.turn}.")
    if isinstance(new, (LungsStep, PresenceStep, BoxesStep)):
        _check_question(trace, new)


def _check_question(trace: Trace, step: LungsStep | PresenceStep | BoxesStep) -> None:
    asked = trace.instruction
    if isinstance(step, LungsStep):
        wanted = lungs_for(asked.regions)
        if {lung.label for lung in step.lungs} != set(wanted):
            raise ValueRefused(f"The question needs a box for {', '.join(sorted(wanted))}.")
    elif isinstance(step, PresenceStep):
        regions = verdict_regions(asked.regions)
        if tuple(verdict.region for verdict in step.verdicts) != regions:
            raise ValueRefused(f"The question needs a verdict for {', '.join(regions)}, in this order.")
    else:
        if any(box.label != asked.finding for box in step.boxes):
            raise ValueRefused(f"The question is about {asked.finding}; a box names another finding.")
        places = {*asked.regions, *verdict_regions(asked.regions)}
        elsewhere = next((box.region for box in step.boxes if box.region not in places), None)
        if elsewhere is not None:
            raise ValueRefused(f"The question is about {', '.join(asked.regions)}; a box names the {elsewhere}.")


def _check_turn(k: int, step: MaskStep | ClickStep | StopStep, before: list[MaskStep | ClickStep | StopStep]) -> None:
    clicks = sum(isinstance(other, ClickStep) for other in before)
    if isinstance(step, MaskStep):
        fits = step.turn == clicks and (not before or isinstance(before[-1], ClickStep))
    else:
        fits = bool(before) and isinstance(before[-1], MaskStep)
        if isinstance(step, ClickStep):
            fits = fits and step.turn == clicks + 1
    if not fits:
        raise ValueRefused(f"Step {k} is a {step.kind} step of component {step.component} that does not fit there.")


def _check_size(trace: Trace, mask: Mask) -> None:
    if mask.size != tuple(trace.image.size):
        raise ValueRefused(f"The mask is of {mask.size}, the image of {trace.image.size} pixels.")
