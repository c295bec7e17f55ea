"""The line in which a question is typed: what it becomes, what chips write into it, and how it is understood."""

from __future__ import annotations

import itertools
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from XFlowSlicerLib.question import (
    FINDING_CHIPS,
    complete,
    region_choices,
    sentence_for,
    sentence_of,
    understood,
)

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.findings import CHEST, FINDINGS, HEART, LUNGS, REGIONS, ZONES, level_of
from xflow_core.domain.instruction import Instruction, parse_instruction
from xflow_core.service.protocol import MAX_INSTRUCTION_CHARS


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("eff", "effusion"),
        ("Eff", "effusion"),
        ("card", "cardiomegaly"),
        ("ate", "atelectasis"),
        ("segment the eff", "segment the effusion"),
        ("effusion in the l", "effusion in the left lung"),
        ("effusion in the r", "effusion in the right lung"),
        ("effusion in l", "effusion in the left lung"),
        ("effusion in the left up", "effusion in the left upper zone"),
        ("effusion in the left lung b", "effusion in the left lung base"),
        ("effusion ", "effusion in the right lung"),
        ("effusion i", "effusion in the right lung"),
        ("effusion and ede", "effusion and edema"),
        ("effusion, ede", "effusion, edema"),
        ("hydrothor", "effusion"),
    ],
)
def test_a_half_typed_line_is_completed(typed: str, first: str) -> None:
    assert complete(typed)[0] == first


@pytest.mark.parametrize(
    "typed", ["", "   ", "pneumothor", "effusion in the left lung base", "zzzz", "edema in the kne"]
)
def test_nothing_is_offered_where_nothing_fits(typed: str) -> None:
    assert complete(typed) == ()


def test_a_finished_finding_is_narrowed_to_every_region_but_the_heart() -> None:
    lines = complete("edema ", limit=99)
    asked = {understood(line).instructions[0].regions for line in lines}
    assert asked == {(lung,) for lung in LUNGS} | {(zone,) for zone in ZONES} | {LUNGS}


def test_another_word_for_a_finding_leads_to_its_name_and_may_stay() -> None:
    assert complete("segment the pleural fl")[:2] == ("segment the effusion", "segment the pleural fluid")


@given(st.text(alphabet=st.sampled_from("aefilnorstu ,dghmpcv'é\n"), max_size=24))
def test_every_completion_goes_on_from_what_was_typed_and_can_be_asked(typed: str) -> None:
    for line in complete(typed):
        assert understood(line).ok
        assert line != typed


def test_a_completion_is_there_before_the_next_key() -> None:
    complete("warm")
    spent = []
    for typed in ("eff", "segment the effusion in the left", "cardiomegaly and the plural efusion in", "o"):
        began = time.perf_counter()
        complete(typed)
        spent.append(time.perf_counter() - began)
    assert statistics.median(spent) < 0.05


def test_how_a_line_is_understood_is_said_with_what_was_assumed() -> None:
    plain = understood("Segment the effusion in the left lung")
    assert (plain.ok, plain.sentence, plain.notes) == (True, "effusion, patient's left lung", ())
    assumed = understood("plueral efusion LLL")
    assert assumed.ok
    assert assumed.sentence == "effusion, patient's left lung base"
    assert any("efusion" in note for note in assumed.notes)
    assert any("lobes" in note for note in assumed.notes)


def test_several_findings_in_one_line_are_listed() -> None:
    read = understood("big heart, and fluid at both bases")
    assert read.sentence == "cardiomegaly, heart; effusion, patient's right lung base and left lung base"
    assert [instruction.finding for instruction in read.instructions] == ["cardiomegaly", "effusion"]


def test_what_is_not_understood_says_so_in_the_parsers_own_words() -> None:
    read = understood("segment the pneumothorax")
    assert not read.ok
    assert "pneumothorax" in read.sentence
    assert all(finding in read.sentence for finding in FINDINGS)
    assert understood("  ") == type(read)(False, "")
    assert "longer than" in understood("effusion " * MAX_INSTRUCTION_CHARS).sentence


@pytest.mark.parametrize(
    ("findings", "region"), [*itertools.product([(f,) for f in FINDING_CHIPS], [CHEST, *LUNGS, *ZONES])]
)
def test_what_chips_and_the_region_picker_write_is_read_as_they_were_set(
    findings: tuple[str, ...], region: str
) -> None:
    read = understood(sentence_for(findings, region))
    (instruction,) = read.instructions
    assert instruction.finding == findings[0]
    assert instruction.regions == ((HEART,) if findings == ("cardiomegaly",) else (region,))
    assert read.notes == ()


def test_several_chips_share_the_region_and_the_heart_stays_the_hearts() -> None:
    sentence = sentence_for(("cardiomegaly", "effusion", "edema"), "left lung base")
    assert sentence == "Segment the effusion and the edema in the left lung base, and the cardiomegaly"
    regions = {i.finding: i.regions for i in parse_instruction(sentence)}
    assert regions == {"effusion": ("left lung base",), "edema": ("left lung base",), "cardiomegaly": (HEART,)}


def test_all_seven_chips_are_one_sentence() -> None:
    for region in (CHEST, "right lung"):
        asked = parse_instruction(sentence_for(FINDINGS, region))
        assert {i.finding for i in asked} == set(FINDINGS)
        assert {i.regions for i in asked if i.finding != "cardiomegaly"} == {(region,)}


def test_the_picker_offers_what_can_be_asked() -> None:
    assert [choice.name for choice in region_choices(("cardiomegaly",))] == [HEART]
    everywhere = [choice.name for choice in region_choices(("effusion", "cardiomegaly"))]
    assert everywhere == [CHEST, *LUNGS, *ZONES]
    assert set(everywhere) | {HEART} == set(REGIONS)
    assert [choice.label for choice in region_choices(())][:4] == [
        "whole chest",
        "right lung",
        "left lung",
        "right apical zone",
    ]


def test_a_sentence_needs_a_finding_and_a_region_of_xflow() -> None:
    with pytest.raises(ValueRefused, match="No finding is chosen"):
        sentence_for(())
    with pytest.raises(ValueRefused, match="seven findings"):
        sentence_for(("pneumothorax",))
    with pytest.raises(ValueRefused, match="not a region"):
        sentence_for(("effusion",), "left ear")


@pytest.mark.parametrize("negated", [False, True])
def test_an_instruction_has_a_sentence_of_its_own(negated: bool) -> None:
    for finding in FINDINGS:
        for regions in [(HEART,)] if finding == "cardiomegaly" else [(CHEST,), LUNGS, (ZONES[1], ZONES[7]), ZONES]:
            asked = Instruction("as typed", finding, regions, level_of(regions[0]), negated)
            (read,) = parse_instruction(sentence_of(asked))
            assert (read.finding, read.regions, read.negated) == (finding, regions, negated)
