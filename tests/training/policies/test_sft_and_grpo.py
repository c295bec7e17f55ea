"""SFT and GRPO of both policies on a tiny Gemma3: what is trained, on which tokens, and with which probabilities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_gemma import write_tiny_adapter, write_tiny_gemma
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.curation.paper import RevisionSettings
from training.policies.dialogues import Radiographs, Tokens, init_dialogue, revision_dialogue
from training.policies.episodes import InitEpisodes, RevisionEpisodes
from training.policies.grpo import grpo_trainer, train_grpo
from training.policies.measure import measure_revision
from training.policies.models import load_to_train
from training.policies.pictures import chosen
from training.policies.settings import LoraSettings, RlSettings, SftSettings, accumulation
from training.policies.sft import RunSettings, teachable, train_sft
from training.trainers import StopWhenConstant, last_checkpoint
from xflow_core.domain import rle
from xflow_core.domain.errors import BundleError, CallError, EngineError
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import Click, LesionBox
from xflow_core.policies.medgemma import MedGemmaRevisionPolicy, PolicySettings, load_policies
from xflow_core.policies.medgemma_pictures import overlaid
from xflow_core.policies.transcript import write_click
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.segmenters.protocol import Prediction, Prompt

SIZE = (120, 100)
RECIPE = "mimic-cxr-jpg"
LORA = LoraSettings(4, 8)
SFT = SftSettings(rate=1e-3, tower_rate=0.3, weight_decay=0.0, clip=1.0, batch=2, epochs=1)
RL = RlSettings(
    1e-3, 0.0, 1.0, batch=4, epochs=1, generations=4, temperature=1.0, top_p=0.95, beta=0.02, format_weight=1.0
)
TRUTH = Box(0.6, 0.3, 0.8, 0.5).mask(SIZE)
POOR = Box(0.6, 0.3, 0.7, 0.5).mask(SIZE)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma(tmp_path_factory.mktemp("base"), sliding_window=4096)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_adapter(tmp_path_factory.mktemp("adapter"), base)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 255, SIZE, dtype=np.uint8)
    Image.fromarray(pixels).save(found / "a.png")
    return found


def init_row(present: bool = True) -> dict[str, Any]:
    return {
        "id": f"s_{present}",
        "image": "a.png",
        "instruction": "Segment the opacity in the left lung.",
        "finding": "opacity",
        "lungs": [
            {"label": "right lung", "box": [0.1, 0.1, 0.45, 0.9]},
            {"label": "left lung", "box": [0.55, 0.1, 0.9, 0.9]},
        ],
        "grounded": ["left lung"],
        "verdicts": [{"region": "left lung", "present": present}],
        "boxes": [[0.6, 0.3, 0.8, 0.5]] if present else [],
    }


def revision_row(clicks: int = 1) -> dict[str, Any]:
    return {
        "id": "r",
        "image": "a.png",
        "instruction": "Segment the opacity in the left lung.",
        "finding": "opacity",
        "size": list(SIZE),
        "truth": rle.encode(TRUTH),
        "box": [0.6, 0.3, 0.8, 0.5],
        "masks": [rle.encode(POOR)] + [rle.encode(TRUTH)] * clicks,
        "clicks": [{"polarity": "positive", "point": [0.75, 0.4]}] * clicks,
        "ious": [0.5, *[0.9] * clicks],
    }


class Rule:
    """A frozen segmenter: a positive click gives the truth, a negative one nothing. It counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        self.calls.append(len(prompts))
        return [Prediction(TRUTH if p.clicks[-1].polarity == "positive" else np.zeros_like(TRUTH)) for p in prompts]


def parts(base: Path, start: Path | None, folder: Path, *, tower: bool) -> tuple[Any, Any, Tokens, Radiographs]:
    model, gemma = load_to_train(base, start, LORA, tower=tower)
    return model, gemma, Tokens(gemma), Radiographs(folder, RECIPE, gemma.picture_side)


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


# Tokens ------------------------------------------------------------------------------------------------------------


