"""GRPO of both policies (paper, 4.4, A.4): trl's trainer with XFlow's rollouts.

One method of trl's is replaced, :meth:`EpisodeGRPOTrainer._generate`: it plays episodes, answer by answer, and returns
each as one completion in which the policy's own tokens are marked and the user's side (the next picture) is not. All
else is trl's: advantages, KL, the loss. What trl 1.16 does not know of Gemma3 is told it in the constructor; without
that it silently trains on images that the model does not see as images.

The prompt, too, is rendered by :class:`~training.policies.dialogues.Tokens`, so the tokens are those of inference.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import xflow_core.policies.bitsandbytes_alone  # noqa: F401  before peft, which imports bitsandbytes

# isort: split
import torch
from datasets import Dataset
from peft import PeftModel
from PIL import Image
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, is_deepspeed_zero3_enabled
from trl import GRPOConfig, GRPOTrainer

from training.policies.dialogues import Tokens, Turn
from training.policies.episodes import Episodes
from training.policies.models import choose_trained
from training.policies.pictures import rollouts
from training.policies.seen import SeenPictures
from training.policies.settings import RlSettings
from training.policies.sft import RunSettings, arguments_of, not_empty
from training.trainers import FiniteSteps, StopWhenConstant, beginning, memory_told
from xflow_core.policies.medgemma_model import MedGemma

_SHOWN = 6  # rollouts in a picture


class EpisodeGRPOTrainer(FiniteSteps, GRPOTrainer):  # type: ignore[misc]
    """trl's trainer, playing episodes."""

    def __init__(self, *arguments: Any, episodes: Episodes, tokens: Tokens, gemma: MedGemma, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._episodes, self._tokens, self._end = episodes, tokens, gemma.end
        # trl knows the placeholders of other families only; without this all token types would be zero.
        self._image_pad_token_id = gemma.image_token
        # Any tool makes trl take the images and token types from prompt and completion together. It is never called.
        self.tools = [_no_tool]
        self.generation_config.max_new_tokens = episodes.answer_tokens
        self.seen = SeenPictures(gemma)
        self._rows: list[dict[str, Any]] = []
        self.rollouts: list[Any] = []
        """The episodes that were played last."""
        self._inside = 0.0

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        begun, self._inside = time.perf_counter(), 0.0
        self._rows = [json.loads(entry["row"]) for entry in inputs]
        self.seen.forget()
        self._episodes.segmenter_seconds = 0.0
        scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        if self.scale_rewards == "batch":
            # trl then calls a group constant when the whole batch is.
            constant = self.accelerator.gather(scored["advantages"].abs() < 1e-6).float().mean().item()
            self._metrics[mode]["frac_reward_zero_std"][-1] = constant
        # Radiographs, tokens, pictures, rewards: what is neither the policy's nor the segmenter's work. The update that
        # follows is the policy's.
        outside = time.perf_counter() - begun - self._inside - self._episodes.segmenter_seconds
        for name, seconds in (("outside_models", outside), ("segmenter", self._episodes.segmenter_seconds)):
            self._metrics[mode][f"seconds_{name}"].append(seconds)
        return scored

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        played = [_Played(self._episodes.begin(row)) for row in self._rows]
        for each in played:
            each.prompt = self._tokens.turns([each.turns[0]])[0]
        active = played
        for _ in range(self._episodes.turns):
            if not active:
                break
            answers = self._answers(active)
            following = self._episodes.move([each.episode for each in active], answers)
            for each, said, turn in zip(active, answers, following, strict=True):
                each.hear(said, turn, self._tokens)
            active = [each for each, turn in zip(active, following, strict=True) if turn is not None]
        mode = "train" if self.model.training else "eval"
        lengths = torch.tensor([sum(each.own) for each in played], device=self.accelerator.device)
        turns = torch.tensor([len(each.turns) for each in played], device=self.accelerator.device)
        for name, counts in (("completions/mean_length", lengths), ("rollout/turns", turns)):
            self._metrics[mode][name].append(self.accelerator.gather(counts).float().mean().item())
        self.rollouts = [each.episode for each in played]
        rewards = [each.episode.rewards() for each in played]
        extra = {name: [reward[name] for reward in rewards] for name in self._episodes.rewards}
        images = [[Image.fromarray(p) for p in chain(*(turn.pictures for turn in each.turns))] for each in played]
        messages = [[{"role": "assistant", "content": self._tokens.pieces.text(each.completion)}] for each in played]
        return (
            [each.prompt for each in played],
            [each.completion for each in played],
            [each.own for each in played],
            messages,
            None,
            extra,
            images,
            images,
        )

    def _answers(self, active: Sequence[_Played]) -> list[list[int]]:
        """As many at once as the update takes: by the last turn each has five pictures."""
        answers: list[list[int]] = []
        at_once = self.args.per_device_train_batch_size
        for start in range(0, len(active), at_once):
            some = active[start : start + at_once]
            pictures = [picture for each in some for turn in each.turns for picture in turn.pictures]
            fields = {"pixel_values": self._tokens.pixels(pictures)}
            asked = time.perf_counter()
            said, _ = self._generate_single_turn(
                [each.prompt + each.completion for each in some], None, fields, 1, has_tool_images=True
            )
            self._inside += time.perf_counter() - asked
            answers += said
        return answers

    def _get_per_token_logps_and_entropies(self, *arguments: Any, num_crops: Any = None, **named: Any) -> Any:
        # Gemma3's image processor also gives num_crops, which trl 1.16 hands on to where it is unknown.
        asked = time.perf_counter()
        found = super()._get_per_token_logps_and_entropies(*arguments, **named)
        self._inside += time.perf_counter() - asked
        return found

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        prepared = super()._prepare_inputs(generation_batch)
        self._choose()
        return prepared

    def create_optimizer(self, *given: Any, **named: Any) -> Any:
        self._choose()
        return super().create_optimizer(*given, **named)

    def _choose(self) -> None:
        """Going back from the reference's adapter, and going on from a checkpoint, PEFT makes all of this adapter's
        weights trainable, the tower's too."""
        choose_trained(self.accelerator.unwrap_model(self.model), tower=False)


class _Played:
    """An episode and its tokens so far."""

    def __init__(self, episode: Any) -> None:
        self.episode = episode
        self.turns: list[Turn] = [episode.opening]
        self.prompt: list[int] = []
        self.completion: list[int] = []
        self.own: list[int] = []

    def hear(self, said: Sequence[int], turn: Turn | None, tokens: Tokens) -> None:
        self.completion += said
        self.own += [1] * len(said)
        if turn is not None:
            self.turns.append(turn)
            shown = tokens.turns(self.turns)[-1]
            self.completion += shown
            self.own += [0] * len(shown)


class RolloutsToTensorBoard(TensorBoardCallback):  # type: ignore[misc]
    """Scalars as the trainer logs them, and with every checkpoint some of the rollouts before it.

    trainer: set once it has been made.
    """

    trainer: EpisodeGRPOTrainer | None = None

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.tb_writer is not None and self.trainer is not None and self.trainer.rollouts:
            picture = rollouts(self.trainer.rollouts, _SHOWN)
            self.tb_writer.add_image("rollouts", picture, state.global_step, dataformats="HWC")


def _no_tool() -> None:
    """Stands for a tool."""


def _reward(name: str) -> Callable[..., list[float]]:
    def read(completions: list[Any], **given: Any) -> list[float]:
        return [float(value) for value in given[name]]

    read.__name__ = name
    return read


def questions_of(rows: Dataset) -> Dataset:
    """Rows as trl wants them: a prompt (which is not used) and the row itself."""
    return Dataset.from_list([
        {"prompt": [{"role": "user", "content": row["instruction"]}], "row": json.dumps(row)} for row in rows
    ])  # fmt: skip


def grpo_trainer(
    model: PeftModel,
    gemma: MedGemma,
    tokens: Tokens,
    episodes: Episodes,
    rows: Dataset,
    settings: RlSettings,
    run: RunSettings,
    *,
    callbacks: Sequence[TrainerCallback] = (),
) -> EpisodeGRPOTrainer:
    """The trainer, ready.

    Args:
        model: of :func:`~training.policies.models.load_to_train` from the same policy's SFT, without its tower.
        rows: of ``training instructions`` or ``training trajectories``, the RL split.

    Raises:
        CallError: no rows, or an effective batch that cannot be made.
    """
    weights = {"R_format": settings.format_weight}
    board = RolloutsToTensorBoard() if run.tensorboard else None
    arguments = GRPOConfig(
        **{**arguments_of(run, settings.batch), "report_to": []},
        warmup_steps=settings.warmup,
        learning_rate=settings.rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        num_train_epochs=settings.epochs,
        num_generations=settings.generations,
        temperature=settings.temperature,
        top_p=settings.top_p,
        beta=settings.beta,
        max_completion_length=episodes.answer_tokens,
        reward_weights=[weights.get(name, 1.0) for name in episodes.rewards],
        loss_type="grpo",
        scale_rewards=settings.advantage,
        # A policy draws no pictures.
        generation_kwargs={"suppress_tokens": list(gemma.image_tokens)},
    )
    trainer = EpisodeGRPOTrainer(
        model=model,
        reward_funcs=[_reward(name) for name in episodes.rewards],
        args=arguments,
        train_dataset=questions_of(not_empty(rows, "questions")),
        processing_class=gemma.processor,
        callbacks=[StopWhenConstant(), *([] if board is None else [board]), *callbacks],
        episodes=episodes,
        tokens=tokens,
        gemma=gemma,
    )
    if board is not None:
        board.trainer = trainer
    return trainer


def train_grpo(trainer: EpisodeGRPOTrainer, run: RunSettings, *, resume: bool = False) -> None:
    """Train, and save the adapter to ``run.out``.

    Raises:
        CallError: the folder holds another run's checkpoints.
        EngineError: the loss or a gradient is no number, every reward is constant within its group, or the memory does
            not suffice.
    """
    newest = beginning(run.out, resume=resume)
    divided = trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled()
    with memory_told(run.per_device), nullcontext() if divided else trainer.seen.used():
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    trainer.save_state()
    trainer.save_model()
    if trainer.accelerator.is_main_process:
        # PEFT saves the reference, the adapter that it began with, beside it.
        shutil.rmtree(run.out / "ref", ignore_errors=True)
