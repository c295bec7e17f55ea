"""A sentence is read as ``instructions.md`` says, or refused as it says; nothing is guessed silently."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xflow_core.domain import lexicon
from xflow_core.domain.errors import InstructionError, ValueRefused
from xflow_core.domain.findings import FINDINGS, LUNGS, REGIONS, ZONES, level_of
from xflow_core.domain.instruction import Instruction, describe, parse_instruction

TABLE = Path(__file__).with_name("instructions.md").read_text(encoding="utf-8")


def rows(part: str, columns: int) -> list[list[str]]:
    lines = part.splitlines()
    body = [line for line in lines if line.startswith("| ") and not line.startswith("| Sentence |")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body]
    assert all(len(row) == columns for row in cells), [row for row in cells if len(row) != columns]
    return cells


UNDERSTOOD = rows(TABLE.split("# Refused")[0], 3)
REFUSED = rows(TABLE.split("# Refused")[1], 2)


def meaning(instructions: tuple[Instruction, ...]) -> str:
    return "; ".join(
        f"{'no ' if asked.negated else ''}{asked.finding} in {' + '.join(asked.regions)}" for asked in instructions
    )


def test_the_table_is_long_enough_and_names_no_sentence_twice() -> None:
    assert len(UNDERSTOOD) >= 240
    assert len(REFUSED) >= 40
    sentences = [row[0] for row in UNDERSTOOD + REFUSED]
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize(("sentence", "expected", "noted"), UNDERSTOOD, ids=[row[0] for row in UNDERSTOOD])
def test_a_sentence_of_the_table_is_understood(sentence: str, expected: str, noted: str) -> None:
    instructions = parse_instruction(sentence)
    assert meaning(instructions) == expected
    assert any(asked.notes for asked in instructions) == (noted == "noted")
    assert {asked.text for asked in instructions} == {sentence}


@pytest.mark.parametrize(("sentence", "said"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_sentence_of_the_table_is_refused(sentence: str, said: str) -> None:
    with pytest.raises(InstructionError) as refused:
        parse_instruction(sentence)
    message = str(refused.value)
    assert said in message
    assert all(finding in message for finding in FINDINGS), "the message lists what can be asked"
    assert "\n" not in message


@pytest.mark.parametrize("nothing", ["", " ", "\n\t", "?!", None, 3, b"effusion", ["effusion"]])
def test_what_is_no_sentence_is_refused(nothing: object) -> None:
    with pytest.raises(InstructionError):
        parse_instruction(nothing)  # type: ignore[arg-type]


def test_a_report_is_no_instruction() -> None:
    with pytest.raises(InstructionError, match="2000"):
        parse_instruction("There is an effusion in the left lung. " * 60)


def spoken(region: str, finding: str) -> str:
    return f"Segment the {finding}." if region in ("chest", "heart") else f"Segment the {finding} in the {region}."


@pytest.mark.parametrize("finding", [finding for finding in FINDINGS if finding != "cardiomegaly"])
@pytest.mark.parametrize("region", [region for region in REGIONS if region != "heart"])
def test_the_papers_template_says_every_finding_and_region(finding: str, region: str) -> None:
    (asked,) = parse_instruction(spoken(region, finding))
    assert (asked.finding, asked.regions, asked.level) == (finding, (region,), level_of(region))
    assert not asked.negated
    assert not asked.notes


@pytest.mark.parametrize("pair", [*itertools.combinations(ZONES, 2), LUNGS], ids=" and ".join)
def test_the_papers_template_says_every_pair_of_regions(pair: tuple[str, str]) -> None:
    for first, second in (pair, pair[::-1]):
        (asked,) = parse_instruction(f"Segment the opacity in the {first} and {second}.")
        assert set(asked.regions) == set(pair)
        assert list(asked.regions) == sorted(asked.regions, key=REGIONS.index)
        assert not asked.notes


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("PNA", '"PNA" is read as pneumonia.'),
        ("plueral efusion", '"plueral efusion" is read as effusion.'),
        ("effusion in the lfet lung", '"lfet" is read as "left".'),
        ("RLL opacity", '"RLL" is read as right lung base'),
        ("opacity in the upper zones", "both sides are taken"),
        ("cardiomegaly in the left lung", "the place named is not used"),
        ("effusion on the viewer's left", "The left of the image is taken as the patient's right."),
        ("fluid on the left", "ask for edema if fluid in the lung itself is meant"),
        ("Segment the opacity and predict its type.", 'Not used: "predict its type".'),
        ("blunted left CP angle", '"blunted" is read as a sign of effusion.'),
        ("left effusion and atelectasis", '"left" is taken for atelectasis, too.'),
        ("opacity in the left lung and right base", "The whole left lung is asked as its three zones"),
    ],
)
def test_what_is_assumed_is_said(sentence: str, said: str) -> None:
    notes = [note for asked in parse_instruction(sentence) for note in asked.notes]
    assert any(said in note for note in notes), notes


def test_a_word_near_to_a_finding_but_not_near_enough_is_asked_back() -> None:
    with pytest.raises(InstructionError, match="did you mean pneumonia"):
        parse_instruction("newmonia")


@pytest.mark.parametrize("word", lexicon.FALSE_FRIENDS)
def test_a_look_alike_is_never_taken_for_a_finding(word: str) -> None:
    with pytest.raises(InstructionError):
        parse_instruction(f"Segment the {word}")


@pytest.mark.parametrize("finding", FINDINGS)
@pytest.mark.parametrize("slip", ["drop", "double", "swap"])
def test_one_slip_in_a_findings_name_is_put_right(finding: str, slip: str) -> None:
    for at in range(1, len(finding) - 1):
        tail = {
            "drop": finding[at + 1 :],
            "double": finding[at] + finding[at:],
            "swap": finding[at + 1] + finding[at] + finding[at + 2 :],
        }[slip]
        (asked,) = parse_instruction(f"segment the {finding[:at]}{tail}")
        assert asked.finding == finding


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        instructions = parse_instruction(text)
    except InstructionError:
        return
    assert instructions


TERMS = sorted(
    {
        *itertools.chain(*lexicon.NAMES.values(), *lexicon.SYNONYMS.values(), *lexicon.SIGNS.values()),
        *lexicon.PLACES, *lexicon.HEART, *lexicon.LARGE, *lexicon.JOINS, *lexicon.PREPOSITIONS, *lexicon.TURNS,
        *lexicon.DENIES_NEXT, *lexicon.DENIES_LAST, *lexicon.DENIES_EITHER, *lexicon.NO_DENIAL, *lexicon.IMAGE,
        *lexicon.VIEWER, *lexicon.UNUSED, *lexicon.PLEURAL, ",", ".", "?", ":", "the", "florid",
    }
)  # fmt: skip


@given(
    st.lists(st.sampled_from(TERMS) | st.sampled_from(["left", "right", "effusion", "edema", "no", "and"]), max_size=14)
)
@settings(max_examples=300, deadline=None)
def test_whatever_is_understood_is_a_question_that_can_be_asked(terms: list[str]) -> None:
    text = " ".join(terms)
    try:
        instructions = parse_instruction(text)
    except InstructionError:
        return
    findings = [asked.finding for asked in instructions]
    assert len(set(findings)) == len(findings) > 0
    for asked in instructions:
        assert asked.text == text
        assert asked.level == level_of(asked.regions[0])
        assert list(asked.regions) == sorted(asked.regions, key=REGIONS.index)
        assert all(note.endswith(".") for note in asked.notes)
        assert describe(asked).startswith(asked.finding)


def disguised(sentence: str, how: str) -> str:
    return {
        "upper": sentence.upper(),
        "lower": sentence.lower(),
        "spaces": "  " + sentence.replace(" ", " \t ") + " \n",
        "stop": sentence.rstrip(".!") + ".",
        "typographic": sentence.replace("'", "\u2019").replace("-", "\u2010"),
    }[how]


@pytest.mark.parametrize("how", ["upper", "lower", "spaces", "stop", "typographic"])
def test_case_spaces_and_punctuation_change_nothing(how: str) -> None:
    for sentence, expected, _ in UNDERSTOOD:
        assert meaning(parse_instruction(disguised(sentence, how))) == expected, sentence


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("Segment the effusion", "effusion, whole chest"),
        ("effusion in the left lung", "effusion, patient's left lung"),
        ("bilateral edema", "edema, both lungs"),
        ("cardiomegaly", "cardiomegaly, heart"),
        (
            "Segment the consolidation in the left mid zone and left lung base.",
            "consolidation, patient's left mid zone and left lung base",
        ),
        (
            "opacity in all zones of the left lung",
            "opacity, patient's left upper zone, left mid zone and left lung base",
        ),
        ("no effusion", "effusion, whole chest (the words deny it; it is checked all the same)"),
    ],
)
def test_an_instruction_is_described_in_words(sentence: str, words: str) -> None:
    (asked,) = parse_instruction(sentence)
    assert describe(asked) == words


@pytest.mark.parametrize(
    ("finding", "regions", "level", "said"),
    [
        ("pneumothorax", ("chest",), "chest", "pneumothorax"),
        ("effusion", ("left kidney",), "zone", "left kidney"),
        ("effusion", (), "chest", "at least one"),
        ("effusion", ("left lung", "left lung"), "lung", "left lung, left lung"),
        ("effusion", ("left lung",), "organ", "organ"),
        ("effusion", ("left lung",), "zone", "zone"),
        ("effusion", ("left lung", "right lung base"), "lung", "right lung base"),
        ("effusion", ("chest", "heart"), "chest", "one region"),
        ("effusion", ("heart",), "chest", "heart"),
        ("cardiomegaly", ("chest",), "chest", "heart"),
        ("cardiomegaly", ("left lung",), "lung", "heart"),
        ("effusion", "chest", "chest", "tuples"),
    ],
)
def test_an_instruction_that_cannot_be_asked_cannot_be_made(
    finding: str, regions: tuple[str, ...], level: str, said: str
) -> None:
    with pytest.raises(ValueRefused, match=said):
        Instruction("..", finding, regions, level)


def test_an_instruction_is_a_value() -> None:
    first = Instruction("effusion", "effusion", ["left lung"], "lung", notes=["a note"])  # type: ignore[arg-type]
    second = Instruction("effusion", "effusion", ("left lung",), "lung", notes=("a note",))
    assert first == second
    assert len({first, second}) == 1