def test_the_loss_lies_on_the_policys_own_tokens_alone(base: Path, folder: Path) -> None:
    _, gemma, tokens, radiographs = parts(base, None, folder, tower=True)
    dialogue = revision_dialogue(revision_row(), radiographs)
    batch = tokens.batch([dialogue, init_dialogue(init_row(False), radiographs)])
    learnt = [row[row >= 0].tolist() for row in batch["labels"]]
    said = [gemma.processor.tokenizer.decode(row) for row in learnt]
    assert said[0].split("<end_of_turn>")[1:] == ["done", ""]
    assert said[1].endswith("left lung: absent\n</think>\nabsent<end_of_turn>")
    assert learnt[0].count(gemma.end) == 2
    assert torch.equal(batch["token_type_ids"] == 1, batch["input_ids"] == gemma.image_token)
    assert int(batch["token_type_ids"].sum()) == batch["pixel_values"].shape[0] * gemma.processor.image_seq_length
    assert batch["pixel_values"].shape[0] == 4  # the radiograph and two masks; the radiograph
    assert bool((batch["attention_mask"].sum(1) == torch.tensor([len(tokens.example(dialogue)[0]), len(
        tokens.example(init_dialogue(init_row(False), radiographs))[0])])).all())  # fmt: skip


def test_training_reads_the_tokens_that_inference_reads(base: Path, folder: Path, monkeypatch: Any) -> None:
    """A revision's second turn, as the policy asks the model, and as it is trained."""
    _, gemma, tokens, radiographs = parts(base, None, folder, tower=True)
    policy = MedGemmaRevisionPolicy(gemma, PolicySettings(), RECIPE)
    asked: list[list[int]] = []
    from xflow_core.policies import medgemma

    def spy(self: Any, plan: Any, prefix: Sequence[int], seed: int, *rest: Any) -> Any:
        asked.append([gemma.image_token if token < 0 else token for token in prefix])
        return original(self, plan, prefix, seed, *rest)

    original = medgemma._View.decide
    monkeypatch.setattr(medgemma._View, "decide", spy)
    row = revision_row()
    image = radiographs.read("a.png")
    dialogue = revision_dialogue(row, radiographs)
    click = Click("positive", Point(0.75, 0.4))
    policy.revise(
        image,
        parse_instruction(row["instruction"])[0],
        LesionBox(0, "opacity", Box(0.6, 0.3, 0.8, 0.5), "left lung"),
        [POOR, TRUTH],
        [click],
        seed=0,
    )
    ids, own = tokens.example(dialogue)
    done = len(tokens.pieces.encode(dialogue.answers[-1]))
    assert asked == [ids[:-done]]
    assert own[-done:] == [True] * done


def test_a_trajectory_is_shown_up_to_its_best_mask(folder: Path) -> None:
    radiographs = Radiographs(folder, RECIPE, 56)
    row = revision_row(3) | {"ious": [0.5, 0.9, 0.6, 0.7]}
    dialogue = revision_dialogue(row, radiographs)
    assert dialogue.answers[-1] == ("done", "")
    assert len(dialogue.turns) == len(dialogue.answers) == 2
    four = revision_row(4) | {"ious": [0.1, 0.2, 0.3, 0.4, 0.5]}
    dialogue = revision_dialogue(four, radiographs)
    assert len(dialogue.turns) == len(dialogue.answers) == 4  # no question after the last click
    assert all("point_start" in "".join(answer) for answer in dialogue.answers)


# SFT ---------------------------------------------------------------------------------------------------------------


