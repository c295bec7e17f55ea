"""Steps of fixed shape say what passes of any shape say, and can be recorded: nothing in them hangs on Python's
numbers.

There is no CUDA here. A recorded graph is stood in for by one of the operations themselves (``make_fx``), which replays
them on the same memory and keeps every number that came from Python as it was at the recording, as a CUDA graph does.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_gemma import Talk, at_a_time, write_tiny_adapter, write_tiny_gemma
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from xflow_core.domain.errors import CallError
from xflow_core.policies import medgemma_lanes
from xflow_core.policies.medgemma_lanes import WIDTHS, FixedStep, Lanes
from xflow_core.policies.medgemma_model import (
    CAPTURED,
    COMPILED,
    FIXED,
    KEPT_CONVERSATIONS,
    PLAIN,
    RECORDERS,
    Conversation,
    MedGemma,
    check_decoding,
)

EXACT = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def loaded(base: Path) -> MedGemma:
    return MedGemma.load(base, dtype=torch.float64)


@pytest.fixture
def fixed(loaded: MedGemma, monkeypatch: pytest.MonkeyPatch) -> MedGemma:
    """With lanes of few places, so that they grow."""
    monkeypatch.setattr(medgemma_lanes, "ROOM", 64)
    return MedGemma(loaded.gemma, loaded.processor, decoding=FIXED)


def recorded(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The operations of a pass, replayed as they were recorded."""
    graph = make_fx(lambda: compute())()
    return lambda: graph()


def walk(talk: Talk) -> list[list[int]]:
    """A conversation fed word by word, in spans, with pictures, cut, gone on with, cut again."""
    first = len(talk.turns[0])
    edited = [*talk.symbols[: first + 3], *talk.symbols[-30:]]
    ends = [first, first + 1, first + 2, first + 7, len(talk.symbols)]
    return [*(talk.symbols[:end] for end in ends), edited, edited[:-8], [*edited[:-8], 40, 41], talk.symbols]


def test_words_in_steps_of_fixed_shape_are_read_as_ever(fixed: MedGemma):
    talk = Talk(fixed)
    assert len(talk.turns[0]) < 64 < len(talk.symbols), "the lanes grow on the way"
    conversation = Conversation(fixed)
    before = fixed.work.now()
    with fixed.using(None):
        for symbols in walk(talk):
            torch.testing.assert_close(conversation.after(symbols, talk.features), talk.whole(symbols), **EXACT)
    assert {width for _, width in fixed._fixed} == set(WIDTHS)
    assert conversation.lane is not None and fixed.work.since(before).passes == len(walk(talk))


