"""What a person reads: every step in a line, the result in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import (
    BoxesStep,
    GroundedLung,
    LesionBox,
    LungsStep,
    PresenceStep,
    Result,
    StopStep,
    Verdict,
)
from xflow_core.export.words import (
    area_in_words,
    caption,
    confidence_in_words,
    headline,
    result_in_words,
    step_in_words,
    verdicts_in_words,
)


def test_a_run_reads_line_by_line(effusion):
    assert [step_in_words(step, effusion) for step in effusion.steps] == [
        "lungs: right lung, left lung",
        "right lung: absent (0.97); left lung: present (0.91)",
        "component 1: box in the left lung, 0.30 x 0.26 of the image (0.80)",
        "component 1: mask of 1,961 px",
        "component 1: click 1, positive at (0.75, 0.75)",
        "component 1: mask of 3,209 px after click 1",
        "component 1: click 2, negative at (0.62, 0.62)",
        "component 1: mask of 2,821 px after click 2 (note: Cut at the box of the left lung.)",
        "component 1: no further click needed",
        "result: effusion present, 2,821 px, 2,821 mm² (detector plane, uncalibrated)",
    ]


def test_a_step_is_worded_while_its_trace_is_still_empty(effusion):
    started = replace(effusion, steps=(), result=None)
    assert step_in_words(effusion.steps[-1], started) == step_in_words(effusion.steps[-1], effusion)
    assert result_in_words(started) == "No answer yet."


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("satisfied", "component 2: no further click needed"),
        ("limit", "component 2: stopped at the limit of clicks"),
        ("no_progress", "component 2: stopped, further clicks do not help"),
        ("user", "component 2: stopped by the user"),
    ],
)
def test_why_no_further_click_was_made(effusion, reason, words):
    origin = "user" if reason == "user" else "model"
    assert step_in_words(StopStep(component=1, reason=reason, origin=origin), effusion) == words


def test_what_the_user_decided_says_so_and_has_no_probability(effusion):
    lungs = LungsStep(lungs=(GroundedLung("left lung", Box(0.5, 0.1, 0.9, 0.9)),), origin="user")
    assert step_in_words(lungs, effusion) == "lungs: left lung (by the user)"
    decided = PresenceStep(verdicts=(Verdict("left lung", True),), origin="user")
    edited = replace(effusion, steps=(lungs, decided, effusion.steps[-1]))
    assert verdicts_in_words(edited) == "effusion: left lung present (decided by the user)"
    assert result_in_words(edited).startswith("Effusion is present in the left lung, as the user decided. ")
    assert "decided by the user: the lung boxes, the presence" in caption(edited)


def test_the_result_is_a_sentence_that_states_each_side(effusion, no_effusion):
    assert result_in_words(effusion) == (
        "Effusion is present in the left lung (0.91) and absent in the right lung (0.97). "
        "Segmented area: 2,821 px, 2,821 mm² (detector plane, uncalibrated)."
    )
    assert result_in_words(no_effusion) == "Effusion is absent in both lungs (right lung 0.97, left lung 0.88)."
    assert headline(effusion) == "Effusion present in the left lung"
    assert headline(no_effusion) == "Effusion absent in both lungs"
    assert verdicts_in_words(effusion) == "effusion: right lung absent (0.97), left lung present (0.91)"


def test_several_zones_are_listed(make_trace):
    zones = ("left mid zone lung", "left lung base", "right lung base")
    trace = make_trace(
        None, PresenceStep(verdicts=tuple(Verdict(zone, False) for zone in zones)), regions=zones, level="zone"
    )
    assert headline(trace) == "Effusion absent in the left mid zone lung, the left lung base and the right lung base"


def test_cardiomegaly_is_not_said_to_be_in_the_heart(make_trace):
    trace = make_trace(
        None, PresenceStep(verdicts=(Verdict("heart", False, 0.8),)), finding="cardiomegaly", regions=("heart",)
    )
    assert verdicts_in_words(trace) == "cardiomegaly: absent (0.80)"
    assert step_in_words(trace.steps[0], trace) == "cardiomegaly: absent (0.80)"
    assert result_in_words(trace) == "Cardiomegaly is absent (0.80)."
    box = BoxesStep(boxes=(LesionBox(0, "cardiomegaly", Box(0.3, 0.4, 0.7, 0.8), "heart"),))
    assert step_in_words(box, trace) == "component 1: box at the heart, 0.40 x 0.40 of the image"


def test_c26_a_failure_is_never_worded_as_an_absence(effusion, no_effusion):
    failed = replace(effusion, steps=effusion.steps[:1], result=Result("failed", message="The text did not parse."))
    assert result_in_words(failed) == (
        "No answer: the engine failed, which does not mean that effusion is absent. The text did not parse."
    )
    assert result_in_words(no_effusion).startswith("Effusion is absent")
    for status in ("refused", "unsupported"):
        words = result_in_words(replace(failed, result=Result(status, message="Why.")))
        assert words.startswith("No answer: ") and words.endswith(" Why.") and "absent" not in words


def test_c12_an_area_at_the_detector_is_called_uncalibrated(effusion):
    assert area_in_words(2821, effusion.image) == "2,821 px, 2,821 mm² (detector plane, uncalibrated)"
    assert "area: 2,821 px, 2,821 mm² (detector plane, uncalibrated)" in caption(effusion)
    patient = replace(effusion.image, spacing_kind="patient", spacing_mm=(0.1, 0.2))
    assert area_in_words(100, patient) == "100 px, 2.00 mm² (patient-calibrated spacing)"


def test_c13_without_a_spacing_nothing_is_in_millimetres(effusion):
    trace = replace(effusion, image=replace(effusion.image, spacing_mm=None, spacing_kind="none"))
    words = [step_in_words(step, trace) for step in trace.steps] + [result_in_words(trace), *caption(trace)]
    assert any("2,821 px" in line for line in words)
    assert not any("mm" in line or " cm" in line for line in words)


@pytest.mark.parametrize(
    ("confidence", "words"), [(0.914, "0.91"), (0.9999, ">0.99"), (1.0, "1.00"), (0.001, "<0.01"), (0.0, "0.00")]
)
def test_a_probability_is_not_rounded_to_certainty(confidence, words):
    assert confidence_in_words(confidence) == words


def test_the_caption_names_the_question_the_models_and_every_warning(make_trace):
    trace = make_trace(
        None,
        PresenceStep(verdicts=(Verdict("left lung", False, 0.6),), notes=("A note.",)),
        text="  Is there\nfluid?  ",
        regions=("left lung",),
        level="lung",
        warnings=("The view is not stated.",),
        stages=1,
    )
    assert caption(trace) == (
        "Asked: “Is there fluid?”",
        "effusion: left lung absent (0.60)",
        "warning: The view is not stated.",
        "notes: A note.",
        "bundle compact 0.1.0, stage 1 only, image sha256 efefefefefef",
        "in brackets: the probability that the model gave to the statement",
    )


def test_a_caption_does_not_list_boxes_without_end(make_trace):
    boxes = tuple(LesionBox(n, "effusion", Box(0.1, 0.1, 0.2, 0.2), "right lung", 0.5) for n in range(30))
    (line,) = [line for line in caption(make_trace(None, BoxesStep(boxes=boxes))) if line.startswith("lesion boxes")]
    assert line.startswith("lesion boxes: 1 right lung (0.50), 2 ") and line.endswith(", and 22 more")