def test_sft_moves_adapters_and_tower_at_their_rates_and_gives_an_adapter_that_runs(
    base: Path, folder: Path, tmp_path: Path
) -> None:
    model, gemma, tokens, radiographs = parts(base, None, folder, tower=True)
    assert not any("vision" in name for name, _ in model.named_parameters() if "lora_" in name)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    rows = teachable(Dataset.from_list([init_row(True), init_row(False)] * 4))
    run = RunSettings(tmp_path / "init", per_device=1, steps=6, log_every=1)
    trainer = train_sft(model, tokens, rows, init_dialogue, radiographs, SFT, run, processor=gemma.processor)
    changed = moved(before, dict(model.named_parameters()))
    assert changed and all(".default." in name for name in changed)
    assert any("vision_tower" in name for name in changed) and any("lora_B" in name for name in changed)
    rates = [group["initial_lr"] for group in trainer.optimizer.param_groups]
    assert rates == pytest.approx([1e-3, 3e-4])
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    timed = [entry for entry in trainer.state.log_history if "step_time" in entry]
    assert timed and all(0 < float(e["seconds_outside_models"]) < float(e["step_time"]) for e in timed)
    init = load_policies(base=base, adapters={"init": run.out}, settings={}, recipe=RECIPE, device="cpu").init
    image = radiographs.read("a.png")
    asked = parse_instruction("Segment the opacity in the left lung.")[0]
    said = init.ground_lungs(image, asked, ["left lung"], seed=0)
    assert said.value[0].label == "left lung"
    # pi_rev goes on from there, adapters and tower.
    further, _ = load_to_train(base, run.out, LORA, tower=True)
    saved = load_file(run.out / "adapter_model.safetensors")
    known = dict(further.named_parameters())
    assert any(
        torch.equal(known[name.replace(".weight", ".default.weight")], tensor)
        for name, tensor in saved.items()
        if "lora_A" in name
    )
    with pytest.raises(BundleError, match="r 4"):
        load_to_train(base, run.out, LoraSettings(8, 16), tower=True)


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(base: Path, folder: Path, tmp_path: Path) -> None:
    rows = Dataset.from_list([init_row(True), init_row(False)] * 4)
    whole, halved = tmp_path / "whole", tmp_path / "halved"

    def train(out: Path, *, resume: bool = False, stop: int | None = None) -> None:
        torch.manual_seed(0)
        model, gemma, tokens, radiographs = parts(base, None, folder, tower=True)
        run = RunSettings(out, per_device=1, steps=4, save_every=2, log_every=1)
        callbacks = [] if stop is None else [StopAt(stop)]
        train_sft(
            model,
            tokens,
            rows,
            init_dialogue,
            radiographs,
            SFT,
            run,
            processor=gemma.processor,
            callbacks=callbacks,
            resume=resume,
        )

    train(whole)
    train(halved, stop=2)
    train(halved, resume=True)
    expected, found = (load_file(out / "adapter_model.safetensors") for out in (whole, halved))
    assert not moved(expected, found)


