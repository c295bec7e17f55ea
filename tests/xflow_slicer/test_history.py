"""The session: answers, branches that stay, and what comes back of a saved one that is damaged."""

from __future__ import annotations

import json
import random
import re
import statistics
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from XFlowSlicerLib import steps
from XFlowSlicerLib.history import (
    Answer,
    History,
    Restored,
    Version,
    session_from_json,
    session_json,
)

from tests.xflow_slicer.phantom_answers import WHOLE, answer, replayed
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.trace import Mask, MaskStep, Result, Trace

LEFT = answer("Segment the effusion in the left lung")
EDIT = steps.verdict_flipped(WHOLE, 1, "left lung")
EDITED = replayed(WHOLE, EDIT)


def history() -> History:
    """Two questions; the first has two branches, of which the older is shown again."""
    made = History()
    for title, trace in [("as asked", WHOLE), (EDIT.sentence, EDITED), ("as asked", LEFT)]:
        made, _ = made.with_version(Version(title, trace).finished())
    return made.with_answer_selected(0).with_branch_selected(0)


HISTORY = history()
TEXT = session_json(HISTORY)
SHA256 = WHOLE.image.sha256


def restored(text: str, sha256: str | None = SHA256) -> Restored:
    return session_from_json(text, sha256)


def test_a_replay_is_a_branch_of_its_answer_and_the_old_one_stays() -> None:
    made, place = History().with_version(Version("as asked", WHOLE).finished())
    assert place == (0, 0)
    made, place = made.with_version(Version(EDIT.sentence, EDITED).finished())
    assert place == (0, 1)
    assert made.version.trace == EDITED
    assert [version.title for version in made.answer.branches] == ["as asked", "left lung turned to absent"]
    back = made.with_branch_selected(0)
    assert back.version.trace == WHOLE
    assert made.version.trace == EDITED, "histories are values"


def test_another_question_is_another_answer() -> None:
    made, _ = History().with_version(Version("as asked", WHOLE))
    made, place = made.with_version(Version("as asked", LEFT))
    assert place == (1, 0)
    assert [answer.title for answer in made.answers] == ["opacity, whole chest", "effusion, patient's left lung"]
    assert made.selected == 1


def test_a_version_says_how_it_ended() -> None:
    running = Version("as asked", replace(WHOLE, steps=WHOLE.steps[:2], result=None))
    assert (running.status, running.ended) == ("running", False)
    cut = running.finished()
    assert (cut.status, cut.sentence) == ("cancelled", "Cancelled before there was an answer.")
    for status in ("refused", "unsupported", "failed"):
        none = Version("as asked", replace(WHOLE, steps=(), result=Result(status, message="Why."))).finished()
        assert none.status == status
        assert "Why." in none.sentence
    said = {
        Version("", replace(WHOLE, result=Result(s))).finished().sentence for s in ("refused", "unsupported", "failed")
    }
    assert len(said) == 3
    assert Version("as asked", WHOLE).finished().status == "present"


def test_what_is_not_there_cannot_be_selected() -> None:
    for select in (
        lambda: HISTORY.with_answer_selected(2),
        lambda: HISTORY.with_branch_selected(2),
        lambda: History().with_branch_selected(0),
        lambda: Answer(()),
    ):
        with pytest.raises(ValueRefused):
            select()


def test_a_session_comes_back_as_it_was() -> None:
    back = restored(TEXT)
    assert back.history == HISTORY
    assert back.lost == ()
    assert back.sha256 == SHA256
    assert session_json(back.history) == TEXT
    assert [version.status for answer in back.history.answers for version in answer.branches] == ["present"] * 3
    data = json.loads(TEXT)
    assert (data["schema"], data["notice"]) == ("xflow.session/1", "not for clinical use")
    assert data["image"] == {"sha256": SHA256, "size": list(WHOLE.image.size)}


def test_what_is_still_made_is_not_saved_and_what_was_cut_off_is() -> None:
    cut = replace(WHOLE, steps=WHOLE.steps[:5], result=None)
    growing, _ = History().with_version(Version("as asked", cut))
    assert session_json(growing) is None
    assert session_json(History()) is None
    ended = growing.with_changed((0, 0), Version("as asked", cut).finished())
    back = restored(session_json(ended)).history
    assert back.version.trace == cut
    assert back.version.status == "cancelled"
    both, _ = HISTORY.with_version(Version("a click", cut))
    assert restored(session_json(both)).history.answers[0].selected == 1, "the last one that ended is shown"


def test_a_session_is_not_restored_onto_another_image() -> None:
    with pytest.raises(ValueRefused, match=r"of another image .*so it was not restored; choose the radiograph"):
        restored(TEXT, "0" * 64 if SHA256 != "0" * 64 else "1" * 64)
    assert restored(TEXT, None).history == HISTORY


