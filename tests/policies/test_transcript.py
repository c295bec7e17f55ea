"""The transcript grammar: what is written is read back exactly, and nothing else is read at all."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xflow_core.domain.errors import EngineError, ValueRefused
from xflow_core.domain.findings import FINDINGS, LUNGS
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.trace import Click, GroundedLung, Verdict
from xflow_core.policies.protocols import Done
from xflow_core.policies.transcript import (
    Answer,
    SquareFrame,
    TranscriptError,
    boxes_2d_plan,
    boxes_plan,
    lungs_plan,
    read_answer,
    read_boxes_2d,
    read_click,
    regions_of_boxes,
    write,
    write_boxes,
    write_click,
    write_lungs,
    write_verdicts,
)

EXAMPLE = """<think>
<|ref_start|>right lung<|ref_end|><|box_start|>(120,90),(450,800)<|box_end|>
<|ref_start|>left lung<|ref_end|><|box_start|>(550,95),(880,790)<|box_end|>
right lung: absent
left lung: present
</think>
<|ref_start|>effusion<|ref_end|><|box_start|>(560,600),(870,790)<|box_end|>"""
SQUARE = SquareFrame((2000, 2000))
ASKED = {"finding": "effusion", "lungs": LUNGS, "regions": LUNGS, "frame": SQUARE}

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
sizes = st.tuples(st.integers(20, 4000), st.integers(20, 4000)).filter(lambda size: max(size) < 20 * min(size))
frames = st.builds(SquareFrame, sizes, st.sampled_from([1000, 1000, 896, 1024, 200]))


@st.composite
def boxes(draw: st.DrawFn, frame: SquareFrame) -> Box:
    """A box whose edges lie on the frame's numbers, as every box does that a transcript gave."""
    (low_x, low_y), (high_x, high_y) = frame.lows, frame.highs
    x1, y1 = draw(st.integers(low_x, high_x - 1)), draw(st.integers(low_y, high_y - 1))
    return frame.box(x1, y1, draw(st.integers(x1 + 1, high_x)), draw(st.integers(y1 + 1, high_y)))


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, Answer, dict[str, object]]:
    frame = draw(frames)
    finding = draw(st.sampled_from([name for name in FINDINGS if name != "cardiomegaly"]))
    lungs = draw(st.sampled_from([LUNGS, LUNGS[:1], LUNGS[1:]]))
    regions = draw(st.sampled_from([lungs, tuple(f"{lung.split()[0]} lung base" for lung in lungs)]))
    grounded = tuple(GroundedLung(lung, draw(boxes(frame))) for lung in lungs)
    verdicts = tuple(Verdict(region, draw(st.booleans())) for region in regions)
    present = any(verdict.present for verdict in verdicts)
    lesions = tuple(draw(st.lists(boxes(frame), min_size=1, max_size=3))) if present else ()
    pieces = [*write_lungs(grounded, frame), *write_verdicts(verdicts), *write_boxes(finding, lesions, frame)]
    asked = {"finding": finding, "lungs": lungs, "regions": regions, "frame": frame}
    return "".join(pieces), Answer(grounded, verdicts, lesions), asked


def written(answer: Answer, asked: dict[str, object]) -> str:
    frame, finding = asked["frame"], asked["finding"]
    assert isinstance(frame, SquareFrame) and isinstance(finding, str)
    lungs, verdicts = write_lungs(answer.lungs, frame), write_verdicts(answer.verdicts)
    return "".join([*lungs, *verdicts, *write_boxes(finding, answer.boxes, frame)])


def test_the_designs_example_is_read_and_written():
    answer = read_answer(EXAMPLE, **ASKED)
    assert [lung.label for lung in answer.lungs] == list(LUNGS)
    assert answer.lungs[0].box == Box(0.12, 0.09, 0.45, 0.8)
    assert answer.verdicts == (Verdict("right lung", False), Verdict("left lung", True))
    assert answer.boxes == (Box(0.56, 0.6, 0.87, 0.79),)
    assert written(answer, ASKED) == EXAMPLE


@UNHURRIED
@given(answers())
def test_a_first_stage_transcript_is_read_back_exactly(case: tuple[str, Answer, dict[str, object]]):
    text, answer, asked = case
    assert read_answer(text, **asked) == answer  # type: ignore[arg-type]


@UNHURRIED
@given(st.data(), frames, st.sampled_from(["positive", "negative"]))
def test_a_click_is_read_back_exactly(data: st.DataObject, frame: SquareFrame, polarity: str):
    x = data.draw(st.integers(frame.lows[0], frame.highs[0]))
    y = data.draw(st.integers(frame.lows[1], frame.highs[1]))
    click = Click(polarity, frame.point(x, y))
    assert read_click("".join(write_click(click, frame)), frame) == click
    assert read_click("".join(write_click(Done(), frame)), frame) == Done()


