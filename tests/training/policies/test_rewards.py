"""What the policies' rewards pay, at their edges and on the training distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from training.curation.paper import read_settings
from training.policies.rewards import box_reward, format_reward, gain_reward, paired_iou, repetition_reward
from training.policies.targets import InitTarget
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.findings import verdict_regions
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import Verdict
from xflow_core.policies.transcript import Answer, SquareFrame, read_answer

LUNGS = {"right lung": Box(0.1, 0.1, 0.45, 0.9), "left lung": Box(0.55, 0.1, 0.9, 0.9)}
A, B = Box(0.6, 0.2, 0.8, 0.4), Box(0.6, 0.6, 0.8, 0.8)


def row(regions: tuple[str, ...], present: dict[str, bool], boxes: list[Box] | None) -> dict[str, Any]:
    return {
        "id": "s1",
        "finding": "opacity",
        "lungs": [{"label": label, "box": box.to_json()} for label, box in LUNGS.items()],
        "grounded": ["left lung"],
        "verdicts": [{"region": region, "present": present[region]} for region in verdict_regions(regions)],
        "boxes": None if boxes is None else [box.to_json() for box in boxes],
    }


def target(*boxes: Box) -> InitTarget:
    return InitTarget.of_row(row(("left lung",), {"left lung": bool(boxes)}, list(boxes)))


def answer(*boxes: Box) -> Answer:
    return Answer((), (Verdict("left lung", bool(boxes)),), boxes)


def test_one_box_on_each_side_pays_the_papers_iou() -> None:
    near = Box(0.6, 0.2, 0.8, 0.35)
    assert box_reward(answer(near), target(A)) == pytest.approx(near.iou(A))
    assert box_reward(answer(A), target(A)) == pytest.approx(1)


def test_a_right_absent_pays_one_a_false_alarm_nothing_and_a_miss_costs_one() -> None:
    assert box_reward(answer(), target()) == 1
    assert box_reward(answer(A), target()) == 0
    assert box_reward(answer(), target(A)) == -1


def test_what_cannot_be_read_pays_least_whatever_the_truth() -> None:
    for truth in (target(), target(A)):
        for said in (answer(), answer(A), answer(A, B)):
            readable = box_reward(said, truth) + format_reward(True) + repetition_reward(said, "")
            assert box_reward(None, truth) + format_reward(False) + repetition_reward(None, "x\n") < readable


def test_several_boxes_are_paired_one_to_one_in_any_order() -> None:
    assert paired_iou([B, A], [A, B]) == 1
    assert paired_iou([A], [A, B]) == 0.5
    assert paired_iou([A, B], [A]) == 0.5
    assert paired_iou([], []) == 1
    assert paired_iou([A], []) == paired_iou([], [A]) == 0


def test_a_box_that_is_repeated_or_split_never_pays() -> None:
    halves = (Box(0.6, 0.2, 0.8, 0.3), Box(0.6, 0.3, 0.8, 0.4))
    assert box_reward(answer(*halves), target(A)) < box_reward(answer(halves[0]), target(A)) + 1e-9
    assert box_reward(answer(A, A), target(A)) == 0.5
    assert repetition_reward(answer(A, A), "") == -0.5
    assert repetition_reward(answer(A, A, A, B), "") == -0.5
    assert repetition_reward(answer(A, B), "") == 0
    assert repetition_reward(answer(), "") == 0


def test_a_text_that_goes_round_in_circles_loses_by_its_repeated_lines() -> None:
    assert repetition_reward(None, "a\na\na\nb") == -0.5
    assert repetition_reward(None, "a\nb") == 0
    assert repetition_reward(None, "") == 0


def test_each_region_is_judged_by_itself() -> None:
    truth = InitTarget.of_row(row(("chest",), {"right lung": False, "left lung": True}, [A]))
    both = (Verdict("right lung", True), Verdict("left lung", True))
    right = Box(0.2, 0.2, 0.4, 0.4)
    assert box_reward(Answer((), both, (right, A)), truth) == 0.5  # a false alarm, a perfect box
    one = (Verdict("right lung", False), Verdict("left lung", True))
    assert box_reward(Answer((), one, (A,)), truth) == 1
    other = (Verdict("right lung", True), Verdict("left lung", False))
    assert box_reward(Answer((), other, (right,)), truth) == -0.5  # a false alarm and a miss
    # Present, but with its only box in another region.
    assert box_reward(Answer((), both, (right, right)), truth) == 0


def test_a_component_that_fills_two_zones_gives_each_a_box_that_the_decoder_can_write() -> None:
    regions = ("left mid zone lung", "left lung base")
    tall = Box(0.6, 0.45, 0.8, 0.85)
    truth = InitTarget.of_row(row(regions, dict.fromkeys(regions, True), [tall]))
    assert set(truth.owners) == {0, 1} and tall in truth.boxes
    frame = SquareFrame((300, 240))
    text = "".join(truth.pieces(frame))
    said = read_answer(text, finding="opacity", lungs=["left lung"], regions=regions, frame=frame)
    assert box_reward(said, truth) == pytest.approx(1, abs=0.05)


def test_rows_that_no_decoder_could_answer_are_refused_by_name() -> None:
    zones = ("left upper zone lung", "left lung base")
    with pytest.raises(ValueRefused, match="s1"):
        InitTarget.of_row(row(zones, dict.fromkeys(zones, True), [Box(0.6, 0.75, 0.8, 0.85)]))
    with pytest.raises(ValueRefused, match="masks"):
        InitTarget.of_row(row(("left lung",), {"left lung": True}, None))


def test_gain_is_the_whole_trajectorys_and_stopping_at_once_gains_nothing() -> None:
    truth = np.zeros((10, 10), bool)
    truth[:, :5] = True
    poor = np.zeros_like(truth)
    poor[:, :2] = True
    assert gain_reward(poor, truth, truth) == pytest.approx(0.6)
    assert gain_reward(truth, poor, truth) == pytest.approx(-0.6)
    assert gain_reward(poor, poor, truth) == 0
    empty = np.zeros_like(truth)
    assert gain_reward(poor, empty, truth) == pytest.approx(-0.4)
    assert gain_reward(empty, empty, empty) == 0


# On the training distribution: Table 6's positives and negatives of D_RL ------------------------------------------


def lesions(rng: np.random.Generator) -> tuple[Box, ...]:
    """One or two lesions of a lung, each a tenth to a half of its height."""
    found = []
    for top, bottom in ((0.1, 0.5), (0.5, 0.9))[: 1 + int(rng.random() < 0.2)]:
        height, width = rng.uniform(0.08, bottom - top), rng.uniform(0.1, 0.35)
        x, y = rng.uniform(0.55, 0.9 - width), rng.uniform(top, bottom - height)
        found.append(Box(x, y, x + width, y + height))
    return tuple(found)


def blurred(box: Box, rng: np.random.Generator) -> Box:
    """A poor box: every edge off by up to 60 % of the box's side; an IoU of about 0.4."""
    dx, dy = 0.6 * box.width, 0.6 * box.height
    x1, x2 = sorted((box.x1 + rng.uniform(-dx, dx), box.x2 + rng.uniform(-dx, dx)))
    y1, y2 = sorted((box.y1 + rng.uniform(-dy, dy), box.y2 + rng.uniform(-dy, dy)))
    return Box(max(x1, 0), max(y1, 0), min(x2 + 0.01, 1), min(y2 + 0.01, 1))


