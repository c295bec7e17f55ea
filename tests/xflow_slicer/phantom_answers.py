"""Answers of the phantom, made in this process, for the tests of what the panel shows and edits."""

from __future__ import annotations

from phantom import phantom, phantom_engine
from service.phantom_server import Served
from XFlowSlicerLib import steps
from XFlowSlicerLib.steps import Edit

from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import Trace
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.workflow.session import Session

DISCS = [(0.25, 0.5, 12), (0.7, 0.3, 9), (0.75, 0.7, 10)]
ENGINE, _ = phantom_engine()
IMAGE = EncodedRadiograph(phantom(DISCS))


def answer(text: str = "Segment the opacity", **options: int) -> Trace:
    session = Session(ENGINE, IMAGE, parse_instruction(text)[0], **options)
    list(session.run())
    return session.trace()


def ran(trace: Trace) -> Trace:
    session = Session.resume(ENGINE, IMAGE, trace)
    list(session.run())
    return session.trace()


def replayed(trace: Trace, edit: Edit) -> Trace:
    """As the work thread does it, here without a thread."""
    now, then = steps.continued(steps.branch(trace, edit), edit.then)
    while then:
        session = Session.resume(ENGINE, IMAGE, now)
        for _ in session.run():
            if steps.may_stand(session.steps, then[0]):
                break
        now, then = steps.continued(session.trace(), then)
    return ran(now)


def told_to_stop(served: Served) -> bool:
    """Whether a cancel has come to the server for a run that it has not ended yet."""
    return any(run.cancelled.is_set() for runs in list(served.service.worker._runs.values()) for run in list(runs))


WHOLE = answer()