class StopAt(TrainerCallback):  # type: ignore[misc]
    """Ends a training early, as a machine that is taken away would."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self._step


def test_a_folder_with_another_runs_checkpoints_is_refused_and_the_newest_ones_stay(
    base: Path, folder: Path, tmp_path: Path
) -> None:
    model, gemma, tokens, radiographs = parts(base, None, folder, tower=True)
    rows = Dataset.from_list([init_row(True)] * 4)
    run = RunSettings(tmp_path, per_device=2, steps=4, save_every=1, keep=2)
    train_sft(model, tokens, rows, init_dialogue, radiographs, SFT, run, processor=gemma.processor)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    # A machine that was taken away while it wrote leaves a part.
    (tmp_path / "checkpoint-5").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-4"
    with pytest.raises(CallError, match="go on with --resume"):
        train_sft(model, tokens, rows, init_dialogue, radiographs, SFT, run, processor=gemma.processor)


def test_rewards_that_are_all_the_same_stop_the_training(tmp_path: Path) -> None:
    guard = StopWhenConstant(patience=30)
    run = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    guard.on_train_begin(run, TrainerState(global_step=100), TrainerControl())

    def log(step: int, share: float) -> None:
        logs = {"loss": 0.0, "frac_reward_zero_std": share}
        guard.on_log(run, TrainerState(global_step=step), TrainerControl(), logs)

    for step, share in ((110, 1.0), (120, 1.0), (130, 0.5), (140, 1.0), (150, 1.0)):
        log(step, share)
    with pytest.raises(
        EngineError, match="step 160: in 30 steps in a row all answers to a question were paid the same"
    ):
        log(160, 1.0)


@pytest.mark.parametrize(("what", "match"), [("loss", "its loss is nan"), ("gradient", "its gradient's norm is nan")])
def test_no_checkpoint_follows_from_a_loss_or_a_gradient_that_is_no_number(
    what: str, match: str, base: Path, folder: Path, tmp_path: Path
) -> None:
    model, gemma, tokens, radiographs = parts(base, None, folder, tower=True)
    rows = Dataset.from_list([init_row(True)] * 8)
    run = RunSettings(tmp_path, per_device=2, steps=4, save_every=1, log_every=10)
    weight = next(each for name, each in model.named_parameters() if "lora_B" in name and each.requires_grad)

    class Spoil(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2 and what == "gradient":
                weight.register_hook(lambda gradient: gradient * float("nan"))

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2 and what == "loss":
                with torch.no_grad():
                    weight.fill_(float("nan"))

    with pytest.raises(EngineError, match=f"step 2: {match}"):
        train_sft(
            model, tokens, rows, init_dialogue, radiographs, SFT, run, processor=gemma.processor, callbacks=[Spoil()]
        )
    assert not (tmp_path / "adapter_model.safetensors").exists()
    newest = last_checkpoint(tmp_path)
    assert newest == tmp_path / "checkpoint-2"
    assert all(bool(each.isfinite().all()) for each in load_file(newest / "adapter_model.safetensors").values())


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(CallError, match="no instructions"):
        teachable(Dataset.from_list([init_row(True) | {"boxes": None}]))


def test_effective_batches_are_table_7s() -> None:
    assert accumulation(256, devices=8, per_device=4) == 8
    assert accumulation(64, devices=8, per_device=8) == 1
    assert accumulation(32, devices=8, per_device=4) == 1
    assert accumulation(256, devices=1, per_device=1) == 256
    with pytest.raises(CallError, match="multiple"):
        accumulation(32, devices=8, per_device=8)


# GRPO --------------------------------------------------------------------------------------------------------------


def scripted(trainer: Any, tokens: Tokens, radiographs: Radiographs, monkeypatch: Any) -> list[dict[str, Any]]:
    """Make the tiny policy click, for it cannot by itself; what each call of generate was given is kept.

    Every generation's first answer is a click, a positive and a negative one in turns; the second one is "done".
    """
    from xflow_core.policies.protocols import Done

    frame = radiographs.frame(radiographs.read("a.png"))
    calls: list[dict[str, Any]] = []

    def answers(prompt_ids: Any, images: Any, fields: Any, number: int, has_tool_images: bool = False) -> Any:
        calls.append({"ids": prompt_ids, "pictures": fields["pixel_values"]})
        said = []
        for index, _ in enumerate(prompt_ids):
            polarity = "positive" if index % 2 == 0 else "negative"
            move: Any = Click(polarity, Point(0.7, 0.4)) if len(calls) % 2 else Done()
            said.append(tokens.pieces.encode(write_click(move, frame)))
        return said, None

    monkeypatch.setattr(trainer, "_generate_single_turn", answers)
    return calls


def test_revision_is_played_with_the_segmenter_in_the_loop(
    base: Path, adapter: Path, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    model, gemma, tokens, radiographs = parts(base, adapter, folder, tower=False)
    segmenter = Rule()
    episodes = RevisionEpisodes(radiographs, tokens, segmenter)
    run = RunSettings(tmp_path, per_device=4, steps=1, save_every=1, log_every=1, tensorboard=True)
    trainer = grpo_trainer(model, gemma, tokens, episodes, Dataset.from_list([revision_row(0)] * 4), RL, run)
    scripted(trainer, tokens, radiographs, monkeypatch)
    seen: dict[str, Any] = {}
    inner = trainer._get_per_token_logps_and_entropies

    def spy(model: Any, ids: Any, mask: Any, keep: int, **named: Any) -> Any:
        found = inner(model, ids, mask, keep, **named)
        seen.update(named=named, ids=ids, mask=mask, keep=keep, logps=found[0].detach())
        return found

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", spy)
    before = {name: each.detach().clone() for name, each in model.named_parameters() if ".ref." not in name}
    train_grpo(trainer, run)
    assert segmenter.calls == [4]  # four trajectories on one radiograph: one call
    named = seen["named"]
    assert torch.equal(named["token_type_ids"] == 1, seen["ids"] == gemma.image_token)
    assert list(named["num_images"]) == [3] * 4
    assert named["pixel_values"].shape[0] == 12
    # What gained has become likelier, what harmed less likely.
    with torch.no_grad():
        after, _, _ = inner(model, seen["ids"], seen["mask"], seen["keep"], **{**named, "compute_entropy": False})
    said = tokens.pieces.of("+<|point_start|>(")[0]
    change = (after - seen["logps"])[:, : _first_turn(seen, gemma)].sum(1)
    good = (seen["ids"][:, -seen["keep"] :] == said).any(1)
    assert int(good.sum()) == 2
    assert float(change[good].min()) > float(change[~good].max())
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert log["rewards/R_format/mean"] == 1
    assert log["rewards/R_gain/mean"] == pytest.approx((0.5 - 0.5) / 2, abs=1e-6)
    changed = moved(before, dict(model.named_parameters()))
    assert changed and all("lora_" in name and ".default." in name and "language" in name for name in changed)
    assert (tmp_path / "adapter_model.safetensors").exists()
    assert not (tmp_path / "ref").exists()
    (board,) = (tmp_path / "runs").iterdir()
    events = EventAccumulator(str(board), size_guidance={"images": 0})
    events.Reload()
    told = {"reward", "kl", "seconds_outside_models", "seconds_segmenter"}
    assert {f"train/{name}" for name in told} <= set(events.Tags()["scalars"])
    assert log["seconds_segmenter"] > 0 and 0 < log["seconds_outside_models"] < log["step_time"]
    (picture,) = events.Images("rollouts")
    # Four trajectories of at most five masks each.
    assert picture.height == 4 * (picture.width // 5 + 22)
    load_policies(base=base, adapters={"revision": tmp_path}, settings={}, recipe=RECIPE, device="cpu")


def test_rl_that_was_stopped_goes_on_to_the_same_weights(
    base: Path, adapter: Path, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"

    def train(out: Path, *, resume: bool = False, stop: int | None = None) -> None:
        torch.manual_seed(0)
        model, gemma, tokens, radiographs = parts(base, adapter, folder, tower=False)
        episodes = RevisionEpisodes(radiographs, tokens, Rule())
        run = RunSettings(out, per_device=4, steps=4, save_every=2, log_every=1)
        rows = Dataset.from_list([revision_row(0)] * 16)
        callbacks = [] if stop is None else [StopAt(stop)]
        trainer = grpo_trainer(model, gemma, tokens, episodes, rows, RL, run, callbacks=callbacks)
        scripted(trainer, tokens, radiographs, monkeypatch)
        train_grpo(trainer, run, resume=resume)
        moving = {name for name, each in model.named_parameters() if each.requires_grad}
        assert moving and all("lora_" in name and ".default." in name for name in moving)

    train(whole)
    train(halved, stop=2)
    assert (halved / "checkpoint-2" / "optimizer.pt").exists()
    before = load_file(halved / "adapter_model.safetensors")
    train(halved, resume=True)
    expected, found = (load_file(out / "adapter_model.safetensors") for out in (whole, halved))
    assert moved(before, found) and not moved(expected, found)


@pytest.mark.parametrize("advantage", ["group", "batch"])
def test_groups_that_are_paid_the_same_are_counted_whatever_divides_the_advantage(
    advantage: str, base: Path, adapter: Path, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    model, gemma, tokens, radiographs = parts(base, adapter, folder, tower=False)
    episodes = RevisionEpisodes(radiographs, tokens, Rule())
    run = RunSettings(tmp_path, per_device=8, steps=1, log_every=1)
    # One gains a half by its click, the other one nothing.
    rows = Dataset.from_list([revision_row(0), revision_row(0) | {"masks": [rle.encode(TRUTH)]}])
    settings = replace(RL, batch=8, advantage=advantage)
    trainer = grpo_trainer(model, gemma, tokens, episodes, rows, settings, run)
    click = tokens.pieces.encode(
        write_click(Click("positive", Point(0.7, 0.4)), radiographs.frame(radiographs.read("a.png")))
    )
    monkeypatch.setattr(trainer, "_generate_single_turn", lambda ids, *_, **__: ([click] * len(ids), None))
    train_grpo(trainer, run)
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert log["rewards/R_gain/mean"] == pytest.approx(0.25, abs=1e-6) and log["frac_reward_zero_std"] == 1


def _first_turn(seen: dict[str, Any], gemma: Any) -> int:
    """Tokens of the first answers, which are as long as each other."""
    completions = seen["ids"][:, -seen["keep"] :]
    ends = {int((line == gemma.end).nonzero()[0, 0]) + 1 for line in completions}
    return max(ends)


@pytest.mark.parametrize("kind", ["init", "revision"])
def test_probabilities_in_the_update_are_those_at_sampling(
    kind: str, base: Path, adapter: Path, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Sampling runs on left-padded contexts of unequal length, turn by turn; the update on whole trajectories."""
    model, gemma, tokens, radiographs = parts(base, adapter, folder, tower=False)
    episodes: Any = (
        InitEpisodes(radiographs, tokens, answer_tokens=12)
        if kind == "init"
        else RevisionEpisodes(radiographs, tokens, Rule(), answer_tokens=12)
    )
    row = init_row() if kind == "init" else revision_row(0)
    rows = Dataset.from_list([row] * 4)
    settings = RlSettings(1e-3, 0.0, 1.0, 4, 1, 4, temperature=1.0, top_p=0.95, beta=0.02, format_weight=1.0)
    run = RunSettings(tmp_path, per_device=4, steps=1, log_every=1)
    trainer = grpo_trainer(model, gemma, tokens, episodes, rows, settings, run)
    sampled: list[list[float]] = []
    if kind == "revision":
        # Whatever it says is taken for a click, in turns of unequal number.
        heard = iter(range(100))

        def hear(self: Any, said: Sequence[int], _: Tokens) -> Prompt | None:
            number = next(heard)
            self.clicks.append(Click("positive", Point(0.7, 0.4)))
            return Prompt(self.box, tuple(self.clicks), self.current) if number in (0, 1, 2, 4, 5) else None

        from training.policies.episodes import RevisionEpisode

        monkeypatch.setattr(RevisionEpisode, "hear", hear)
    generate = model.generate

    def spy(*arguments: Any, **named: Any) -> torch.Tensor:
        out = generate(*arguments, **named, return_dict_in_generate=True, output_logits=True)
        new = out.sequences[:, named["input_ids"].shape[1] :]
        logps = torch.stack(out.logits, 1).float().log_softmax(-1).gather(2, new[:, :, None])[:, :, 0]
        sampled.append(logps.tolist())
        return out.sequences

    monkeypatch.setattr(model, "generate", spy)
    batch = trainer._generate_and_score_completions([trainer.train_dataset[i] for i in range(4)])
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    fields = {name: batch[name] for name in ("pixel_values", "token_type_ids", "num_images") if name in batch}
    with torch.no_grad():
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            model, ids, mask, batch["completion_ids"].shape[1], **fields
        )
    assert torch.equal(fields["token_type_ids"] == 1, ids == gemma.image_token)
    blind = fields | {"token_type_ids": torch.zeros_like(ids)}
    other = fields | {"pixel_values": fields["pixel_values"].flip(0)}
    own = (batch["tool_mask"] * batch["completion_mask"]).bool()
    # Put together what was drawn, turn by turn.
    playing = [0, 1, 2, 3]
    expected: list[list[float]] = [[] for _ in range(4)]
    turns = [sampled[0]] if kind == "init" else sampled
    for drawn, active in zip(turns, ([0, 1, 2, 3], [0, 1, 2], [0, 1]), strict=False):
        for line, which in zip(drawn, active, strict=True):
            expected[which].append(line)  # type: ignore[arg-type]
    for which in playing:
        spans = _spans(own[which].tolist())
        assert len(spans) == len(expected[which])
        for (start, stop), line in zip(spans, expected[which], strict=True):
            assert logps[which, start:stop].tolist() == pytest.approx(line[: stop - start], abs=2e-4)  # type: ignore[index]
    # It can tell: with no token types, or other pictures, the probabilities are others.
    with torch.no_grad():
        for wrong in (blind, other) if kind == "revision" else (blind,):
            differing, _, _ = trainer._get_per_token_logps_and_entropies(
                model, ids, mask, batch["completion_ids"].shape[1], **wrong
            )
            assert float((differing - logps)[own].abs().max()) > 1e-2
    if kind == "revision":
        assert sorted(batch["num_images"], reverse=True) == [4, 4, 3, 2]


