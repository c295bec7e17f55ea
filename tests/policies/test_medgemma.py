"""MedGemma's policies on a tiny Gemma3 with two adapters, in whole runs: what is answered, and what it costs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from phantom import SIZE, PhantomParts, phantom
from tiny_gemma import SOFT_TOKENS, tiny_tokenizer, write_tiny_adapter, write_tiny_gemma

from xflow_core.domain.errors import BundleError, EngineError
from xflow_core.domain.findings import FINDINGS, LUNGS
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import Instruction, parse_instruction
from xflow_core.domain.trace import (
    BoxesStep,
    BundleIdentity,
    Click,
    ClickStep,
    GroundedLung,
    LesionBox,
    LungsStep,
    MaskStep,
    PresenceStep,
    Step,
    StopStep,
    Trace,
    Verdict,
)
from xflow_core.policies.medgemma import (
    MedGemmaInitPolicy,
    MedGemmaRevisionPolicy,
    PolicySettings,
    ZeroShotInitPolicy,
    check_tokenizer,
    load_policies,
    question,
)
from xflow_core.policies.medgemma_decoding import PieceTokens, decode
from xflow_core.policies.medgemma_model import Conversation, MedGemma
from xflow_core.policies.medgemma_pictures import overlaid, squared
from xflow_core.policies.protocols import Done
from xflow_core.policies.transcript import (
    THOUGHTS,
    TranscriptError,
    boxes_plan,
    click_plan,
    lungs_plan,
    read_answer,
    read_click,
    verdicts_plan,
    write_click,
)
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.workflow.engine import Engine
from xflow_core.workflow.session import Session

RECIPE = "engine-grey"
CHEST = Instruction("Segment the effusion.", "effusion", ("chest",), "chest")
ZONES = Instruction("?", "opacity", ("right lung base", "left apical zone lung"), "zone")
HEART = Instruction("big heart?", "cardiomegaly", ("heart",), "chest")
ASKED = (CHEST, ZONES, HEART, Instruction("?", "edema", ("left lung",), "lung"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("init", "revision")}
    return {name: write_tiny_adapter(folder, base, seed) for seed, (name, folder) in enumerate(folders.items(), 1)}


@pytest.fixture(scope="module")
def gemma(base: Path, adapters: dict[str, Path]) -> MedGemma:
    return MedGemma.load(base, adapters, dtype=torch.float64)


@pytest.fixture
def image() -> EncodedRadiograph:
    return EncodedRadiograph(phantom([(0.3, 0.7, 14), (0.7, 0.6, 9)]))


def engine(gemma: MedGemma, **settings: Any) -> Engine:
    known = PolicySettings.from_json({"grid": 200, **settings})
    init = MedGemmaInitPolicy(gemma, known, RECIPE)
    revision = MedGemmaRevisionPolicy(gemma, known, RECIPE)
    identity = BundleIdentity("tiny", "1", "foundation", "f" * 64)
    return Engine(identity, FINDINGS, init_policy=init, revision_policy=revision, segmenter=PhantomParts())


def present(settings: float) -> dict[str, Any]:
    """A calibration that calls everything present (1.0) or absent (0.0)."""
    offset = 25.0 if settings else -25.0
    return {finding: {"slope": 1e-6, "offset": offset, "threshold": 0.5} for finding in FINDINGS}


def run(engine: Engine, image: EncodedRadiograph, instruction: Instruction, **options: Any) -> Trace:
    session = Session(engine, image, instruction, **options)
    for _ in session.run():
        pass
    return session.trace()


@pytest.mark.parametrize("instruction", ASKED, ids=lambda asked: asked.finding)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_under_the_grammar_is_well_formed(
    gemma: MedGemma, image: EncodedRadiograph, instruction: Instruction, temperature: float
):
    """Random weights: whatever such a model prefers, the run ends with a result, and the words are the decisions."""
    parts = engine(gemma, calibration=present(1), temperature=temperature)
    trace = run(parts, image, instruction)
    assert trace.result is not None and trace.result.status == "present"
    told = "".join(step.text or "" for step in trace.steps if isinstance(step, (LungsStep, PresenceStep, BoxesStep)))
    lungs, verdicts = trace.steps[0], trace.steps[1]
    assert isinstance(lungs, LungsStep) and isinstance(verdicts, PresenceStep)
    answer = read_answer(
        told,
        finding=instruction.finding,
        lungs=[lung.label for lung in lungs.lungs],
        regions=[verdict.region for verdict in verdicts.verdicts],
        frame=parts.init_policy.view(image).frame,
    )
    assert answer.lungs == lungs.lungs
    assert [v.present for v in answer.verdicts] == [v.present for v in verdicts.verdicts]
    boxed = next(step for step in trace.steps if isinstance(step, BoxesStep))
    assert len(boxed.boxes) == len(answer.boxes)
    for component in boxed.boxes:
        clicks = [s for s in trace.steps if isinstance(s, ClickStep) and s.component == component.component]
        assert len(clicks) <= 4
    again = run(engine(gemma, calibration=present(1), temperature=temperature), image, instruction)
    assert again.steps == trace.steps


def test_absent_everywhere_is_a_verdict_and_costs_no_further_word(gemma: MedGemma, image: EncodedRadiograph):
    trace = run(engine(gemma, calibration=present(0)), image, CHEST)
    assert trace.result is not None and trace.result.status == "absent"
    assert [step.kind for step in trace.steps] == ["lungs", "presence", "result"]


def test_a_verdicts_confidence_is_the_probability_of_its_token(gemma: MedGemma, image: EncodedRadiograph):
    """By hand: one forward pass over picture, question and lungs, and the two tokens in which the verdicts part."""
    policy = engine(gemma).init_policy
    lungs = policy.ground_lungs(image, CHEST, LUNGS, seed=0)
    (first, _) = policy.judge(image, CHEST, LUNGS, lungs.value, seed=0).value
    view = policy.view(image)
    prefix = policy._asked(view, CHEST)
    tokenizer = gemma.processor.tokenizer
    text = f"{lungs.text}right lung:"
    with gemma.using("init"):
        symbols = [*prefix, *tokenizer.encode(text, add_special_tokens=False)]
        logits = Conversation(gemma).after(symbols, view._features)
    pair = [tokenizer.encode(word, add_special_tokens=False)[0] for word in (" absent", " present")]
    probability = float(logits[pair].softmax(0)[int(first.present)])
    assert first.confidence == pytest.approx(probability, abs=1e-9)
    assert first.confidence >= 0.5


def test_a_calibration_moves_the_probability_and_the_threshold_the_verdict(gemma: MedGemma, image: EncodedRadiograph):
    plain = engine(gemma).init_policy
    lungs = plain.ground_lungs(image, CHEST, LUNGS, seed=0).value

    def log_odds(threshold: float, **line: float) -> tuple[float, bool]:
        calibration = {"effusion": {"slope": 1.0, "offset": 0.0, "threshold": threshold, **line}}
        policy = engine(gemma, calibration=calibration).init_policy
        # The first lung's: the second verdict is written after the first, and hangs on it.
        verdict = policy.judge(image, CHEST, LUNGS, lungs, seed=0).value[0]
        assert verdict.confidence is not None
        p = verdict.confidence if verdict.present else 1 - verdict.confidence
        return float(np.log(p / (1 - p))), verdict.present

    own, present = log_odds(0.5)
    assert present == (own >= 0)
    moved, _ = log_odds(0.5, slope=2.0, offset=1.0)
    assert moved == pytest.approx(2 * own + 1, abs=1e-6)
    probability = 1 / (1 + np.exp(-moved))
    for threshold in (probability - 0.01, probability + 0.01):
        assert log_odds(threshold, slope=2.0, offset=1.0)[1] == (threshold < probability)


class Plodding:
    """Constrained decoding with no cache and no jump: the whole is recomputed for every token, forced ones too."""

    def __init__(self, gemma: MedGemma, view: Any) -> None:
        self.gemma, self.view, self.asked = gemma, view, 0

    def __call__(self, sequence: Sequence[int], place: Any, allowed: dict[int, tuple[str, ...]]) -> int:
        self.asked += 1
        logits = Conversation(self.gemma).after(sequence, self.view._features)
        return max(allowed, key=lambda token: float(logits[token]))


def test_jumping_and_the_cache_change_nothing(gemma: MedGemma, image: EncodedRadiograph):
    policies = engine(gemma)
    init, revision = policies.init_policy, policies.revision_policy
    asked = Instruction("?", "effusion", ("left lung",), "lung")
    names = ("left lung",)
    lungs = init.ground_lungs(image, asked, names, seed=0)
    verdicts = init.judge(image, asked, names, lungs.value, seed=0)
    view = init.view(image)
    prefix = init._asked(view, asked)
    with gemma.using("init"):
        slow = Plodding(gemma, view)
        plan = lungs_plan(names, view.frame, least=10)
        plain = decode(plan, init._tokens, prefix, slow, jump=False)
        assert (plain.value, plain.text) == (lungs.value, lungs.text)
        plain_verdicts = decode(verdicts_plan(names), init._tokens, [*prefix, *plain.tokens], slow, jump=False)
        assert plain_verdicts.text == verdicts.text
        before = [*prefix, *plain.tokens, *init._tokens.encode([verdicts.text or ""])]
        bands = [lung.box for lung in lungs.value]
        quick, _ = view.decide(boxes_plan("effusion", view.frame, bands=bands, most=1), before, 0)
        plan = boxes_plan("effusion", view.frame, bands=bands, most=1)
        assert decode(plan, init._tokens, before, slow, jump=False) == quick

    box, masks = LesionBox(0, "effusion", Box(0.2, 0.5, 0.4, 0.8), "right lung"), [np.zeros(SIZE, bool)]
    for row in (90,):
        masks.append(masks[-1].copy())
        masks[-1][row : row + 20, 40:90] = True
    clicks = [Click("positive", Point(0.25, 0.5))]
    for turn in range(2):
        said = revision.revise(image, CHEST, box, masks[: turn + 1], clicks[:turn], seed=0)
        view = revision.view(image)
        first, *others = [view.overlay(mask) for mask in masks[: turn + 1]]
        turns = view.turns([([view.source(), first], question(CHEST)), *(([each], "") for each in others)])
        symbols = turns[0]
        for click, following in zip(clicks, turns[1:], strict=False):
            symbols = [*symbols, *view.encode(write_click(click, view.frame)), *following]
        with gemma.using("revision"):
            slow = Plodding(gemma, view)
            plain_click = decode(click_plan(view.frame), revision._tokens, symbols, slow, jump=False)
        assert plain_click.text == said.text


def test_a_second_question_on_a_radiograph_reads_the_picture_no_more(gemma: MedGemma, image: EncodedRadiograph):
    init = engine(gemma).init_policy
    init.ground_lungs(image, CHEST, LUNGS, seed=0)
    before = gemma.work.now()
    init.ground_lungs(image, HEART, LUNGS, seed=0)
    prefix = init._asked(init.view(image), HEART)
    done = gemma.work.since(before)
    assert done.encoded == 0
    other, shared = init._asked(init.view(image), CHEST), 0
    while prefix[shared] == other[shared]:
        shared += 1
    assert shared > SOFT_TOKENS
    forced = init._tokens.encode([init.ground_lungs(image, HEART, LUNGS, seed=0).text or ""])
    assert done.fed <= len(prefix) - shared + len(forced)


def test_an_edited_lung_costs_what_follows_it(gemma: MedGemma, image: EncodedRadiograph):
    init = engine(gemma).init_policy
    lungs = init.ground_lungs(image, CHEST, LUNGS, seed=0).value
    init.judge(image, CHEST, LUNGS, lungs, seed=0)
    edited = (lungs[0], GroundedLung("left lung", Box(0.5, 0.2, 0.9, 0.9)))
    before = gemma.work.now()
    judged = init.judge(image, CHEST, LUNGS, edited, seed=0)
    assert gemma.work.since(before).fed < 120
    fresh = EncodedRadiograph(image.radiograph)
    assert engine(gemma).init_policy.judge(fresh, CHEST, LUNGS, edited, seed=0).text == judged.text


def test_a_replaced_verdict_is_boxed_where_the_user_sees_it(gemma: MedGemma, image: EncodedRadiograph):
    session = Session(engine(gemma, calibration=present(0)), image, ZONES, stages=1)
    for _ in session.run():
        pass
    seen = tuple(Verdict(region, region.startswith("left")) for region in ZONES.regions)
    edited = session.replace(1, PresenceStep(verdicts=seen, origin="user"))
    steps = list(edited.run())
    boxes = next(step for step in steps if isinstance(step, BoxesStep))
    assert {box.region for box in boxes.boxes} == {"left apical zone lung"}
    assert any(isinstance(step, MaskStep) for step in steps)


def test_the_seed_decides_where_the_model_samples(gemma: MedGemma, image: EncodedRadiograph):
    def lungs(seed: int) -> str | None:
        fresh = EncodedRadiograph(image.radiograph)
        return engine(gemma, temperature=1.0).init_policy.ground_lungs(fresh, CHEST, LUNGS, seed=seed).text

    assert lungs(1) == lungs(1)
    assert len({lungs(seed) for seed in range(4)}) > 1


def answers(policies: Engine, images: Sequence[EncodedRadiograph], threads: int) -> list[tuple[Step, ...]]:
    """Whole runs, some at a time."""
    with ThreadPoolExecutor(threads) as pool:
        return [trace.steps for trace in pool.map(lambda image: run(policies, image, CHEST), images)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_several_radiographs_at_a_time_share_passes_and_are_answered_as_one_at_a_time(
    gemma: MedGemma, temperature: float
):
    """One model, two adapters, four threads: whole runs with clicks, equal to the last digit but for rounding."""
    pictures = [phantom([(0.2 + 0.1 * number, 0.5, 12)]) for number in range(4)]
    found = []
    for threads in (1, 4):
        before = gemma.work.now()
        policies = engine(gemma, calibration=present(1), temperature=temperature)
        steps = answers(policies, [EncodedRadiograph(picture) for picture in pictures], threads)
        found.append((without_rounding(steps), gemma.work.since(before)))
    (alone, plain), (together, shared) = found
    assert together == alone
    assert (shared.encoded, shared.fed) == (plain.encoded, plain.fed)
    assert plain.passes == plain.decode_steps
    assert shared.passes < 0.6 * plain.passes


def without_rounding(answers: Sequence[tuple[Step, ...]]) -> list[list[Any]]:
    """Steps without times, and confidences to nine digits."""

    def rounded(step: Step) -> Any:
        step = replace(step, seconds=0.0)
        if isinstance(step, PresenceStep):
            verdicts = [replace(v, confidence=round(v.confidence or 0.0, 9)) for v in step.verdicts]
            return replace(step, verdicts=tuple(verdicts))
        return step

    return [[rounded(step) for step in steps] for steps in answers]


def test_two_questions_about_one_radiograph_wait_for_each_other(gemma: MedGemma, image: EncodedRadiograph):
    policies = engine(gemma)
    asked = [CHEST, HEART, ASKED[3], CHEST]

    def ask(instruction: Instruction) -> object:
        return policies.init_policy.ground_lungs(image, instruction, LUNGS, seed=0)

    alone = [ask(instruction) for instruction in asked]
    policies = engine(gemma)
    image = EncodedRadiograph(image.radiograph)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, asked)) == alone


def test_after_a_mask_of_the_users_the_conversation_begins_anew(gemma: MedGemma, image: EncodedRadiograph):
    revision = engine(gemma).revision_policy
    box = LesionBox(0, "effusion", Box(0.2, 0.5, 0.4, 0.8), "right lung")
    drawn = np.zeros(SIZE, bool)
    drawn[100:140, 40:90] = True
    afresh = revision.revise(image, CHEST, box, [drawn], [], seed=0)
    later = revision.revise(
        image, CHEST, box, [np.zeros(SIZE, bool), ~drawn, drawn], [Click("positive", Point(0.3, 0.6))], seed=0
    )
    assert afresh == later


def test_unconstrained_words_that_are_no_transcript_fail_with_the_words_in_the_trace(
    gemma: MedGemma, image: EncodedRadiograph
):
    free = engine(gemma, constrained=False, most_tokens=30)
    session = Session(free, image, CHEST)
    with pytest.raises(TranscriptError) as failed:
        next(session.run())
    trace = session.trace(failure=failed.value).to_json()
    assert trace["result"]["status"] == "failed" and trace["result"]["present"] is not False
    assert repr(failed.value.text) in trace["result"]["message"]
    box = LesionBox(0, "effusion", Box(0.2, 0.5, 0.4, 0.8), "right lung")
    with pytest.raises(EngineError, match="cannot be read at character"):
        free.revision_policy.revise(image, CHEST, box, [np.ones(SIZE, bool)], [], seed=0)


class Dictated:
    """A language model that says what it is told to, through the real tokenizer: only the logits are set."""

    def __init__(self, gemma: MedGemma, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gemma, self.words = gemma, ""
        after = Conversation.after

        def dictated(conversation: Conversation, symbols: Sequence[int], features: Any) -> torch.Tensor:
            logits = after(conversation, symbols, features).clone()
            tokens = [*gemma.processor.tokenizer.encode(self.words, add_special_tokens=False), gemma.end]
            turn = gemma.processor.tokenizer.encode("<start_of_turn>model\n", add_special_tokens=False)
            start = max(at for at in range(len(symbols)) if list(symbols[at : at + len(turn)]) == turn) + len(turn)
            if list(symbols[start:]) == tokens[: len(symbols) - start]:
                logits[tokens[len(symbols) - start]] += 1000
            return logits

        monkeypatch.setattr(Conversation, "after", dictated)


@pytest.fixture
def dictated(gemma: MedGemma, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dictated]:
    yield Dictated(gemma, monkeypatch)


WRITTEN = """<think>
<|ref_start|>right lung<|ref_end|><|box_start|>(20,30),(90,170)<|box_end|>
<|ref_start|>left lung<|ref_end|><|box_start|>(110,30),(180,170)<|box_end|>
right lung: present
left lung: present
</think>
<|ref_start|>effusion<|ref_end|><|box_start|>(30,120),(80,160)<|box_end|>
<|ref_start|>effusion<|ref_end|><|box_start|>(30,60),(80,90)<|box_end|>
<|ref_start|>effusion<|ref_end|><|box_start|>(120,120),(170,160)<|box_end|>"""


@pytest.mark.parametrize("constrained", [True, False])
def test_a_transcript_is_told_as_steps(
    gemma: MedGemma, image: EncodedRadiograph, dictated: Dictated, constrained: bool
):
    dictated.words = WRITTEN
    trace = run(engine(gemma, constrained=constrained), image, CHEST, stages=1)
    lungs, presence, boxes = trace.steps[:3]
    assert isinstance(lungs, LungsStep) and isinstance(presence, PresenceStep) and isinstance(boxes, BoxesStep)
    assert "".join(step.text or "" for step in (lungs, presence, boxes)) == WRITTEN
    assert [(box.component, box.region) for box in boxes.boxes] == [
        (0, "right lung"),
        (1, "right lung"),
        (2, "left lung"),
    ]
    assert boxes.boxes[0].box.y1 < boxes.boxes[1].box.y1, "in reading order"
    assert all(verdict.present and verdict.confidence > 0.99 for verdict in presence.verdicts)


CLICKS = (("positive", 60, 60), ("negative", 60, 133), ("positive", 90, 110), ("positive", 50, 160))
ONE_BOX = """<think>
<|ref_start|>right lung<|ref_end|><|box_start|>(20,30),(90,170)<|box_end|>
<|ref_start|>left lung<|ref_end|><|box_start|>(110,30),(180,170)<|box_end|>
right lung: present
left lung: absent
</think>
<|ref_start|>effusion<|ref_end|><|box_start|>(30,120),(80,160)<|box_end|>"""


@pytest.mark.parametrize("decoding", ["plain", "fixed"])
def test_a_run_of_four_clicks_feeds_each_token_once_and_encodes_each_picture_once(
    gemma: MedGemma, image: EncodedRadiograph, dictated: Dictated, decoding: str
):
    gemma = MedGemma(gemma.model, gemma.processor, decoding=decoding)
    policies = engine(gemma)
    dictated.words = ONE_BOX
    clicks = iter(CLICKS)
    before = gemma.work.now()
    trace: list[Step] = []
    for step in Session(policies, image, CHEST).run():
        trace.append(step)
        if isinstance(step, BoxesStep):
            first, before = gemma.work.since(before), gemma.work.now()
        if isinstance(step, MaskStep) and (click := next(clicks, None)):
            sign = "+" if click[0] == "positive" else "-"
            dictated.words = (
                f"<think>{THOUGHTS[click[0]]}</think>{sign}<|point_start|>({click[1]},{click[2]})<|point_end|>"
            )
    second = gemma.work.since(before)
    assert [step.kind for step in trace].count("click") == 4
    assert isinstance(trace[-2], StopStep) and trace[-2].reason == "limit"

    # The pictures: SAM's stand-in sees one, pi_init one, pi_rev the radiograph and a mask before each click.
    assert policies.segmenter.calls["encode"] == 1
    assert (first.encoded, second.encoded) == (1, 1 + 4)

    # The tokens: every one of the two conversations once, but for the last words, after which nothing is decided.
    init, revision = policies.init_policy, policies.revision_policy
    prefix = init._asked(init.view(image), CHEST)
    view = revision.view(image)
    masks = [step.mask.array for step in trace if isinstance(step, MaskStep)][:4]
    said = [write_click(step.click, view.frame) for step in trace if isinstance(step, ClickStep)]
    shown = [view.overlay(mask) for mask in masks]
    turns = view.turns([([view.source(), shown[0]], question(CHEST)), *(([each], "") for each in shown[1:])])
    answers = [token for pieces in said for token in view.encode(pieces)]
    new = [*prefix, *init._tokens.encode([ONE_BOX])], [*chain(*turns), *answers]
    for work, tokens in zip((first, second), new, strict=True):
        assert 0.95 * len(tokens) <= work.fed <= len(tokens)

    # The decisions: digits and where a number ends, a verdict for each lung, and another box or the end.
    def decided(numbers: Sequence[int]) -> int:
        return sum(len(str(number)) + 1 for number in numbers)

    boxes = decided([20, 30, 90, 170, 110, 30, 180, 170, 30, 120, 80, 160])
    assert first.decode_steps <= boxes + 2 + 1
    assert second.decode_steps <= 4 * 2 + decided([number for _, x, y in CLICKS for number in (x, y)])
    assert (first.passes, second.passes) == (first.decode_steps, second.decode_steps), "a forced span is no pass"


@pytest.mark.parametrize("constrained", [True, False])
def test_a_click_and_done_are_told_as_steps(
    gemma: MedGemma, image: EncodedRadiograph, dictated: Dictated, constrained: bool
):
    revision = engine(gemma, constrained=constrained).revision_policy
    box = LesionBox(0, "effusion", Box(0.2, 0.5, 0.4, 0.8), "right lung")
    dictated.words = f"<think>{THOUGHTS['negative']}</think>-<|point_start|>(60,100)<|point_end|>"
    said = revision.revise(image, CHEST, box, [np.ones(SIZE, bool)], [], seed=0)
    assert said.text == dictated.words
    assert said.value == read_click(dictated.words, revision.view(image).frame)
    dictated.words = "done"
    assert revision.revise(image, CHEST, box, [np.ones(SIZE, bool)], [], seed=0).value == Done()


def test_the_zero_shot_policy_answers_in_medgemmas_own_way(gemma: MedGemma, image: EncodedRadiograph):
    settings = PolicySettings.from_json({"answers": "box_2d", "grid": 200, "calibration": present(1)})
    init = ZeroShotInitPolicy(gemma, settings, RECIPE)
    lungs = init.ground_lungs(image, ZONES, LUNGS, seed=0)
    assert [entry["label"] for entry in json.loads(lungs.text or "")] == list(LUNGS)
    verdicts = init.judge(image, ZONES, ZONES.regions, lungs.value, seed=0)
    assert verdicts.text == "yes\nyes" and all(v.confidence > 0.99 for v in verdicts.value)
    boxes = init.localise(image, ZONES, lungs.value, verdicts.value, seed=0).value
    assert [box.region for box in boxes] == list(ZONES.regions)
    assert gemma.work.encoded > 0 and image.feature("medgemma.init", lambda _: None).nbytes > 0


def test_the_zero_shot_policy_reads_thinking_and_fences(gemma: MedGemma, image: EncodedRadiograph, dictated: Dictated):
    settings = PolicySettings.from_json({"answers": "box_2d", "grid": 1000, "constrained": False})
    init = ZeroShotInitPolicy(gemma, settings, RECIPE)
    right, left = (
        '{"box_2d": [200, 100, 800, 450], "label": "right lung"}',
        '{"box_2d": [200, 550, 800, 900], "label": "left lung"}',
    )
    dictated.words = f"```json\n[{left}, {right}]\n```"
    found = init.ground_lungs(image, CHEST, LUNGS, seed=0)
    assert [lung.label for lung in found.value] == list(LUNGS)
    assert found.value[0].box.x1 == pytest.approx(0.1)
    dictated.words = f"[{right}]"
    with pytest.raises(TranscriptError, match="it names"):
        init.ground_lungs(image, CHEST, LUNGS, seed=0)


def test_policies_are_loaded_from_folders(base: Path, adapters: dict[str, Path], image: EncodedRadiograph):
    loaded = load_policies(base=base, adapters=adapters, settings={}, recipe=RECIPE, device="cpu")
    init, revision = loaded.init, loaded.revision
    assert len(init.ground_lungs(image, CHEST, LUNGS, seed=0).value) == 2
    box = LesionBox(0, "effusion", Box(0.2, 0.5, 0.4, 0.8), "right lung")
    assert isinstance(revision.revise(image, CHEST, box, [np.ones(SIZE, bool)], [], seed=0).value, (Click, Done))
    box_2d = {"answers": "box_2d"}
    none = load_policies(base=base, adapters={}, settings=box_2d, recipe=RECIPE, device="cpu").revision
    assert none.revise(image, CHEST, box, [np.ones(SIZE, bool)], [], seed=0).value == Done("no_progress")


@pytest.mark.parametrize("answers", ["transcript", "box_2d"])
def test_a_tokenizer_that_cuts_as_gemmas_does_is_taken_without_a_word(
    gemma: MedGemma, answers: str, caplog: pytest.LogCaptureFixture
):
    check_tokenizer(PieceTokens(gemma.processor.tokenizer, gemma.end), PolicySettings(answers=answers))
    assert not caplog.text


def test_a_tokenizer_that_cuts_otherwise_is_refused_for_taught_policies_and_told_for_the_base_model(
    gemma: MedGemma, caplog: pytest.LogCaptureFixture
):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["0,"])  # a digit and what follows it, which a piece parts
    joining = PieceTokens(tokenizer, gemma.end)
    thoughts = {"positive": "More.", "negative": "Less."}
    with pytest.raises(BundleError, match="piece by piece"):
        check_tokenizer(joining, PolicySettings(thoughts=thoughts))
    check_tokenizer(joining, PolicySettings(answers="box_2d"))
    assert "the base model's boxes may suffer" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"answers": "xml"},
        {"grid": 3},
        {"temperature": -1},
        {"most_tokens": 0},
        {"unknown": 1},
        {"thoughts": {"positive": "<b>"}},
        {"calibration": {"fracture": {"slope": 1, "offset": 0, "threshold": 0.5}}},
        {"calibration": {"edema": {"slope": -1, "offset": 0, "threshold": 0.5}}},
        {"calibration": []},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]):
    with pytest.raises(BundleError):
        PolicySettings.from_json(settings)


@pytest.mark.parametrize("instruction", ASKED, ids=lambda asked: asked.finding)
def test_the_question_asks_what_the_instruction_says(instruction: Instruction):
    (understood,) = parse_instruction(question(instruction))
    assert (understood.finding, understood.regions) == (instruction.finding, instruction.regions)


def test_the_model_is_shown_the_whole_picture_in_a_black_square():
    grey = np.full((100, 200), 200, np.uint8)
    square = squared(grey, 56)
    assert square.shape == (56, 56, 3) and not square[:13].any() and not square[-13:].any()
    assert (square[15:-15] == 200).all()
    mask = np.zeros((100, 200), bool)
    mask[:, :100] = True
    tinted = overlaid(square, mask)
    assert tinted[28, 10].tolist() == [222, 120, 120] and tinted[28, 45].tolist() == [200] * 3
    assert not tinted[:13].any()


def test_a_run_stops_at_a_stop_that_says_why(gemma: MedGemma, image: EncodedRadiograph):
    trace = run(engine(gemma, calibration=present(1), max_clicks=1), image, HEART)
    stops = [step for step in trace.steps if isinstance(step, StopStep)]
    assert stops and all(step.reason in ("satisfied", "no_progress", "limit") for step in stops)


FOUR = tuple(
    LesionBox(number, "effusion", Box(x, y, x + 0.2, y + 0.2), "right lung" if x < 0.5 else "left lung")
    for number, (x, y) in enumerate([(0.2, 0.3), (0.2, 0.6), (0.6, 0.3), (0.6, 0.5)])
)


@pytest.mark.parametrize("decoding", ["plain", "fixed"])
def test_components_of_one_radiograph_share_passes_and_are_answered_as_one_after_another(
    gemma: MedGemma, image: EncodedRadiograph, decoding: str, monkeypatch: pytest.MonkeyPatch
):
    begun, step, met = threading.local(), MedGemma.step, threading.Barrier(3, timeout=120)

    def meeting(model: MedGemma, fed: Any) -> torch.Tensor:
        """The three that are begun beside the first component begin together, so that some passes must be shared."""
        if threading.current_thread().name.startswith("xflow-component") and not hasattr(begun, "once"):
            begun.once = True
            met.wait()
        return step(model, fed)

    monkeypatch.setattr(MedGemma, "step", meeting)
    found = []
    for together in (1, 4):
        model = MedGemma(gemma.model, gemma.processor, decoding=decoding)
        parts = replace(engine(model, calibration=present(1), temperature=1.0), components_together=together)
        session = Session(parts, EncodedRadiograph(image.radiograph), CHEST, seed=3)
        _ = list(zip(session.run(), range(3), strict=False))
        edited = session.replace(2, BoxesStep(boxes=FOUR, origin="user"))
        before = model.work.now()
        list(edited.run())
        found.append((without_rounding([tuple(edited.steps)]), model.work.since(before)))
    (alone, plain), (together_told, shared) = found
    assert together_told == alone and sum(isinstance(step, ClickStep) for step in alone[0]) > 4
    assert (shared.encoded, shared.fed, shared.decode_steps) == (plain.encoded, plain.fed, plain.decode_steps)
    assert shared.passes < plain.passes == plain.decode_steps


def test_the_radiograph_is_read_once_for_all_components(gemma: MedGemma, image: EncodedRadiograph, dictated: Dictated):
    """A second component's conversation takes over what the first one has read of the radiograph."""
    revision = engine(gemma).revision_policy
    dictated.words = "done"
    masks = [np.zeros(SIZE, bool) for _ in range(2)]
    masks[0][90:110, 40:60], masks[1][120:150, 60:90] = True, True
    fed = []
    for number, mask in enumerate(masks):
        box = LesionBox(number, "effusion", Box(0.2, 0.5, 0.4, 0.8), "right lung")
        before = gemma.work.now()
        revision.revise(image, CHEST, box, [mask], [], seed=0)
        fed.append(gemma.work.since(before))
    assert (fed[0].encoded, fed[1].encoded) == (2, 1)
    assert fed[1].fed <= fed[0].fed - SOFT_TOKENS
