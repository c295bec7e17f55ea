"""A conversation with a Gemma3: fed piece by piece, cut and gone on with, it says what the whole would say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_gemma import SOFT_TOKENS, Talk, at_a_time, write_tiny_adapter, write_tiny_gemma
from torch import Tensor

from xflow_core.domain.errors import BundleError
from xflow_core.policies.medgemma_model import Conversation, MedGemma, Pictures, masks, seeded

EXACT = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("init", "revision")}
    return {name: write_tiny_adapter(folder, base, seed) for seed, (name, folder) in enumerate(folders.items(), 1)}


@pytest.fixture(scope="module")
def gemma(base: Path) -> MedGemma:
    return MedGemma.load(base, dtype=torch.float64)


@pytest.fixture
def talk(gemma: MedGemma) -> Iterator[Talk]:
    talk = Talk(gemma)
    with gemma.using(None):
        yield talk


def test_a_rendered_chat_has_the_processors_own_tokens(talk: Talk):
    words = "Segment the effusion."
    pictures = [Image.fromarray(talk.drawn[name]) for name in ("one", "two")]
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": words}]
    messages = [{"role": "user", "content": content}]
    text = talk.gemma.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    own = talk.gemma.processor(text=text, images=pictures, return_tensors="np", add_special_tokens=False)
    ours = [s if s >= 0 else talk.gemma.image_token for s in talk.turns[0]]
    assert ours == own["input_ids"][0].tolist()


def test_the_masks_are_the_models_own(talk: Talk):
    """The whole at once, longer than the sliding window: only the masks are ours here."""
    assert len(talk.symbols) > 2 * talk.gemma.window
    found = Conversation(talk.gemma).after(talk.symbols, talk.features)
    torch.testing.assert_close(found, talk.whole(talk.symbols), **EXACT)


def test_the_masks_are_the_models_own_where_the_window_cuts_through_a_picture(tmp_path: Path):
    narrow = MedGemma.load(write_tiny_gemma(tmp_path, sliding_window=SOFT_TOKENS - 1), dtype=torch.float64)
    talk = Talk(narrow)
    with narrow.using(None):
        found = Conversation(narrow).after(talk.symbols, talk.features)
    torch.testing.assert_close(found, talk.whole(talk.symbols), **EXACT)


@pytest.mark.parametrize("length", [1, 7, 40])
def test_fed_in_parts_it_says_what_the_whole_says(talk: Talk, length: int):
    conversation = Conversation(talk.gemma)
    ends = [*range(length, len(talk.symbols), length), len(talk.symbols)]
    # An image is fed whole: a part may not end inside one.
    ends = [end for end in ends if end == len(talk.symbols) or talk.symbols[end] >= 0 or talk.symbols[end - 1] >= 0]
    for end in ends:
        last = conversation.after(talk.symbols[:end], talk.features)
    torch.testing.assert_close(last, talk.whole(talk.symbols), **EXACT)


def test_nothing_is_fed_twice(talk: Talk):
    conversation = Conversation(talk.gemma)
    before = talk.gemma.work.now()
    for end in (len(talk.turns[0]), len(talk.turns[0]) + 5, len(talk.symbols)):
        conversation.after(talk.symbols[:end], talk.features)
    conversation.after(talk.symbols, talk.features)
    done = talk.gemma.work.since(before)
    assert (done.passes, done.fed, done.encoded) == (3, len(talk.symbols), 3)


def test_an_edited_decision_is_gone_on_with_exactly(talk: Talk):
    """Cut far behind the sliding window, where a windowed cache would have forgotten."""
    conversation = Conversation(talk.gemma)
    conversation.after(talk.symbols, talk.features)
    edited = [*talk.symbols[: len(talk.turns[0]) + 3], *talk.symbols[-30:]]
    before = talk.gemma.work.now()
    found = conversation.after(edited, talk.features)
    torch.testing.assert_close(found, talk.whole(edited), **EXACT)
    assert talk.gemma.work.since(before).fed <= 30
    shorter = edited[:-8]
    torch.testing.assert_close(conversation.after(shorter, talk.features), talk.whole(shorter), **EXACT)


def test_another_picture_at_the_same_place_is_read_anew(talk: Talk):
    conversation = Conversation(talk.gemma)
    one, three = talk.pictures.symbols("one", SOFT_TOKENS), talk.pictures.symbols("three", SOFT_TOKENS)
    (asked,) = talk.gemma.turns([([one], "Segment the edema.")])
    (other,) = talk.gemma.turns([([three], "Segment the edema.")])
    first = conversation.after(asked, talk.features).clone()
    second = conversation.after(other, talk.features)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(second, talk.whole(other), **EXACT)


def test_a_pass_that_fails_leaves_nothing_behind(talk: Talk):
    conversation = Conversation(talk.gemma)
    conversation.after(talk.turns[0], talk.features)

    def missing(symbol: int) -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        conversation.after(talk.symbols, missing)
    torch.testing.assert_close(conversation.after(talk.symbols, talk.features), talk.whole(talk.symbols), **EXACT)


def test_conversations_side_by_side_say_what_each_says_alone(gemma: MedGemma):
    """Of other lengths and pictures, one of them at its end before the others."""
    talks = [Talk(gemma, seed) for seed in range(3)]
    first = len(talks[0].turns[0])
    ends = [
        [first, first + 5, first + 6, len(talks[0].symbols)],
        [first, first + 1],
        [first + 9, first + 10, first + 11],
    ]
    before = gemma.work.now()
    found = at_a_time(gemma, talks, ends)
    done = gemma.work.since(before)
    assert done.passes == 4
    assert done.fed == sum(own[-1] for own in ends)
    for talk, own, logits in zip(talks, ends, found, strict=True):
        for end, last in zip(own, logits, strict=True):
            torch.testing.assert_close(last, talk.whole(talk.symbols[:end]), **EXACT)


def test_what_is_too_much_together_is_done_alone(gemma: MedGemma, monkeypatch: pytest.MonkeyPatch):
    talks = [Talk(gemma, seed) for seed in range(3)]
    ends = [[len(talk.turns[0]), len(talk.symbols)] for talk in talks]
    expected = at_a_time(gemma, talks, ends)
    plain = gemma._pass

    def scarce(group: list[object]) -> None:
        if len(group) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        plain(group)  # type: ignore[arg-type]

    monkeypatch.setattr(gemma, "_pass", scarce)
    torch.testing.assert_close(at_a_time(gemma, talks, ends), expected, **EXACT)


def test_a_step_that_fails_fails_in_its_own_thread(gemma: MedGemma):
    talks = [Talk(gemma, seed) for seed in range(2)]
    ends = [[len(talk.turns[0])] for talk in talks]

    def missing(symbol: int) -> Tensor:
        raise RuntimeError("the tower failed")

    (expected,) = at_a_time(gemma, talks[:1], ends[:1])
    talks[1].features = missing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the tower failed"):
        at_a_time(gemma, talks, ends)
    torch.testing.assert_close(at_a_time(gemma, talks[:1], ends[:1]), [expected], **EXACT)


def test_one_picture_shown_twice_makes_two_blocks():
    sliding = masks([5, -1, -1, 6, -1, -1], 0, 3, torch.device("cpu"))["sliding_attention"][0, 0]
    assert sliding[1, 2] and not sliding[1, 4] and not sliding[5, 2]


def test_two_adapters_switch_exactly_tower_and_all(base: Path, adapters: dict[str, Path]):
    both = MedGemma.load(base, adapters, dtype=torch.float64)
    alone = {name: MedGemma.load(base, {name: adapters[name]}, dtype=torch.float64) for name in adapters}
    alone["neither"] = MedGemma.load(base, dtype=torch.float64)

    def said(gemma: MedGemma, name: str) -> tuple[Tensor, Tensor]:
        talk = Talk(gemma)
        with gemma.using(name):
            return Conversation(gemma).after(talk.symbols, talk.features), gemma.soft_tokens(talk.drawn["one"])

    found = {}
    for name in ("init", "revision", "init", "neither", "revision"):
        found[name] = said(both, name)
        for ours, theirs in zip(found[name], said(alone[name], name), strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)
    for part in (0, 1):
        assert not torch.allclose(found["init"][part], found["revision"][part])
        assert not torch.allclose(found["init"][part], found["neither"][part])
    assert not any(weight.requires_grad for weight in both.gemma.parameters())


def test_every_weight_has_the_precision_asked_for(base: Path, adapters: dict[str, Path]):
    """Left to itself, PEFT keeps adapters in float32 beside a bfloat16 base."""
    gemma = MedGemma.load(base, adapters, dtype=torch.bfloat16)
    assert {weight.dtype for weight in gemma.gemma.parameters()} == {torch.bfloat16}
    talk = Talk(gemma)
    with gemma.using("revision"):
        assert bool(torch.isfinite(Conversation(gemma).after(talk.symbols, talk.features)).all())


def test_equal_beginnings_draw_alike_however_their_pictures_are_numbered():
    here, there = Pictures(), Pictures()
    a = [2, *here.symbols("x-ray", 2), *here.symbols("mask", 2)]
    there.symbols("another", 2)
    b = [2, *there.symbols("x-ray", 2), *there.symbols("mask", 2)]
    assert a != b
    assert torch.rand((), generator=seeded(1, a, here)) == torch.rand((), generator=seeded(1, b, there))
    assert torch.rand((), generator=seeded(2, a, here)) != torch.rand((), generator=seeded(1, a, here))


def _without(path: Path, part: str) -> None:
    weights = load_file(path)
    del weights[next(name for name in weights if part in name)]
    save_file(weights, path, metadata={"format": "pt"})


def test_weights_that_do_not_make_the_model_are_refused(base: Path, adapters: dict[str, Path], tmp_path: Path):
    def copy(of: Path) -> Path:
        return Path(shutil.copytree(of, tmp_path / str(len(list(tmp_path.iterdir())))))

    cut = copy(base)
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    lacking = copy(base)
    _without(lacking / "model.safetensors", "layers.1.mlp.up_proj")
    other = copy(base)
    settings = json.loads((other / "config.json").read_text())
    settings["model_type"] = "bert"
    (other / "config.json").write_text(json.dumps(settings))
    for folder in (cut, lacking, tmp_path / "nowhere"):
        with pytest.raises(BundleError, match=str(folder)):
            MedGemma.load(folder, dtype=torch.float32)

    torn = copy(adapters["init"])
    (torn / "adapter_model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    larger = copy(adapters["init"])
    adapter = json.loads((larger / "adapter_config.json").read_text())
    (larger / "adapter_config.json").write_text(json.dumps({**adapter, "r": 16}))
    incomplete = copy(adapters["init"])
    _without(incomplete / "adapter_model.safetensors", "lora_A")
    pickled = copy(adapters["init"])
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    for folder in (torn, larger, incomplete, pickled):
        for before in ({}, {"revision": adapters["revision"]}):
            with pytest.raises(BundleError, match="does not fit the base model, or is damaged"):
                MedGemma.load(base, {**before, "init": folder}, dtype=torch.float32)
