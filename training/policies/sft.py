"""Supervised fine-tuning of both policies (paper, 4.4, A.4): trl's trainer on XFlow's own tokens.

trl's collator would render the chat and cut the answer its own way; here the batches come from
:class:`~training.policies.dialogues.Tokens`, so that the loss lies on the tokens that constrained decoding writes, and
on those alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xflow_core.policies.bitsandbytes_alone  # noqa: F401  before peft, which imports bitsandbytes

# isort: split
import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from training.policies.dialogues import Dialogue, Radiographs, Tokens
from training.policies.from_scratch import FromScratchLoss, KeepHead
from training.policies.models import TOWER, in_tower
from training.policies.settings import SftSettings, accumulation
from training.policies.targets import InitTarget
from training.trainers import FiniteSteps, beginning, memory_told
from xflow_core.domain.errors import CallError, RadiographError, ValueRefused

LOG = logging.getLogger(__name__)

Draw = Callable[[Mapping[str, Any], Radiographs], Dialogue]


@dataclass(frozen=True)
class RunSettings:
    """How a training is run; nothing here changes what an effective batch learns.

    steps: stop there; None for the epochs of Table 7. save_every, log_every: steps. keep: the newest checkpoints that
    stay.
    """

    out: Path
    devices: int = 1
    per_device: int = 1
    seed: int = 0
    steps: int | None = None
    save_every: int = 500
    log_every: int = 10
    keep: int = 3
    tensorboard: bool = False


def arguments_of(run: RunSettings, batch: int) -> dict[str, Any]:
    """The arguments that trl's trainers share."""
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(run.out),
        "per_device_train_batch_size": run.per_device,
        "gradient_accumulation_steps": accumulation(batch, run.devices, run.per_device),
        "max_steps": -1 if run.steps is None else run.steps,
        "seed": run.seed,
        "data_seed": run.seed,
        "logging_steps": run.log_every,
        "logging_nan_inf_filter": False,
        "save_steps": run.save_every,
        "save_total_limit": run.keep,
        "report_to": ["tensorboard"] if run.tensorboard else [],
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": on_gpu,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "optim": "adamw_torch",
    }


class DialogueSFTTrainer(FiniteSteps, SFTTrainer):  # type: ignore[misc]
    """trl's trainer with two rates: the vision tower's is a share of the rest's.

    Its log has the seconds of a step, too, and those of them that were spent waiting for batches: radiographs, tokens,
    targets.
    """

    def __init__(
        self, *arguments: Any, tower_rate: float, from_scratch: FromScratchLoss | None = None, **named: Any
    ) -> None:
        self._tower_rate, self._from_scratch = tower_rate, from_scratch
        self._begun: float | None = None
        super().__init__(*arguments, **named)
        if from_scratch is not None:
            self.loss_is_scaled_for_ga = False

    def get_batch_samples(self, *given: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        if self._begun is not None:
            self._metrics["train"]["step_time"].append(begun - self._begun)
        self._begun = begun
        batches = super().get_batch_samples(*given, **named)
        self._metrics["train"]["seconds_outside_models"].append(time.perf_counter() - begun)
        return batches

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self._from_scratch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        said, seen = self._from_scratch.parts(model, inputs, self.state.global_step)
        for name, part in (("loss/answer", said), ("loss/patches", seen)):
            self._metrics["train"][name].append(part.item())
        return said + seen

    def create_optimizer(self, *_: Any, **__: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            moving = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
            rate = self.args.learning_rate
            if self._from_scratch is not None and self._from_scratch.head is not None:
                moving += [(f"{TOWER}.head", each) for each in self._from_scratch.head.parameters()]
            groups = [
                {"params": [each for name, each in moving if not in_tower(name)], "lr": rate},
                {"params": [each for name, each in moving if in_tower(name)], "lr": rate * self._tower_rate},
            ]
            self.optimizer = torch.optim.AdamW(
                [group for group in groups if group["params"]], weight_decay=self.args.weight_decay
            )
        return self.optimizer


def teachable(rows: Dataset) -> Dataset:
    """The instructions for which a target can be written; the log says how many are left out.

    Raises:
        CallError: none is.
    """

    def can_be(row: Mapping[str, Any]) -> bool:
        try:
            InitTarget.of_row(row)
        except ValueRefused:
            return False
        return True

    kept = rows.filter(can_be)
    if len(kept) < len(rows):
        LOG.info(
            "%d of %d instructions are left out: no answer in the grammar is theirs", len(rows) - len(kept), len(rows)
        )
    return not_empty(kept, "instructions")


def not_empty(rows: Dataset, what: str) -> Dataset:
    if len(rows) == 0:
        raise CallError(f"There are no {what} to train on.")
    return rows


def train_sft(
    model: torch.nn.Module,
    tokens: Tokens,
    rows: Dataset,
    draw: Draw,
    radiographs: Radiographs,
    settings: SftSettings,
    run: RunSettings,
    *,
    processor: Any,
    from_scratch: FromScratchLoss | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    resume: bool = False,
) -> DialogueSFTTrainer:
    """Train, and save the adapter to ``run.out``.

    Args:
        model: of :func:`~training.policies.models.load_to_train`, with its tower.
        rows: of ``training instructions`` or ``training trajectories``. draw: the dialogue of a row.
        from_scratch: the loss for a base that was never trained, with ``settings.from_scratch``.
        resume: from the newest whole checkpoint in ``run.out``; from the beginning where there is none.

    Raises:
        CallError: no rows, an effective batch that cannot be made, or a folder with another run's checkpoints.
        EngineError: the loss or a gradient is no number, or the memory does not suffice.
    """
    not_empty(rows, "rows")
    newest = beginning(run.out, resume=resume)
    dense = None if from_scratch is None else from_scratch.dense

    def collate(batch: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        named: list[Mapping[str, Any]] = []
        dialogues = []
        for row in ({**row, "image": row["radiograph"]} for row in batch):
            try:
                dialogues.append(draw(row, radiographs))
            except RadiographError as problem:
                # One file of many: the batch is one row smaller.
                LOG.warning("A row is left out: %s", problem)
                continue
            named.append(row)
        if not dialogues:
            raise CallError("No radiograph of a whole batch can be read; check where the sets lie (--data).")
        made = tokens.batch(dialogues)
        if dense is not None:
            maps = [each for row, dialogue in zip(named, dialogues, strict=True) for each in dense.of(row, dialogue)]
            made["dense"] = torch.from_numpy(np.stack(maps))
        return made

    arguments = SFTConfig(
        **arguments_of(run, settings.batch),
        learning_rate=settings.rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        num_train_epochs=settings.epochs,
        warmup_steps=settings.warmup,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    kept = [] if from_scratch is None else [KeepHead(from_scratch)]
    trainer = DialogueSFTTrainer(
        model=model,
        args=arguments,
        data_collator=collate,
        # Not "image": to trl that names a column of pictures.
        train_dataset=rows.rename_column("image", "radiograph"),
        processing_class=processor,
        tower_rate=settings.tower_rate,
        from_scratch=from_scratch,
        callbacks=[*kept, *callbacks],
    )
    if newest is not None and kept:
        kept[0].load(newest)
    with memory_told(run.per_device):
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    trainer.save_state()
    trainer.save_model()
    return trainer