def test_in_an_update_of_several_parts_each_trajectory_keeps_its_own_pictures(
    base: Path, adapter: Path, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Generated together, then shuffled and divided for the update: turns, and so pictures, of unequal number."""
    from training.policies.episodes import RevisionEpisode

    model, gemma, tokens, radiographs = parts(base, adapter, folder, tower=False)
    episodes = RevisionEpisodes(radiographs, tokens, Rule(), answer_tokens=12)
    settings = RlSettings(1e-3, 0.0, 1.0, 4, 1, 4, temperature=1.0, top_p=0.95, beta=0.02, format_weight=1.0)
    run = RunSettings(tmp_path, per_device=2, steps=1, log_every=1)
    trainer = grpo_trainer(model, gemma, tokens, episodes, Dataset.from_list([revision_row(0)] * 4), settings, run)
    assert trainer.args.gradient_accumulation_steps == 2
    heard = iter(range(100))

    def hear(self: Any, said: Sequence[int], _: Tokens) -> Prompt | None:
        number = next(heard)
        # Two kinds of masks, so that one's pictures are not the other's.
        self.clicks.append(Click("positive" if number % 2 else "negative", Point(0.7, 0.4)))
        return Prompt(self.box, tuple(self.clicks), self.current) if number in (0, 1, 2, 4, 5) else None

    monkeypatch.setattr(RevisionEpisode, "hear", hear)
    generate, inner = model.generate, trainer._get_per_token_logps_and_entropies
    sampled: dict[tuple[int, ...], list[list[float]]] = {}
    together: list[int] = []
    updates: list[list[int]] = []

    def drawing(*arguments: Any, **named: Any) -> torch.Tensor:
        out = generate(*arguments, **named, return_dict_in_generate=True, output_logits=True)
        new = out.sequences[:, named["input_ids"].shape[1] :]
        logps = torch.stack(out.logits, 1).float().log_softmax(-1).gather(2, new[:, :, None])[:, :, 0]
        together.append(len(new))
        for ids, values in zip(new.tolist(), logps.tolist(), strict=True):
            stop = ids.index(gemma.end) + 1 if gemma.end in ids else len(ids)
            sampled.setdefault(tuple(ids[:stop]), []).append(values[:stop])
        return out.sequences

    checked = 0

    def updating(model: Any, ids: Any, mask: Any, keep: int, **named: Any) -> Any:
        nonlocal checked
        found = inner(model, ids, mask, keep, **named)
        if not torch.is_grad_enabled():
            return found
        updates.append(list(named["num_images"]))
        for line, logps in zip(ids[:, -keep:].tolist(), found[0].tolist(), strict=True):
            for drawn, ways in sampled.items():
                for start in range(len(line) - len(drawn) + 1):
                    if tuple(line[start : start + len(drawn)]) == drawn and len(drawn) > 3:
                        seen = logps[start : start + len(drawn)]
                        assert any(seen == pytest.approx(way, abs=2e-4) for way in ways)
                        checked += 1
        return found

    monkeypatch.setattr(model, "generate", drawing)
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", updating)
    train_grpo(trainer, run)
    assert max(together) == 2  # no more at once than the update takes
    assert len(updates) == 2 and sorted((many for each in updates for many in each), reverse=True) == [4, 4, 3, 2]
    assert checked >= 8
    # Turns, reference and update ask for pictures that the frozen tower has looked at once.
    (episode, *_) = trainer.rollouts
    drawn = [overlaid(episode.square, mask) for each in trainer.rollouts for mask in each.masks]
    different = {picture.tobytes() for picture in (episode.square, *drawn)}
    in_the_update = sum(many for each in updates for many in each)
    assert trainer.seen.encoded == len(different) < in_the_update < trainer.seen.asked


# What clicks bring, measured -----------------------------------------------------------------------------------------


class Twice(Rule):
    """With no click it gives the mask back that it gave before."""

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        return [
            super(Twice, self).segment(image, [prompt])[0] if prompt.clicks else Prediction(prompt.previous.mask)
            for prompt in prompts
            if prompt.previous is not None
        ]


def test_a_policys_clicks_are_measured_beside_random_ones_none_and_the_oracles(
    base: Path, adapter: Path, folder: Path
) -> None:
    from xflow_core.policies.protocols import Done

    _, _, tokens, radiographs = parts(base, adapter, folder, tower=False)
    episodes = RevisionEpisodes(radiographs, tokens, Twice())
    frame = radiographs.frame(radiographs.read("a.png"))

    class Script:
        """Greedy, it clicks rightly in the first case and stops in the second; sampled, it clicks wrongly in both."""

        def play(self, episodes: RevisionEpisodes, each: Sequence[Any], *, sampled: bool, top_p: float) -> None:
            wrong, right = (Click(polarity, Point(0.75, 0.4)) for polarity in ("negative", "positive"))
            moves: list[list[Any]] = [[wrong], [wrong]] if sampled else [[right, Done()], [Done()]]
            for episode, said in zip(each, moves, strict=True):
                for move in said:
                    episodes.move([episode], [tokens.pieces.encode(write_click(move, frame))])

    settings = RevisionSettings(clicks=4, guard_px=25, jitter=0.1, starts=1)
    player: Any = Script()
    rows = [revision_row(0), revision_row(0) | {"finding": "effusion"}]
    found, lines = measure_revision(rows, episodes, player, settings)
    greedy, sampled = found["greedy"], found["sampled"]
    assert greedy["all"]["gain"][0] == 0.25 and greedy["all"]["clicked"]["gain"][0] == 0.5
    assert (greedy["all"]["improved"], greedy["all"]["worsened"], greedy["all"]["clicked"]["n"]) == (0.5, 0, 1)
    assert greedy["effusion"]["gain"][0] == 0 and greedy["effusion"]["clicked"]["gain"] is None
    assert sampled["all"]["gain"][0] == -0.5 and sampled["all"]["worsened"] == 1
    assert found["random_clicks"]["all"]["clicks"][0] == 0.5  # as many as the policy made in that case
    assert found["second_pass"]["all"]["gain"][0] == 0 and found["second_pass"]["all"]["clicks"][0] == 0
    assert found["oracle"]["all"]["gain"][0] == 0.5 and found["oracle"]["all"]["clicks"][0] == 1
    assert found["beside"]["second_pass"][0] == 0.25
    assert len(lines) == 2 * len(greedy) - 2  # greedy and sampled, a line for each finding


def test_pictures_show_each_finding_on_different_radiographs() -> None:
    asked = [("opacity", "a"), ("opacity", "a"), ("effusion", "a"), ("opacity", "b"), ("opacity", "c")]
    rows = [{"finding": finding, "image": image} for finding, image in asked]
    assert chosen([object()] * 5, rows, 2) == [2, 0, 3]


def _spans(own: list[bool]) -> list[tuple[int, int]]:
    edges = [index for index in range(1, len(own)) if own[index] != own[index - 1]]
    cuts = [0, *edges, len(own)]
    return [(start, stop) for start, stop in pairwise(cuts) if own[start]]


def test_what_cannot_be_read_ends_the_episode_and_pays_no_format(base: Path, adapter: Path, folder: Path) -> None:
    _, gemma, tokens, radiographs = parts(base, adapter, folder, tower=False)
    episodes = RevisionEpisodes(radiographs, tokens, Rule())
    episode = episodes.begin(json.loads(json.dumps(revision_row(0))))
    click = tokens.pieces.encode(write_click(Click("positive", Point(0.7, 0.4)), episode.frame))
    (turn,) = episodes.move([episode], [click])
    assert turn is not None and episode.rewards() == {"R_gain": 0.5, "R_format": 1.0}
    assert episodes.move([episode], [[*click[:-2], gemma.end]]) == [None]
    assert episode.rewards() == {"R_gain": 0.5, "R_format": 0.0}


def test_the_same_text_in_other_tokens_is_not_the_policys_answer(base: Path, adapter: Path, folder: Path) -> None:
    _, gemma, tokens, radiographs = parts(base, adapter, folder, tower=False)
    episodes = InitEpisodes(radiographs, tokens)
    dialogue = init_dialogue(init_row(), radiographs)
    said = tokens.pieces.encode(dialogue.answers[0])
    spelled = [each for token in said[:-1] for each in _letters(token, gemma)] + [gemma.end]
    assert tokens.pieces.text(spelled) == tokens.pieces.text(said)
    for answer, readable in ((said, 1.0), (spelled, 0.0), (said[:-1], 0.0)):
        episode = episodes.begin(init_row())
        assert episodes.move([episode], [answer]) == [None]
        assert episode.rewards()["R_format"] == readable


def _letters(token: int, gemma: Any) -> list[int]:
    text = gemma.processor.tokenizer.convert_ids_to_tokens(token)
    letters = gemma.processor.tokenizer.convert_tokens_to_ids(list(text))
    return letters if len(text) > 1 and not text.startswith("<") else [token]