@UNHURRIED
@given(st.data(), frames)
def test_numbers_are_the_exact_inverse_of_places(data: st.DataObject, frame: SquareFrame):
    x1 = data.draw(st.integers(frame.lows[0], frame.highs[0] - 1))
    y1 = data.draw(st.integers(frame.lows[1], frame.highs[1] - 1))
    x2 = data.draw(st.integers(x1 + 1, frame.highs[0]))
    y2 = data.draw(st.integers(y1 + 1, frame.highs[1]))
    assert frame.numbers_of_box(frame.box(x1, y1, x2, y2)) == (x1, y1, x2, y2)
    assert frame.numbers_of_point(frame.point(x1, y2)) == (x1, y2)


@UNHURRIED
@given(frames, st.floats(0, 1), st.floats(0, 1))
def test_a_place_is_written_to_half_a_step(frame: SquareFrame, x: float, y: float):
    back = frame.point(*frame.numbers_of_point(Point(x, y)))
    half = 0.5 / frame.grid * frame.side
    assert abs(back.x - x) * frame.size[1] <= half * (1 + 1e-6)
    assert abs(back.y - y) * frame.size[0] <= half * (1 + 1e-6)


def test_a_wide_picture_lies_in_the_middle_of_its_square():
    frame = SquareFrame((1000, 2000))
    assert (frame.margins, frame.lows, frame.highs) == ((0, 500), (0, 250), (1000, 750))
    assert frame.point(500, 500) == Point(0.5, 0.5)
    assert frame.box(0, 250, 1000, 750) == Box(0, 0, 1, 1)


def test_a_lesion_thinner_than_a_step_is_one_step_long():
    assert SQUARE.numbers_of_box(Box(0.5, 0.5, 0.50001, 0.50001)) == (500, 500, 501, 501)
    assert SQUARE.numbers_of_box(Box(0.99999, 0.2, 1.0, 0.3)) == (999, 200, 1000, 300)


def test_a_picture_too_narrow_for_two_numbers_is_refused():
    with pytest.raises(ValueRefused, match="too narrow"):
        SquareFrame((3000, 2))


@settings(UNHURRIED, max_examples=150)
@given(st.data())
def test_a_mutated_transcript_is_refused_or_is_another_whole_one(data: st.DataObject):
    """No repair, no guess: whatever is accepted is the very text that its decisions are written as."""
    text, _, asked = data.draw(answers())
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(at + 12, len(text))))
    mutated = text[:at] + data.draw(st.text(st.sampled_from("0123456789(),<|>:\n abpt-"), max_size=4)) + text[end:]
    try:
        answer = read_answer(mutated, **asked)  # type: ignore[arg-type]
    except TranscriptError as problem:
        assert 0 <= problem.position <= len(mutated)
        assert problem.text == mutated and repr(mutated) in str(problem)
    else:
        assert written(answer, asked) == mutated


@settings(UNHURRIED, max_examples=150)
@given(st.text(max_size=60) | st.text(st.sampled_from("<think>/+-|_box0123456789(),done \n[]{}\"'")))
def test_any_text_is_read_or_refused_and_never_crashes(text: str):
    for attempt in (
        lambda: read_answer(text, **ASKED),
        lambda: read_click(text, SQUARE),
        lambda: read_boxes_2d(text, SQUARE),
    ):
        try:
            attempt()
        except TranscriptError as problem:
            assert isinstance(problem, EngineError)


@pytest.mark.parametrize(
    ("change", "position", "why"),
    [
        (("left lung: present", "left lung: perhaps"), " perhaps", "' absent' or ' present'"),
        (("(120,90)", "(0120,90)"), "120,90", "',' must follow"),
        (("(120,90)", "(460,90)"), "450,800", "must lie from 461 to 1000"),
        (("(120,90)", "(1200,90)"), "1200", "must lie from 0 to 999"),
        (("(120,90)", "(" + "9" * 5000 + ",90)"), "9" * 5000, "must lie from 0 to 999"),
        (
            ("<|ref_start|>left lung", "<|ref_start|>right lung"),
            "<|ref_start|>right lung<|ref_end|><|box_start|>(550",
            "must",
        ),
        (("<|ref_start|>effusion", "<|ref_start|>edema"), "<|ref_start|>edema", "effusion"),
        ((EXAMPLE[EXAMPLE.index("</think>") :], "</think>\nabsent"), "absent", "<|ref_start|>effusion"),
        (("left lung: present", "left lung: absent"), "<|ref_start|>effusion", "'absent' must follow"),
        (("790)<|box_end|>", "790)<|box_end|> "), " ", "the end"),
    ],
)
def test_a_refusal_says_where_and_why(change: tuple[str, str], position: str, why: str):
    before, _, after = EXAMPLE.rpartition(change[0])
    text = before + change[1] + after
    with pytest.raises(TranscriptError) as refused:
        read_answer(text, **ASKED)
    assert why in refused.value.why
    assert refused.value.position == text.rindex(position)