def test_a_session_comes_back_onto_the_pixels_of_its_sop_instance_where_the_file_is_not_at_hand() -> None:
    def of_instance(trace: Trace) -> Trace:
        return replace(trace, image=replace(trace.image, sop_instance_uid="1.2.3"))

    (answer,) = [
        Answer(tuple(replace(v, trace=of_instance(v.trace)).finished() for v in HISTORY.answers[0].branches), 0)
    ]
    text = session_json(History((answer,), 0))
    assert text is not None
    here = "e" * 64
    for instance, size in (("1.2.4", None), (None, None), ("1.2.3", (1, 1))):
        with pytest.raises(ValueRefused, match="of another image"):
            session_from_json(text, here, instance=instance, size=size)
    back = session_from_json(text, here, instance="1.2.3", size=WHOLE.image.size)
    assert back.sha256 == here
    for version, before in zip(back.history.answers[0].branches, answer.branches, strict=True):
        assert version.trace.image.sha256 == here
        assert any("not at hand here" in warning for warning in version.trace.image.warnings)
        assert version.trace.steps == before.trace.steps
    again = session_json(back.history)
    assert again is not None and session_from_json(again, here).history == back.history
    assert (
        session_from_json(text, SHA256, instance="1.2.3").history.version.trace.image.warnings == WHOLE.image.warnings
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no JSON"),
        (TEXT[: len(TEXT) // 2], "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no xflow.session/1 session"),
        ('{"schema": "xflow.session/2"}', "'xflow.session/2'"),
        ('{"schema": "xflow.session/1"}', "image or its answers are missing"),
        (json.dumps({**json.loads(TEXT), "answers": []}), "Nothing of the saved session can be read"),
    ],
)
def test_what_is_no_session_is_said_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueRefused, match=sentence) as problem:
        restored(text)
    assert str(problem.value).endswith(".")


def test_damage_costs_only_the_branch_that_it_hit() -> None:
    data = json.loads(TEXT)
    data["answers"][0]["branches"][0]["trace"]["steps"][3]["mask"]["counts"] = "###"
    back = restored(json.dumps(data))
    assert [version.title for version in back.history.answers[0].branches] == [EDIT.sentence]
    assert back.history.answers[1] == HISTORY.answers[1]
    assert len(back.lost) == 1
    assert back.lost[0].startswith("Branch 1 of answer 1 of the saved session was left out: ")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda t: t["image"].update(sha256="f" * 64), "another image"),
        (lambda t: t["image"].update(size=[9, 9]), "the image of \\(9, 9\\) pixels"),
        (lambda t: t["steps"][3].update(component=9), "component 9, which has no box"),
        (lambda t: t["instruction"].update(finding="edema"), "another question"),
        (lambda t: t.pop("bundle"), "."),
        (lambda t: t.update(steps=7), "."),
    ],
)
def test_a_branch_that_does_not_fit_is_left_out(damage: object, sentence: str) -> None:
    data = json.loads(TEXT)
    damage(data["answers"][0]["branches"][1]["trace"])  # type: ignore[operator]
    (lost,) = restored(json.dumps(data)).lost
    assert lost.startswith("Branch 2 of answer 1")
    assert re.search(sentence, lost)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_any_damage_is_met_with_a_sentence_or_with_what_can_be_read(seed: int) -> None:
    chance = random.Random(seed)
    data = json.loads(TEXT)
    for _ in range(chance.randint(1, 3)):
        here = data
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            key = chance.choice(keys)
            if not isinstance(here[key], (dict, list)) or not here[key] or chance.random() < 0.1:
                here[key] = chance.choice([None, -1, "x", [], {}, 1e400, True, [[]], "9" * 40])
                break
            here = here[key]
    try:
        back = restored(json.dumps(data))
    except ValueRefused as problem:
        assert str(problem).endswith(".")
        return
    for answer_ in back.history.answers:
        for version in answer_.branches:
            for k in range(-1, len(version.trace.steps)):
                steps.picture_at(version.trace, k)
                steps.offers(version.trace, k)
            steps.rows(version.trace)


def test_saving_a_long_session_costs_the_user_interface_little() -> None:
    noise = np.random.default_rng(0).random((1000, 1000)) > 0.5
    masks = [Mask.of(noise & (np.arange(1000) < 100 + turn)) for turn in range(3)]
    steps_ = (*WHOLE.steps[:3], *(MaskStep(component=0, turn=turn, mask=mask) for turn, mask in enumerate(masks)))
    trace = replace(WHOLE, image=replace(WHOLE.image, size=(1000, 1000)), steps=steps_, result=None)
    made = History()
    for _ in range(10):
        made, _ = made.with_version(Version("as asked", trace).finished())
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        text = session_json(made)
        spent.append(time.perf_counter() - began)
    assert statistics.median(spent) < 0.05
    assert isinstance(restored(text).history.version.trace, Trace)
