"""The two stages, edit and replay, cancellation and limits, on a backend that counts what it is asked."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phantom import LUNG_BOXES, SIZE, PhantomParts, phantom, phantom_engine

from xflow_core.domain.errors import Cancelled, EngineError, UnsupportedFinding, ValueRefused
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import (
    BoxesStep,
    Click,
    ClickStep,
    GroundedLung,
    LesionBox,
    LungsStep,
    Mask,
    MaskStep,
    PresenceStep,
    ResultStep,
    StopStep,
    Trace,
    Verdict,
)
from xflow_core.policies.protocols import Decision
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Limits, Session, answer, without_specks

RIGHT_AND_LEFT = [(0.25, 0.5, 12), (0.7, 0.3, 9), (0.75, 0.7, 10)]


def start(
    text: str = "Segment the opacity", discs: list[tuple[float, float, float]] | None = None, **options: object
) -> tuple[Session, PhantomParts]:
    engine, parts = phantom_engine()
    image = EncodedRadiograph(phantom(RIGHT_AND_LEFT if discs is None else discs))
    (instruction,) = parse_instruction(text)
    return Session(engine, image, instruction, **options), parts  # type: ignore[arg-type]


def finished(*arguments: object, **options: object) -> tuple[Session, PhantomParts]:
    session, parts = start(*arguments, **options)  # type: ignore[arg-type]
    list(session.run())
    return session, parts


def kinds(session: Session) -> list[str]:
    return [step.kind for step in session.steps]


def test_the_steps_come_in_the_readers_order() -> None:
    session, _ = finished(discs=[(0.25, 0.5, 12)])
    assert kinds(session) == ["lungs", "presence", "boxes", "mask", "click", "mask", "click", "mask", "stop", "result"]


def test_all_first_masks_come_from_one_segmenter_call_and_each_component_is_revised_on_its_own() -> None:
    session, parts = finished()
    assert kinds(session)[:6] == ["lungs", "presence", "boxes", "mask", "mask", "mask"]
    assert parts.calls["segment"] == 1 + 3 * 2
    stops = [step for step in session.steps if isinstance(step, StopStep)]
    assert [stop.component for stop in stops] == [0, 1, 2]


def test_absent_ends_after_stage_one() -> None:
    session, parts = finished(discs=[])
    assert kinds(session) == ["lungs", "presence", "result"]
    assert session.steps[-1].mask is None
    assert parts.calls["segment"] == 0
    assert session.trace().result.status == "absent"


def test_one_stage_ends_with_the_boxes_masks() -> None:
    session, parts = finished(stages=1)
    assert "click" not in kinds(session)
    assert parts.calls["revise"] == 0
    assert session.trace().result.status == "present"


def test_a_lung_asked_alone_is_grounded_alone() -> None:
    session, _ = finished("Segment the opacity in the left lung")
    assert [lung.label for lung in session.steps[0].lungs] == ["left lung"]
    assert [verdict.region for verdict in session.steps[1].verdicts] == ["left lung"]


def test_the_heart_has_one_verdict() -> None:
    session, _ = finished("Segment the cardiomegaly")
    assert [verdict.region for verdict in session.steps[1].verdicts] == ["heart"]


def test_at_most_four_clicks_by_default() -> None:
    session, parts = start(discs=[(0.25, 0.5, 12)])
    parts.wanted_clicks = 99
    list(session.run())
    assert kinds(session).count("click") == 4
    assert [step.reason for step in session.steps if isinstance(step, StopStep)] == ["limit"]


def test_a_click_that_changes_nothing_ends_the_revision() -> None:
    session, parts = finished(discs=[(0.25, 0.5, 12)])
    parts.wanted_clicks = 99
    middle = Click("positive", Point(0.25, 0.5))
    branch = session.replace(4, ClickStep(component=0, turn=1, click=middle))
    list(branch.run())
    assert branch.steps[-2] == StopStep(component=0, reason="no_progress")


def test_the_image_is_encoded_once_whatever_is_asked() -> None:
    engine, parts = phantom_engine()
    image = EncodedRadiograph(phantom(RIGHT_AND_LEFT))
    for text in ("Segment the opacity", "Segment the effusion in the left lung", "Segment the cardiomegaly"):
        (instruction,) = parse_instruction(text)
        session = Session(engine, image, instruction)
        list(session.run())
        list(session.replace(2, session.steps[2]).run())
    assert parts.calls["encode"] == 1


def test_the_same_question_gives_the_same_trace() -> None:
    assert finished()[0].trace() == finished()[0].trace()
    assert finished()[0].trace().id == finished()[0].trace().id


def test_replacing_a_decision_keeps_what_stands_before_it_and_computes_only_what_follows() -> None:
    session, parts = finished()
    before = parts.calls.copy()
    boxes = session.steps[2]
    branch = session.replace(2, BoxesStep(boxes=boxes.boxes[:1]))
    list(branch.run())
    assert branch.steps[:2] == session.steps[:2]
    assert branch.steps[2].origin == "user"
    made = parts.calls - before
    assert made == {"segment": 3, "masks": 3, "revise": 3}
    assert branch.trace().branch_of.trace == session.trace().id
    assert branch.trace().branch_of.step == 2
    assert kinds(session).count("mask") == 9, "the first session stays as it is"


@pytest.mark.parametrize("k", range(10))
def test_replacing_any_step_by_itself_gives_the_same_decisions(k: int) -> None:
    session, _ = finished(discs=[(0.25, 0.5, 12)])
    if isinstance(session.steps[k], ResultStep):
        with pytest.raises(ValueRefused):
            session.replace(k, session.steps[k])
        return
    branch = session.replace(k, session.steps[k])
    list(branch.run())
    assert [replace(step, origin="model") for step in branch.steps] == session.steps


def test_an_absent_verdict_turned_present_is_boxed_and_masked() -> None:
    session, parts = finished("Segment the opacity in the left lung", discs=[(0.25, 0.5, 12)])
    assert session.trace().result.status == "absent"
    branch = session.replace(1, PresenceStep(verdicts=(Verdict("left lung", True),)))
    list(branch.run())
    trace = branch.trace()
    assert trace.result.status == "present"
    assert trace.result.confidence is None, "the user's verdict is no probability of the model's"
    assert parts.calls["judge"] == 1


def test_a_present_verdict_turned_absent_ends_there() -> None:
    session, _ = finished()
    branch = session.replace(
        1, PresenceStep(verdicts=tuple(Verdict(v.region, False) for v in session.steps[1].verdicts))
    )
    list(branch.run())
    assert kinds(branch) == ["lungs", "presence", "result"]


def test_a_stop_may_become_a_click_also_beyond_the_limit() -> None:
    session, parts = start(discs=[(0.25, 0.5, 12)])
    parts.wanted_clicks = 99
    list(session.run())
    k = kinds(session).index("stop")
    click = ClickStep(component=0, turn=5, click=Click("negative", Point(0.25, 0.5)))
    branch = session.replace(k, click)
    list(branch.run())
    assert [step.reason for step in branch.steps if isinstance(step, StopStep)] == ["limit"]
    assert not branch.steps[-1].mask.array[100, 60]


def test_a_trace_read_from_disk_goes_on_exactly_as_the_live_session() -> None:
    session, _ = finished()
    for k in range(1, len(session.steps)):
        text = json.dumps(replace(session.trace(), steps=tuple(session.steps[:k]), result=None).to_json())
        loaded = Trace.from_json(json.loads(text))
        again = Session.resume(session.engine, session.image, loaded)
        list(again.run())
        assert again.trace() == session.trace()


def test_a_trace_of_another_image_or_bundle_is_refused() -> None:
    session, _ = finished()
    other = EncodedRadiograph(phantom([]))
    with pytest.raises(ValueRefused, match="another image"):
        Session.resume(session.engine, other, session.trace())
    identity = replace(session.engine.identity, version="2")
    with pytest.raises(ValueRefused, match="phantom 1"):
        Session.resume(replace_engine(session.engine, identity=identity), session.image, session.trace())


def replace_engine(engine: Engine, **changes: object) -> Engine:
    return replace(engine, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("k", "step", "reason"),
    [
        (0, LungsStep(lungs=(GroundedLung("left lung", LUNG_BOXES["left lung"]),)), "right lung"),
        (1, PresenceStep(verdicts=(Verdict("left lung", True),)), "right lung, left lung"),
        (2, BoxesStep(boxes=(LesionBox(0, "effusion", LUNG_BOXES["left lung"], "left lung"),)), "another finding"),
        (3, MaskStep(component=0, turn=1, mask=Mask.of(np.ones(SIZE, bool))), "turn 0"),
        (3, MaskStep(component=1, turn=0, mask=Mask.of(np.ones(SIZE, bool))), "component 0"),
        (3, MaskStep(component=0, turn=0, mask=Mask.of(np.ones((5, 5), bool))), "(5, 5)"),
        (3, StopStep(component=0, reason="user"), "cannot be replaced"),
        (99, StopStep(component=0, reason="user"), "no step 99"),
    ],
)
def test_a_replacement_that_cannot_stand_there_is_refused(k: int, step: object, reason: str) -> None:
    session, _ = finished()
    with pytest.raises(ValueRefused, match=reason.replace("(", r"\(").replace(")", r"\)")):
        session.replace(k, step)  # type: ignore[arg-type]


def test_cancelling_takes_effect_before_the_next_step_and_keeps_what_was_made() -> None:
    session, parts = start()
    run = session.run()
    next(run), next(run)
    session.cancel()
    with pytest.raises(Cancelled):
        next(run)
    assert kinds(session) == ["lungs", "presence"]
    assert parts.calls["localise"] == 0


def test_a_box_is_restricted_to_the_band_asked_about() -> None:
    # The disc straddles the border between the left lung's mid and base zones at y = 0.6333.
    session, _ = finished("Segment the opacity in the left lung base", discs=[(0.7, 0.63, 14)])
    (box,) = session.steps[2].boxes
    assert box.box.y1 >= 0.1 + 0.8 * 2 / 3 - 1e-9


def test_a_mask_beyond_the_lung_box_is_cut_there_with_a_note() -> None:
    session, _ = finished("Segment the opacity in the left lung", discs=[(0.88, 0.5, 14)])
    first = next(step for step in session.steps if isinstance(step, MaskStep))
    assert not (first.mask.array & ~LUNG_BOXES["left lung"].mask(SIZE)).any()
    assert first.notes
    assert "left lung" in first.notes[0]


def test_a_question_about_the_chest_is_not_cut() -> None:
    session, _ = finished("Segment the opacity", discs=[(0.88, 0.5, 14)])
    assert (session.steps[-1].mask.array & ~LUNG_BOXES["left lung"].mask(SIZE)).any()


def test_what_the_user_placed_is_never_cut() -> None:
    session, _ = finished("Segment the opacity in the left lung", discs=[(0.7, 0.5, 9)])
    outside = np.zeros(SIZE, bool)
    outside[0:12, 180:230] = True
    k = kinds(session).index("mask")
    drawn = session.replace(k, MaskStep(component=0, turn=0, mask=Mask.of(outside)))
    list(drawn.run())
    assert (drawn.steps[-1].mask.array & outside).sum() == outside.sum()

    box = LesionBox(0, "opacity", Box(0.8, 0.0, 0.99, 0.09), "left lung")
    boxed = session.replace(2, BoxesStep(boxes=(box,)))
    list(boxed.run())
    assert boxed.steps[2].boxes[0].box == box.box
    assert boxed.steps[-1].mask.array[:18].any()

    stop = kinds(session).index("stop")
    turn = 1 + kinds(session).count("click")
    clicked = session.replace(stop, ClickStep(component=0, turn=turn, click=Click("positive", Point(0.97, 0.5))))
    list(clicked.run())
    assert clicked.steps[-1].mask.array[100, int(0.97 * 240)]


def test_present_without_a_pixel_is_a_failure_and_not_an_absence() -> None:
    class Empty(PhantomParts):
        def segment(self, image, prompts):  # type: ignore[no-untyped-def]
            return [replace(found, mask=np.zeros(SIZE, bool)) for found in super().segment(image, prompts)]

    session, _ = start(discs=[(0.25, 0.5, 12)])
    engine = replace(session.engine, segmenter=Empty())
    trace = answer(engine, session.image, session.instruction)
    assert trace.result.status == "failed"
    assert trace.result.present is None
    assert "not an absence" in trace.result.message


def test_a_policy_that_answers_another_question_is_an_engine_error() -> None:
    class Confused(PhantomParts):
        def judge(self, image, instruction, regions, lungs, *, seed):  # type: ignore[no-untyped-def]
            return Decision((Verdict("heart", True, 0.5),))

    session, _ = start()
    broken = Session(replace(session.engine, init_policy=Confused()), session.image, session.instruction)
    with pytest.raises(EngineError):
        list(broken.run())


def test_a_finding_outside_the_bundle_is_refused_by_name() -> None:
    engine, _ = phantom_engine(("opacity",))
    image = EncodedRadiograph(phantom([]))
    (instruction,) = parse_instruction("Segment the effusion")
    with pytest.raises(UnsupportedFinding, match=r"effusion.*opacity"):
        Session(engine, image, instruction)
    trace = answer(engine, image, instruction)
    assert trace.result.status == "unsupported"
    assert trace.result.present is None


def test_the_results_confidence_is_of_what_is_stated() -> None:
    present = finished()[0].trace().result
    absent = finished(discs=[])[0].trace().result
    assert (present.confidence, absent.confidence) == (0.9, 0.8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_speck_is_left_and_the_largest_piece_stays(seed: int) -> None:
    mask = np.random.default_rng(seed).random((60, 80)) > 0.8
    clean = without_specks(mask, 0.005)
    assert not (clean & ~mask).any()
    again = without_specks(clean, 0.005)
    assert (again == clean).all()
    assert clean.any()


def test_limits_are_configurable() -> None:
    session, parts = start(discs=[(0.25, 0.5, 12)], limits=Limits(max_clicks=1))
    parts.wanted_clicks = 99
    list(session.run())
    assert kinds(session).count("click") == 1


def test_whatever_a_models_library_raises_is_an_engine_error_and_ends_this_run_alone() -> None:
    class Exhausted(PhantomParts):
        def segment(self, image, prompts):  # type: ignore[no-untyped-def]
            raise MemoryError("no room")

    session, _ = start()
    engine = replace(session.engine, segmenter=Exhausted())
    trace = answer(engine, session.image, session.instruction)
    assert trace.result.status == "failed"
    assert "no room" in trace.result.message
    assert [step.kind for step in trace.steps] == ["lungs", "presence", "boxes"]