def test_a_refusal_comes_back_whole_from_another_process():
    with pytest.raises(TranscriptError) as refused:
        read_click("perhaps", SQUARE)
    back = pickle.loads(pickle.dumps(refused.value))
    assert (str(back), back.text, back.position) == (str(refused.value), "perhaps", 0)


@pytest.mark.parametrize("text", ["done.", "done\n", "<think>x</think>+<|point_start|>(5,5)<|point_end|>."])
def test_words_after_the_end_are_refused(text: str):
    with pytest.raises(TranscriptError, match="too much"):
        read_click(text, SQUARE)


def test_numbers_in_the_black_margin_are_refused():
    frame = SquareFrame((1000, 2000))
    text = "<think>x</think>+<|point_start|>(500,100)<|point_end|>"
    with pytest.raises(TranscriptError, match="must lie from 250 to 750"):
        read_click(text, frame)


def test_a_decision_that_cannot_stand_is_not_written():
    with pytest.raises(ValueRefused):
        write(lungs_plan(["right lung"], SQUARE), ["500", "500", "400", "600"])
    with pytest.raises(ValueRefused):
        write(lungs_plan(["right lung"], SQUARE), ["500"])


def test_each_region_judged_present_gets_a_box():
    """The grammar's end is allowed only then; a second box of a region may stand before the next region's."""
    bands = [Box(0.1, 0.1, 0.4, 0.9), Box(0.6, 0.1, 0.9, 0.9)]
    right, left = ["150", "200", "300", "400"], ["650", "200", "800", "400"]
    whole = write(boxes_plan("effusion", SQUARE, bands=bands), [*right, "\n", *right, "\n", *left, ""])
    assert "".join(whole).count("effusion") == 3
    with pytest.raises(ValueRefused):
        write(boxes_plan("effusion", SQUARE, bands=bands), [*right, ""])
    with pytest.raises(ValueRefused):
        write(boxes_plan("effusion", SQUARE, bands=bands), left)
    with pytest.raises(ValueRefused):
        write(boxes_plan("effusion", SQUARE, bands=bands, most=1), [*right, "\n", *right, "\n"])


def test_a_box_belongs_to_the_region_that_it_overlaps_in_the_order_of_writing():
    bands = [Box(0.1, 0.1, 0.4, 0.9), Box(0.6, 0.1, 0.9, 0.9)]
    right, left, between = Box(0.1, 0.2, 0.3, 0.4), Box(0.6, 0.2, 0.8, 0.4), Box(0.45, 0.2, 0.5, 0.4)
    assert regions_of_boxes([right, right, left], bands) == (0, 0, 1)
    assert regions_of_boxes([left], bands) == (1,)
    assert regions_of_boxes([between], bands) == (0,)


@UNHURRIED
@given(st.data(), frames)
def test_medgemmas_own_boxes_are_read_as_it_writes_them(data: st.DataObject, frame: SquareFrame):
    box = data.draw(boxes(frame))
    x1, y1, x2, y2 = map(str, frame.numbers_of_box(box))
    text = "".join(write(boxes_2d_plan(["right lung"], frame), [y1, x1, y2, x2]))
    assert json.loads(text)[0]["box_2d"] == [int(y1), int(x1), int(y2), int(x2)]
    assert read_boxes_2d(text, frame) == (("right lung", box),)
    thinking = f'<unused94>thought\nThe lung, [{{"box_2d": [1, 2, 3, 4]}}]?<unused95>\n```json\n{text}\n```'
    assert read_boxes_2d(thinking, frame) == (("right lung", box),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I see no lung.",
        '{"box_2d": [1, 2, 3, 4], "label": "lung"}',
        '[{"box_2d": [1, 2, 3], "label": "lung"}]',
        '[{"box_2d": [1, 2, 3, 4.5], "label": "lung"}]',
        '[{"box_2d": [1, 2, 3, true], "label": "lung"}]',
        '[{"box_2d": [100, 200, 50, 300], "label": "lung"}]',
        '[{"box_2d": [1, 2, 3, 1001], "label": "lung"}]',
        '[{"box_2d": [1, 2, 3, 4]}]',
        '[{"box_2d": [1, 2, 3, 4], "label": "lung"}] and more',
        '<unused94>thinking without an end [{"box_2d": [1, 2, 3, 4], "label": "lung"}]',
    ],
)
def test_what_is_no_list_of_boxes_is_refused(text: str):
    with pytest.raises(TranscriptError):
        read_boxes_2d(text, SQUARE)


def test_a_base_models_box_is_cut_at_the_pictures_edge():
    frame = SquareFrame((1000, 2000))
    assert read_boxes_2d('[{"box_2d": [0, 100, 500, 200], "label": "lung"}]', frame) == (
        ("lung", Box(0.1, 0, 0.2, 0.5)),
    )
    assert read_boxes_2d("[]", frame) == ()
    with pytest.raises(TranscriptError, match="nothing of the picture"):
        read_boxes_2d('[{"box_2d": [0, 100, 200, 200], "label": "lung"}]', frame)