def test_no_degenerate_answer_beats_a_poor_but_honest_one_in_expectation() -> None:
    table = read_settings().table_6
    share = table.init_rl_positive / (table.init_rl_positive + table.init_rl_negative)
    rng = np.random.default_rng(0)
    paid: dict[str, list[float]] = {}
    missing_is_free: dict[str, list[float]] = {}
    for _ in range(4000):
        truth = lesions(rng) if rng.random() < share else ()
        if truth:  # a recall of 70 %, a specificity of 90 %
            honest = tuple(blurred(box, rng) for box in truth) if rng.random() < 0.7 else ()
        else:
            honest = (blurred(lesions(rng)[0], rng),) if rng.random() < 0.1 else ()
        guess = (blurred(truth[0] if truth else lesions(rng)[0], rng),)
        answers = {
            "honest": honest,
            "always absent": (),
            "always the whole lung": (LUNGS["left lung"],),
            "always the honest box": guess,
            "repeated boxes": tuple(box for box in honest for _ in range(3)),
            "every zone": tuple(Box(0.55, y, 0.9, y + 0.2) for y in (0.1, 0.3, 0.5, 0.7)),
        }
        for name, boxes in answers.items():
            said, wanted = answer(*boxes), target(*truth)
            box = box_reward(said, wanted)
            paid.setdefault(name, []).append(box + format_reward(True) + repetition_reward(said, ""))
            missing_is_free.setdefault(name, []).append(max(box, 0))
    means = {name: float(np.mean(values)) for name, values in paid.items()}
    errors = {name: float(np.std(values)) / len(values) ** 0.5 for name, values in paid.items()}
    for name in set(means) - {"honest"}:
        assert means["honest"] > means[name] + 2 * (errors["honest"] + errors[name]), (name, means)
    # The test can tell: with a miss that costs nothing, always absent would have won.
    assert np.mean(missing_is_free["always absent"]) > np.mean(missing_is_free["honest"])
