"""Decoding under the grammar: the tokens of training and no others, jumping over what is forced."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gemma import tiny_tokenizer

from xflow_core.domain.errors import BundleError
from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import GroundedLung, Verdict
from xflow_core.policies.medgemma_decoding import PieceTokens, decode
from xflow_core.policies.transcript import (
    Choice,
    Number,
    Plan,
    SquareFrame,
    boxes_plan,
    click_plan,
    lungs_plan,
    read_answer,
    verdicts_plan,
    write_boxes,
    write_lungs,
    write_verdicts,
)

FRAME = SquareFrame((900, 700))
BANDS = [Box(0.1, 0.1, 0.45, 0.9), Box(0.55, 0.1, 0.9, 0.9)]
TOKENIZER = tiny_tokenizer()
TURN_END = TOKENIZER.convert_tokens_to_ids("<end_of_turn>")


@pytest.fixture
def tokens() -> PieceTokens:
    return PieceTokens(TOKENIZER, TURN_END)


def first_stage() -> Plan[object]:
    yield from lungs_plan(LUNGS, FRAME)
    yield from verdicts_plan(LUNGS)
    return (yield from boxes_plan("effusion", FRAME, bands=BANDS, most=2))


class Chooser:
    """Takes any allowed token, by a rule of the tokens so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calls = 0

    def __call__(self, sequence: Sequence[int], place: Choice | Number, allowed: dict[int, tuple[str, ...]]) -> int:
        self.calls += 1
        return random.Random(f"{self.seed} {list(sequence)}").choice(list(allowed))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_jumping_over_forced_tokens_gives_what_every_token_gives(seed: int):
    tokens = PieceTokens(TOKENIZER, TURN_END)
    jumping, plodding = Chooser(seed), Chooser(seed)
    quick = decode(first_stage(), tokens, [2, 7], jumping)
    slow = decode(first_stage(), tokens, [2, 7], plodding, jump=False)
    assert quick == slow
    assert plodding.calls == len(quick.tokens)
    assert jumping.calls < 0.2 * plodding.calls


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_whatever_is_chosen_is_a_transcript_that_answers_the_question(seed: int):
    tokens = PieceTokens(TOKENIZER, TURN_END)

    def plan() -> Plan[object]:
        yield from lungs_plan(LUNGS, FRAME)
        yield from verdicts_plan(LUNGS[:1])
        return (yield from boxes_plan("effusion", FRAME, bands=BANDS[:1], most=2))

    written = decode(plan(), tokens, [], Chooser(seed))
    if "right lung: present" in written.text:
        answer = read_answer(written.text, finding="effusion", lungs=LUNGS, regions=LUNGS[:1], frame=FRAME)
        assert 1 <= len(answer.boxes) <= 2
        assert all(box.intersect(BANDS[0]) for box in answer.boxes)
    assert written.tokens[-1] == TURN_END and written.tokens.count(TURN_END) == 1


def test_the_tokens_that_decoding_can_reach_are_those_that_training_writes(tokens: PieceTokens):
    """A policy that agrees with a training example writes its very tokens, one after another."""
    lungs = [GroundedLung(lung, band) for lung, band in zip(LUNGS, BANDS, strict=True)]
    verdicts = [Verdict("right lung", True), Verdict("left lung", True)]
    pieces = [*write_lungs(lungs, FRAME), *write_verdicts(verdicts), *write_boxes("effusion", BANDS, FRAME)]
    example = tokens.encode(pieces)

    def follow(sequence: Sequence[int], place: Choice | Number, allowed: dict[int, tuple[str, ...]]) -> int:
        assert example[len(sequence)] in allowed
        return example[len(sequence)]

    assert list(decode(first_stage(), tokens, [], follow).tokens) == example


def test_the_pieces_are_cut_as_the_whole_text_is(tokens: PieceTokens):
    """So training may cut the whole text, with a tokenizer like Gemma's that keeps digits and line breaks apart."""
    pieces = [
        *write_lungs([GroundedLung(lung, BANDS[0]) for lung in LUNGS], FRAME),
        *write_verdicts([Verdict("right lung", False), Verdict("left lung", True)]),
        *write_boxes("effusion", BANDS, FRAME),
    ]
    assert tokens.cuts_alike(pieces)
    assert not tokens.cuts_alike(["righ", "t lung"])


def test_pieces_are_cut_apart_where_the_tokenizer_would_join_them(tokens: PieceTokens):
    def plan() -> Plan[str]:
        return (yield Choice(("t", "e"), "h"))

    def first(sequence: Sequence[int], place: Choice | Number, allowed: dict[int, tuple[str, ...]]) -> int:
        return next(token for token, options in allowed.items() if options == ("t",))

    assert list(decode(plan(), tokens, [], first).tokens) == tokens.encode(["t", "h"]) != tokens.encode(["th"])


def test_a_shorter_number_is_not_taken_for_the_beginning_of_a_longer_one(tokens: PieceTokens):
    seen = []

    def longest(sequence: Sequence[int], place: Choice | Number, allowed: dict[int, tuple[str, ...]]) -> int:
        comma = tokens.of(",")[0]
        seen.append(comma in allowed)
        return next(token for token in allowed if token != comma)

    def plan() -> Plan[str]:
        return (yield Number(1, 23, ","))

    assert decode(plan(), tokens, [], longest).value == "10"
    assert seen == [False, True]  # "1" may end there, or go on to "10"


def test_a_click_is_one_decision_for_its_kind_and_one_for_each_digit(tokens: PieceTokens):
    chooser = Chooser(0)
    written = decode(click_plan(FRAME), tokens, [], chooser)
    free = 1 if written.text == "done" else 2 + 2 * 4
    assert chooser.calls <= free


def test_a_tokenizer_that_cannot_write_a_transcript_is_refused(tokens: PieceTokens):
    with pytest.raises(BundleError, match="cannot write"):
        tokens.of("<end_of_turn> in the middle")

    def ambiguous() -> Plan[str]:
        return (yield Choice(("1", "12")))

    with pytest.raises(BundleError, match="apart"):
        decode(ambiguous(), tokens, [], Chooser(0))