def test_several_conversations_in_one_step_say_what_each_says_alone(fixed: MedGemma):
    """Of other lengths, words and pictures in the same pass, one at its end before the others."""
    talks = [Talk(fixed, seed) for seed in range(3)]
    first = len(talks[0].turns[0])
    ends = [
        [first, first + 1, first + 2, len(talks[0].symbols)],
        [first, first + 2, first + 3],
        [first + 1, first + 2],
    ]
    before = fixed.work.now()
    found = at_a_time(fixed, talks, ends)
    assert fixed.work.since(before).passes < sum(map(len, ends))
    for talk, own, logits in zip(talks, ends, found, strict=True):
        for end, last in zip(own, logits, strict=True):
            with fixed.using(None):
                torch.testing.assert_close(last, talk.whole(talk.symbols[:end]), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_lanes_the_last_bit_does_not_depend_on_what_is_beside_it(base: Path, dtype: torch.dtype):
    """In the precisions that are used; without lanes it may, since a product's rounding depends on its shape."""
    gemma = MedGemma.load(base, dtype=dtype, decoding=FIXED)
    talks = [Talk(gemma, seed) for seed in range(3)]
    first = len(talks[0].turns[0])
    ends = [[first, first + 1, first + 2, first + 6], [first, first + 1, len(talks[0].symbols)], [first + 7, first + 8]]
    together = at_a_time(gemma, talks, ends)
    for talk, own, logits in zip(talks, ends, together, strict=True):
        (alone,) = at_a_time(gemma, [talk], [own])
        assert all(torch.equal(one, other) for one, other in zip(alone, logits, strict=True))


def test_a_lane_goes_on_to_the_next_conversation_and_who_gets_none_is_answered_too(fixed: MedGemma):
    talk = Talk(fixed)
    first = len(talk.turns[0])
    open_ones = [Conversation(fixed) for _ in range(KEPT_CONVERSATIONS + 1)]
    expected = [talk.whole(talk.symbols[: first + k]) for k in range(3)]
    with fixed.using(None):
        for end in range(3):
            for conversation in open_ones:
                found = conversation.after(talk.symbols[: first + end], talk.features)
                torch.testing.assert_close(found, expected[end], **EXACT)
        lanes = [conversation.lane for conversation in open_ones]
        assert lanes[-1] is None and sorted(lane.number for lane in lanes[:-1]) == list(range(KEPT_CONVERSATIONS))
        del lanes, open_ones[1], conversation
        gc.collect()
        later = Conversation(fixed)
        torch.testing.assert_close(later.after(talk.symbols[:first], talk.features), expected[0], **EXACT)
        assert later.lane is not None


def test_a_lane_that_grows_in_a_pass_of_several_takes_the_others_along(fixed: MedGemma):
    """The longer one makes room after the shorter one's part of the pass was made ready."""
    talks = [Talk(fixed, seed) for seed in range(3)]
    whole, first = len(talks[0].symbols), len(talks[0].turns[0])
    ends = [[first, first + 1], [whole, whole + 1], [first + 9, first + 10]]
    for talk in talks:
        talk.symbols = [*talk.symbols, 40]
    for talk, own, logits in zip(talks, ends, at_a_time(fixed, talks, ends), strict=True):
        for end, last in zip(own, logits, strict=True):
            with fixed.using(None):
                torch.testing.assert_close(last, talk.whole(talk.symbols[:end]), **EXACT)
    config, device = fixed.gemma.config.text_config, torch.device("cpu")
    lanes = Lanes(2, config, device, torch.float64)
    short, long = lanes.take(), lanes.take()
    caches = short.cache(0, 3), long.cache(0, 100)
    new = torch.rand(1, config.num_key_value_heads, 100, config.head_dim, dtype=torch.float64)
    for cache, length in zip(caches, (3, 100), strict=True):
        cache.update(new[:, :, :length], new[:, :, :length] + 1, 1)
    for lane, length in ((short, 3), (long, 100)):
        keys, values = lane.held(length)[1]
        assert torch.equal(keys, new[:, :, :length]) and torch.equal(values, new[:, :, :length] + 1)


def test_what_was_not_a_number_does_not_stay_in_a_lane(fixed: MedGemma):
    talk = Talk(fixed)
    with fixed.using(None):
        spoilt = Conversation(fixed)
        spoilt.after(talk.turns[0], talk.features)
        for keys, values in fixed._lanes[None].layers:
            keys[spoilt.lane.number], values[spoilt.lane.number] = torch.nan, torch.nan
        spoilt.forget()
        found = spoilt.after(talk.turns[0], talk.features)
        torch.testing.assert_close(found, talk.whole(talk.turns[0]), **EXACT)
        following = [*talk.turns[0], 40]
        torch.testing.assert_close(spoilt.after(following, talk.features), talk.whole(following), **EXACT)


@pytest.mark.parametrize("decoding", [PLAIN, FIXED])
def test_a_beginning_that_another_conversation_fed_is_not_fed_again(loaded: MedGemma, decoding: str):
    gemma = MedGemma(loaded.gemma, loaded.processor, decoding=decoding)
    talk = Talk(gemma)
    shared = talk.turns[0]
    branches = [[*shared, *range(20 + 10 * k, 27 + 10 * k)] for k in range(3)]
    open_ones: list[Conversation] = []
    with gemma.using(None):
        for symbols in branches:
            open_ones.append(Conversation(gemma, lambda: open_ones))
            before = gemma.work.now()
            found = open_ones[-1].after(symbols, talk.features)
            torch.testing.assert_close(found, talk.whole(symbols), **EXACT)
        assert gemma.work.since(before).fed == 7
        for conversation, symbols in zip(open_ones, branches, strict=True):
            longer = [*symbols, 50, 51]
            before = gemma.work.now()
            torch.testing.assert_close(conversation.after(longer, talk.features), talk.whole(longer), **EXACT)
            assert gemma.work.since(before).fed == 2


# Recording -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapted(base: Path, tmp_path: Path) -> MedGemma:
    folders = {name: write_tiny_adapter(tmp_path / name, base, seed) for seed, name in enumerate(("init", "rev"), 1)}
    return MedGemma.load(base, folders, dtype=torch.float64)


def test_a_step_recorded_once_is_right_at_every_other_place(adapted: MedGemma, monkeypatch: pytest.MonkeyPatch):
    """Recorded at one length of one conversation, replayed at others', with two adapters on one base."""
    monkeypatch.setitem(RECORDERS, CAPTURED, recorded)
    gemma = MedGemma(adapted.model, adapted.processor, decoding=CAPTURED)
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # in which make_fx records nothing
    talks = {name: Talk(gemma, seed) for seed, name in enumerate(("init", "rev"))}
    first = len(talks["init"].turns[0])
    for name, ends in {"init": (0, 1, 2, 3), "rev": (0, 1, 6), "init again": (5, 6, 2, 1, 9)}.items():
        name = name.split()[0]
        talk, conversation = talks[name], Conversation(gemma)
        for symbols in [talk.symbols[: first + end] for end in ends]:
            with gemma.using(name):
                found = conversation.after(symbols, talk.features)
            with gemma._switched(name):
                torch.testing.assert_close(found, talk.whole(symbols), **EXACT)
    pair = [Talk(gemma, seed) for seed in (2, 3)]
    for talk, logits in zip(pair, at_a_time(gemma, pair, [[first, first + 1, first + 2]] * 2), strict=True):
        with gemma._switched(None):
            torch.testing.assert_close(logits[-1], talk.whole(talk.symbols[: first + 2]), **EXACT)
    assert {name for name, _ in gemma._fixed} == {"init", "rev", None}
    assert gemma.decoding == CAPTURED and all(step.ready for step in gemma._fixed.values())


def test_a_step_is_one_program_to_the_compiler(adapted: MedGemma):
    """No break in its graph, LoRA and all: what is captured after compilation is all of it."""
    torch._dynamo.reset()
    fixed = MedGemma(adapted.model, adapted.processor, decoding=FIXED)
    talk = Talk(fixed)
    with fixed.using("rev"), fixed._switched("rev"):
        conversation = Conversation(fixed)
        conversation.after(talk.turns[0], talk.features)

        def joined(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
            return torch.compile(compute, fullgraph=True, dynamic=False, backend="eager")

        lanes = fixed._lanes["rev"]
        step = FixedStep(fixed.gemma, lanes, 1, joined)
        for k in range(3):
            start = len(talk.turns[0]) + k
            symbols = [*talk.turns[0], *range(40, 41 + k)]
            logits = step({conversation.lane.number: (symbols[-1:], start)})
            torch.testing.assert_close(logits[conversation.lane.number], talk.whole(symbols), **EXACT)


def refused(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    raise RuntimeError("operation not permitted when stream is capturing\nmore of it")


def wrong(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return lambda: compute().roll(1)


@pytest.mark.parametrize("fails", [refused, wrong])
def test_where_recording_fails_it_is_said_once_and_the_answers_are_the_same(
    loaded: MedGemma,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails: Callable[[Callable[[], Tensor]], Callable[[], Tensor]],
):
    for way in (CAPTURED, COMPILED):
        monkeypatch.setitem(RECORDERS, way, fails)
    gemma = MedGemma(loaded.gemma, loaded.processor, decoding=COMPILED)
    talk = Talk(gemma)
    conversation = Conversation(gemma)
    with caplog.at_level(logging.WARNING), gemma.using(None):
        for symbols in walk(talk):
            torch.testing.assert_close(conversation.after(symbols, talk.features), talk.whole(symbols), **EXACT)
    assert gemma.decoding == FIXED
    said = [record.getMessage() for record in caplog.records]
    assert [("'compiled'" in words, "'captured' is used" in words) for words in said[:1]] == [(True, True)]
    assert len(said) == 2 and "more of it" not in caplog.text


def test_a_way_of_decoding_that_is_none_or_cannot_be_had_is_refused():
    with pytest.raises(CallError, match="choose auto, plain, fixed, captured, compiled"):
        check_decoding("warp", "cuda")
    for device in ("cpu", "mps"):
        with pytest.raises(CallError, match=f"which {device} does not have"):
            check_decoding("compiled", device)
        assert check_decoding("auto", device) == PLAIN
    assert check_decoding("auto", "cuda") == CAPTURED


def test_no_lanes_are_made_where_none_are_used(loaded: MedGemma):
    talk = Talk(loaded)
    with loaded.using(None):
        Conversation(loaded).after(talk.turns[0], talk.features)
    assert not loaded._lanes
