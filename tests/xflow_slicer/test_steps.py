"""Rows, pictures and edits of a trace; every edit that is offered is one that the engine takes."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from phantom import LUNG_BOXES, SIZE
from XFlowSlicerLib import steps
from XFlowSlicerLib.steps import Edit, Masks, NotOffered, Pixels, picture_at, rows

from tests.xflow_slicer.phantom_answers import DISCS, WHOLE, answer, ran, replayed
from xflow_core.domain.errors import EngineError
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import (
    BoxesStep,
    ClickStep,
    ImageRecord,
    Mask,
    MaskStep,
    PresenceStep,
    Result,
    ResultStep,
    StopStep,
    Trace,
)
from xflow_core.workflow.edits import check_steps, continue_from_mask, replace_step

KINDS = ["lungs", "presence", "boxes", "mask", "mask", "mask"]
OF_ONE = ["click", "mask", "click", "mask", "stop"]
CHEST = [k for k, step in enumerate(WHOLE.steps) if isinstance(step, ClickStep)]


def of(trace: Trace, component: int) -> list:
    return [s for s in trace.steps if isinstance(s, (MaskStep, ClickStep, StopStep)) and s.component == component]


def places(trace: Trace, kind: type, component: int | None = None) -> list[int]:
    return [
        k
        for k, step in enumerate(trace.steps)
        if isinstance(step, kind) and (component is None or step.component == component)
    ]


# Masks ---------------------------------------------------------------------------------------------------------


@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_a_cropped_mask_holds_the_same_pixels(array: np.ndarray) -> None:
    pixels = Pixels.of(Mask.of(array))
    canvas = np.zeros(array.shape, bool)
    pixels.onto(canvas)
    assert (canvas == array).all()
    assert pixels.area == array.sum()
    assert not pixels.area or (pixels.inside[0].any() and pixels.inside[:, 0].any())
    assert all(pixels.holds(*place) == array[place] for place in np.ndindex(array.shape))


@given(arrays.arrays(bool, (6, 7)), arrays.arrays(bool, (6, 7)))
def test_what_a_click_changed_is_counted(before: np.ndarray, after: np.ndarray) -> None:
    added, removed = Masks().changed(Mask.of(before), Mask.of(after))
    assert (added, removed) == ((after & ~before).sum(), (before & ~after).sum())


# Rows ----------------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_every_decision_in_its_order() -> None:
    assert [step.kind for step in WHOLE.steps] == [*KINDS, *OF_ONE * 3, "result"]
    found = rows(WHOLE)
    assert [row.kind for row in found] == [
        "lungs",
        *["presence"] * 2,
        *["boxes"] * 3,
        *["mask"] * 3,
        *OF_ONE * 3,
        "result",
    ]
    assert [row.text for row in found[:5]] == [
        "Lungs",
        "Right lung: present",
        "Left lung: present",
        "Component 1: box in the right lung",
        "Component 2: box in the left lung",
    ]
    assert [row.confidence for row in found[:4]] == [None, 0.9, 0.9, 0.7]
    assert found[0].detail == "right lung (0.90), left lung (0.90)"
    assert [row.step for row in found[:4]] == [0, 1, 1, 2]
    assert found[-1].text == "Result: opacity present"


def test_a_mask_s_row_says_what_the_click_changed_and_how_large_it_is() -> None:
    first, after = places(WHOLE, MaskStep, 0)[:2]
    row = next(row for row in rows(WHOLE) if row.step == after)
    before, now = WHOLE.steps[first].mask.array, WHOLE.steps[after].mask.array
    assert row.changed_px == ((now & ~before).sum(), (before & ~now).sum())
    assert row.area_px == now.sum()
    assert row.area_text == f"{now.sum():,} px"
    assert row.predicted_iou == 0.8
    assert row.seconds == WHOLE.steps[after].seconds
    assert next(row for row in rows(WHOLE) if row.step == first).changed_px is None


def test_an_area_in_mm2_names_the_plane_that_it_was_measured_in() -> None:
    image = replace(WHOLE.image, spacing_mm=(0.2, 0.2), spacing_kind="detector")
    row = rows(replace(WHOLE, image=image))[-1]
    assert row.area_text == f"{row.area_px:,} px, {row.area_px * 0.04:.0f} mm² (detector plane, uncalibrated)"


def test_a_click_s_row_has_its_sign() -> None:
    trace = replayed(WHOLE, steps.click_added(WHOLE, CHEST[0] - 1, 0, "negative", Point(0.25, 0.5)))
    clicks = [row for row in rows(trace) if row.kind == "click" and row.component == 0]
    assert [(row.sign, row.origin) for row in clicks] == [("−", "user"), ("+", "model")]


@pytest.mark.parametrize("status", ["refused", "unsupported", "failed"])
def test_why_there_is_no_answer_is_a_row_of_its_own(status: str) -> None:
    trace = replace(WHOLE, steps=WHOLE.steps[:2], result=Result(status, message="The reason."))
    last = rows(trace)[-1]
    assert last.kind == status
    assert "The reason." in last.text
    assert "absent" not in last.text or "does not mean" in last.text


def test_an_absent_answer_has_a_row_for_its_verdict_and_its_result() -> None:
    trace = answer("opacity in the left upper zone")
    assert rows(trace)[1].text.startswith("Left upper zone: ")
    lungs, presence = trace.steps[:2]
    absent = replace(presence, verdicts=(replace(presence.verdicts[0], present=False),))
    none = replace(trace, steps=(lungs, absent, ResultStep(present=False)))
    assert [row.text for row in rows(none)] == ["Lung", "Left upper zone: absent", "Result: opacity absent"]


# Pictures ------------------------------------------------------------------------------------------------------


def test_a_picture_shows_what_stood_after_each_step() -> None:
    masks = Masks()
    seen: list[tuple[int, int, int]] = []
    for k in range(-1, len(WHOLE.steps)):
        picture = picture_at(WHOLE, k, masks)
        union = np.zeros(SIZE, bool)
        for component in range(3):
            last = [s.mask.array for s in WHOLE.steps[: k + 1] if isinstance(s, MaskStep) and s.component == component]
            union |= last[-1] if last else False
        assert (picture.mask is None) == (k < 3)
        assert picture.mask is None or ((picture.mask == union).all() and not picture.mask.flags.writeable)
        assert picture.step == k
        seen.append(
            (
                sum(b.role == "lung" for b in picture.boxes),
                sum(b.role == "lesion" for b in picture.boxes),
                len(picture.clicks),
            )
        )
    assert seen[:4] == [(0, 0, 0), (2, 0, 0), (2, 0, 0), (2, 3, 0)]
    assert seen[-1] == (2, 3, 6)
    assert (picture_at(WHOLE, len(WHOLE.steps) - 1).mask == WHOLE.steps[-1].mask.array).all()


def test_a_picture_says_which_step_it_shows() -> None:
    assert picture_at(WHOLE, 0).title == f"Step 1 of {len(WHOLE.steps)}: lungs"
    assert "click 1, positive" in picture_at(WHOLE, CHEST[0]).title
    assert picture_at(WHOLE, -1).title == ""


def test_equal_pictures_are_equal_and_others_are_not() -> None:
    assert picture_at(WHOLE, 5) == picture_at(WHOLE, 5)
    assert picture_at(WHOLE, 5) != picture_at(WHOLE, 6)
    assert picture_at(WHOLE, 3) != picture_at(WHOLE, 4)


def test_stepping_through_a_large_image_costs_little() -> None:
    size = (3000, 3000)
    rows_, columns = np.ogrid[: size[0], : size[1]]

    def disc(radius: int) -> Mask:
        return Mask.of((rows_ - 1500) ** 2 + (columns - 900) ** 2 < radius**2)

    boxes = BoxesStep(boxes=(replace(WHOLE.last(BoxesStep).boxes[0], box=Box(0.1, 0.2, 0.5, 0.8)),))
    made = [MaskStep(component=0, turn=turn, mask=disc(700 + 10 * turn)) for turn in range(5)]
    image = ImageRecord("0" * 64, "png", size)
    trace = replace(WHOLE, image=image, steps=(*WHOLE.steps[:2], boxes, *made), result=None)
    masks = Masks()
    masks.prepare(trace)
    spent = []
    for k in range(len(trace.steps)):
        began = time.perf_counter()
        picture_at(trace, k, masks)
        rows(trace, masks)
        spent.append(time.perf_counter() - began)
    assert statistics.median(spent) < 0.05


# Edits ---------------------------------------------------------------------------------------------------------


def test_a_moved_lung_box_replays_everything() -> None:
    edit = steps.lung_moved(WHOLE, 0, 1, Box(0.5, 0.1, 0.9, 0.5))
    assert edit.sentence == "left lung moved"
    trace = replayed(WHOLE, edit)
    assert trace.steps[0].origin == "user"
    assert trace.steps[0].lungs[1].confidence is None
    assert len(trace.last(BoxesStep).boxes) == 2, "the lower disc lies below the box now"
    assert (trace.branch_of.trace, trace.branch_of.step) == (WHOLE.id, 0)


def test_a_turned_verdict_replays_the_boxes() -> None:
    absent = replayed(WHOLE, steps.verdict_flipped(WHOLE, 1, "left lung"))
    assert [box.region for box in absent.last(BoxesStep).boxes] == ["right lung"]
    none = replayed(absent, steps.verdict_flipped(absent, 1, "right lung"))
    assert none.result.status == "absent"
    again = replayed(none, steps.verdict_flipped(none, 1, "left lung"))
    assert [box.region for box in again.last(BoxesStep).boxes] == ["left lung", "left lung"]
    assert steps.verdict_flipped(none, 1, "left lung").sentence == "left lung turned to present"


def test_a_moved_lesion_box_leaves_the_other_components_alone() -> None:
    moved = Box(0.6, 0.2, 0.8, 0.4)
    trace = replayed(WHOLE, steps.box_moved(WHOLE, 2, 1, moved))
    assert trace.last(BoxesStep).boxes[1].box == moved
    assert of(trace, 0) == of(WHOLE, 0)
    assert of(trace, 2) == of(WHOLE, 2)
    assert trace.result.status == "present"


def test_a_box_can_be_added_and_removed() -> None:
    more = replayed(WHOLE, steps.box_added(WHOLE, 2, Box(0.15, 0.7, 0.3, 0.85)))
    assert [box.region for box in more.last(BoxesStep).boxes] == ["right lung", "left lung", "left lung", "right lung"]
    assert [of(more, c) for c in range(3)] == [of(WHOLE, c) for c in range(3)]
    less = replayed(more, steps.box_removed(more, 2, 0))
    assert [of(less, c)[0].mask for c in (0, 1)] == [of(WHOLE, c)[0].mask for c in (1, 2)]
    assert len(less.last(BoxesStep).boxes) == 3


def test_what_would_contradict_a_verdict_is_not_offered_and_the_reason_says_what_to_do() -> None:
    with pytest.raises(NotOffered, match="only box for the right lung, which is judged present; turn that verdict"):
        steps.box_removed(WHOLE, 2, 0)
    right = replayed(WHOLE, steps.verdict_flipped(WHOLE, 1, "left lung"))
    with pytest.raises(NotOffered, match="left lung is judged absent; turn that verdict to present first"):
        steps.box_added(right, 2, Box(0.6, 0.2, 0.8, 0.4))
    with pytest.raises(NotOffered, match="left lung is judged absent"):
        steps.box_moved(right, 2, 0, Box(0.6, 0.2, 0.8, 0.4))
    with pytest.raises(NotOffered, match="would leave the right lung"):
        steps.box_moved(WHOLE, 2, 0, Box(0.6, 0.4, 0.8, 0.6))


def test_a_box_that_is_dragged_to_the_other_lung_belongs_to_it() -> None:
    trace = replayed(WHOLE, steps.box_moved(WHOLE, 2, 1, Box(0.15, 0.2, 0.3, 0.4)))
    assert [box.region for box in trace.last(BoxesStep).boxes] == ["right lung", "right lung", "left lung"]


@pytest.mark.parametrize("polarity", ["positive", "negative"])
def test_a_click_can_be_added_after_any_mask(polarity: str) -> None:
    for k in places(WHOLE, MaskStep):
        mask = WHOLE.steps[k]
        edit = steps.click_added(WHOLE, k, mask.component, polarity, Point(0.5, 0.5))
        trace = replayed(WHOLE, edit)
        click = next(s for s in of(trace, mask.component) if isinstance(s, ClickStep) and s.turn == mask.turn + 1)
        assert (click.origin, click.click.polarity) == ("user", polarity)
        others = {0, 1, 2} - {mask.component}
        assert all(of(trace, c) == of(WHOLE, c) for c in others)
        assert trace.result.status == "present"


def test_a_click_goes_on_an_answer_that_was_cut_off() -> None:
    cut = replace(WHOLE, steps=WHOLE.steps[:6], result=None)
    edit = steps.click_added(cut, 5, 2, "positive", Point(0.7, 0.8))
    assert edit.k == 6
    assert of(replayed(cut, edit), 2)[1].origin == "user"


def test_no_click_without_a_mask() -> None:
    with pytest.raises(NotOffered, match="no mask at this step; select a mask"):
        steps.click_added(WHOLE, 2, 0, "positive", Point(0.5, 0.5))
    one_stage = answer(stages=1)
    with pytest.raises(NotOffered, match="draw a mask and continue from it"):
        steps.click_added(one_stage, len(one_stage.steps) - 1, 0, "positive", Point(0.5, 0.5))


def test_a_moved_click_is_the_users_and_what_follows_on_its_component_is_decided_anew() -> None:
    k = places(WHOLE, ClickStep, 1)[0]
    trace = replayed(WHOLE, steps.click_moved(WHOLE, k, Point(0.62, 0.3)))
    clicks = [s for s in of(trace, 1) if isinstance(s, ClickStep)]
    assert (clicks[0].origin, clicks[0].click.point) == ("user", Point(0.62, 0.3))
    assert clicks[1].origin == "model"
    assert of(trace, 2) == of(WHOLE, 2)


def test_a_deleted_click_is_gone_and_the_later_ones_are_carried_out_without_it() -> None:
    first, second = places(WHOLE, ClickStep, 0)
    kept = WHOLE.steps[second].click
    trace = replayed(WHOLE, steps.click_deleted(WHOLE, first))
    mask, click, after, stop = of(trace, 0)
    assert mask == WHOLE.steps[3]
    assert (click.click, click.turn, click.origin) == (kept, 1, "model")
    assert after.mask.array[kept.point.pixel(SIZE)]
    assert (
        not after.mask.array[WHOLE.steps[first].click.point.pixel(SIZE)]
        or mask.mask.array[WHOLE.steps[first].click.point.pixel(SIZE)]
    )
    assert (stop.reason, stop.origin) == ("user", "user")
    last = replayed(WHOLE, steps.click_deleted(WHOLE, second))
    assert [s.kind for s in of(last, 0)] == ["mask", "click", "mask", "stop"]
    assert of(last, 0)[:3] == of(WHOLE, 0)[:3]


def test_a_click_before_a_drawn_mask_is_not_deleted_under_it() -> None:
    drawn = continue_from_mask(WHOLE, 0, Mask.of(LUNG_BOXES["right lung"].mask(SIZE)), revise=False)
    with pytest.raises(NotOffered, match="A mask was drawn after this click"):
        steps.click_deleted(drawn, places(drawn, ClickStep, 0)[0])


def test_clicks_can_be_ended_after_any_mask_that_one_follows() -> None:
    k = places(WHOLE, MaskStep, 0)[0]
    trace = replayed(WHOLE, steps.stopped(WHOLE, k, 0))
    assert [s.kind for s in of(trace, 0)] == ["mask", "stop"]
    with pytest.raises(NotOffered, match="No click follows"):
        steps.stopped(WHOLE, places(WHOLE, MaskStep, 0)[-1], 0)


def test_nothing_is_offered_for_what_is_not_there_or_did_not_move() -> None:
    for edit in (
        lambda: steps.lung_moved(WHOLE, 1, 0, Box(0, 0, 1, 1)),
        lambda: steps.lung_moved(WHOLE, 0, 2, Box(0, 0, 1, 1)),
        lambda: steps.lung_moved(WHOLE, 0, 0, WHOLE.steps[0].lungs[0].box),
        lambda: steps.box_moved(WHOLE, 2, 0, WHOLE.steps[2].boxes[0].box),
        lambda: steps.box_moved(WHOLE, 2, 9, Box(0, 0, 1, 1)),
        lambda: steps.verdict_flipped(WHOLE, 1, "heart"),
        lambda: steps.click_moved(WHOLE, CHEST[0], WHOLE.steps[CHEST[0]].click.point),
        lambda: steps.click_deleted(WHOLE, 99),
        lambda: steps.drawn(WHOLE, {}),
        lambda: steps.drawn(WHOLE, {7: Mask.of(np.ones(SIZE, bool))}),
        lambda: steps.divided(WHOLE, np.ones((3, 3), bool)),
        lambda: steps.divided(replace(WHOLE, steps=WHOLE.steps[:2], result=None), np.ones(SIZE, bool)),
    ):
        with pytest.raises(NotOffered):
            edit()


def test_what_is_offered_at_a_step_is_said_with_reasons() -> None:
    at_boxes, at_click = steps.offers(WHOLE, 2), steps.offers(WHOLE, CHEST[0])
    assert at_boxes.flips == ("right lung", "left lung")
    assert "select a mask" in at_boxes.add_click
    assert "turn that verdict to absent" in at_boxes.remove_box
    assert at_boxes.add_box == ""
    assert at_click.add_click == at_click.delete_click == at_click.draw == ""
    early = steps.offers(replace(WHOLE, steps=WHOLE.steps[:1], result=None), 0)
    assert early.flips == ()
    assert "turn a verdict to present" in early.add_box and "no mask yet" in early.draw
    assert steps.offers(replace(WHOLE, steps=(), result=None), -1).flips == ()


def test_a_click_finds_the_component_that_is_meant() -> None:
    end = len(WHOLE.steps) - 1
    assert [steps.component_at(WHOLE, end, Point(x, y)) for x, y, _ in DISCS] == [0, 1, 2]
    assert steps.component_at(WHOLE, end, Point(0.7, 0.45)) == 1
    assert steps.component_at(WHOLE, CHEST[0], Point(0.75, 0.7)) == 0, "a selected component is meant"
    assert steps.component_at(WHOLE, 2, Point(0.5, 0.5)) is None


# A drawn mask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revise", [True, False])
@pytest.mark.parametrize("component", [0, 2])
def test_going_on_from_a_drawn_mask_is_what_the_engine_makes_of_it(component: int, revise: bool) -> None:
    mask = Mask.of(LUNG_BOXES["left lung"].mask(SIZE))
    assert steps.drawn(WHOLE, {component: mask}, revise=revise) == continue_from_mask(
        WHOLE, component, mask, revise=revise
    )


def test_a_mask_of_all_components_is_divided_among_those_that_it_changes() -> None:
    whole = WHOLE.steps[-1].mask.array.copy()
    assert steps.divided(WHOLE, whole) == {}
    edited = whole.copy()
    edited[100:104, 175:180] = True  # beside the lower disc of the left lung
    edited[:, : SIZE[1] // 2] = False  # the right lung's is erased
    parts = steps.divided(WHOLE, edited)
    assert set(parts) == {0, 2}
    assert parts[0].area == 0
    kept = of(WHOLE, 1)[-2].mask.array
    assert ((parts[2].array | kept) == edited).all()
    trace = ran(steps.drawn(WHOLE, parts, revise=False))
    assert (trace.steps[-1].mask.array == edited).all()
    assert of(trace, 1) == of(WHOLE, 1)


# Any sequence --------------------------------------------------------------------------------------------------


def offered(trace: Trace, chance: random.Random) -> Edit | None:
    """Some edit, offered or not, with places of all kinds: None when it is not."""
    boxes = trace.last(BoxesStep)
    x, y = sorted(chance.sample(range(21), 2)), sorted(chance.sample(range(21), 2))
    box = Box(x[0] / 20, y[0] / 20, x[1] / 20, y[1] / 20)
    point = Point(chance.random(), chance.random())
    k = chance.randrange(len(trace.steps))
    region = chance.choice(trace.last(PresenceStep).verdicts).region
    component = chance.randrange(len(boxes.boxes) if boxes else 1)
    step = trace.steps[k]
    choices = [
        lambda: steps.lung_moved(trace, 0, chance.randrange(2), box),
        lambda: steps.verdict_flipped(trace, 1, region),
        lambda: steps.box_moved(trace, steps.boxes_at(trace), component, box),
        lambda: steps.box_added(trace, steps.boxes_at(trace), box),
        lambda: steps.box_removed(trace, steps.boxes_at(trace), component),
        lambda: steps.click_added(trace, k, component, chance.choice(["positive", "negative"]), point),
        lambda: steps.click_moved(trace, k, point),
        lambda: steps.click_deleted(trace, k),
        lambda: steps.stopped(trace, k, component),
    ]
    weights = [1, 1, 3, 3, 3, 6, 6 if isinstance(step, ClickStep) else 1, 6 if isinstance(step, ClickStep) else 1, 3]
    try:
        return chance.choices(choices, weights)[0]()
    except NotOffered as problem:
        assert str(problem).endswith(".")
        return None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_any_sequence_of_offered_edits_is_taken_by_the_engine(seed: int) -> None:
    chance = random.Random(seed)
    trace = answer(chance.choice(["opacity", "opacity in the left lung", "opacity in the left and right base"]))
    masks = Masks()
    for _ in range(4):
        if chance.random() < 0.3:  # it was cancelled somewhere
            trace = replace(trace, steps=trace.steps[: chance.randint(2, len(trace.steps))], result=None)
        edit = offered(trace, chance)
        if edit is None:
            continue
        replace_step(trace, edit.k, edit.step)
        branch = steps.branch(trace, edit)
        check_steps(branch)
        shown = steps.previewed(trace, edit)
        rows(shown, masks)
        picture_at(shown, len(shown.steps) - 1, masks)
        try:
            new = replayed(trace, edit)
        except EngineError:
            continue  # the phantom finds nothing in some boxes; a model may fail, and no edit is refused
        check_steps(new)
        assert new.branch_of is not None and new.branch_of.trace == trace.id
        for k in range(len(new.steps)):
            steps.offers(new, k)
        trace = new
