"""The run of the segmenter's training: transformers' Trainer (accelerate, checkpoints, resuming) around one network."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xflow_core.policies.bitsandbytes_alone  # noqa: F401  before peft, which imports bitsandbytes

# isort: split
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

from training.curation.paper import RevisionSettings
from training.policies.settings import accumulation
from training.segmenter.checks import Checks, sheet
from training.segmenter.examples import Examples, collated
from training.segmenter.network import PromptedTracker, averages, parameter_groups
from training.segmenter.settings import SegmenterTraining
from training.trainers import FiniteSteps, beginning, memory_told
from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import CallError
from xflow_core.export.files import write_whole

LOG = logging.getLogger(__name__)

REPORT = "training.json"
"""Written last: a folder that holds it holds a finished training."""


@dataclass(frozen=True)
class RunSettings:
    """How a training is run; nothing here changes what an effective batch learns.

    Attributes:
        per_device: radiographs that a device takes at once. steps: stop there; None for the epochs of Table 7.
        save_every, log_every: steps. keep: the newest checkpoints that stay. check: components of the validation split
            that are measured at every save; 0 for none. workers: processes that read radiographs.
        bf16: the encoder computes in bfloat16; None for where there is a GPU. checkpointing: likewise.
    """

    out: Path
    devices: int = 1
    per_device: int = 1
    seed: int = 0
    steps: int | None = None
    save_every: int = 500
    log_every: int = 10
    keep: int = 3
    check: int = 64
    workers: int = 0
    tensorboard: bool = False
    bf16: bool | None = None
    checkpointing: bool | None = None


def train_segmenter(
    tracker: Any,
    examples: Examples,
    validation: Examples | None,
    settings: SegmenterTraining,
    revision: RevisionSettings,
    run: RunSettings,
    *,
    recipe: str,
    callbacks: Sequence[TrainerCallback] = (),
    resume: bool = False,
) -> SegmenterTrainer:
    """Train, and write to ``run.out`` what ``xflow bundles make`` takes as a segmenter.

    Args:
        tracker: as :func:`~xflow_core.segmenters.sam3.load_tracker` gives it. validation: what is measured on the way.
        resume: from the newest whole checkpoint in ``run.out``; from the beginning where there is none.

    Raises:
        CallError: no examples, an effective batch that cannot be made, or a folder with another run's checkpoints.
        EngineError: the loss or a gradient is no number, or the memory does not suffice; checkpoints stay.
        RadiographError: a radiograph cannot be read.
    """
    if not len(examples):
        raise CallError("There are no radiographs with a contour to train on.")
    newest = beginning(run.out, resume=resume)
    on_gpu = torch.cuda.is_available()
    network = PromptedTracker(
        tracker,
        settings,
        revision,
        seed=run.seed,
        bf16=on_gpu if run.bf16 is None else run.bf16,
        checkpointing=on_gpu if run.checkpointing is None else run.checkpointing,
    )
    checks = None if validation is None or not run.check else Checks(validation, revision, recipe, run.check, run.seed)
    trainer = SegmenterTrainer(
        model=network,
        args=_arguments(settings, run, on_gpu, checked=checks is not None),
        data_collator=collated,
        train_dataset=examples,
        eval_dataset=validation,
        callbacks=[
            *([PicturesToTensorBoard(checks)] if run.tensorboard else []),
            *callbacks,
        ],
        settings=settings,
        checks=checks,
    )
    with memory_told(run.per_device):
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    if trainer.is_world_process_zero():
        _write(trainer, settings, revision, run, recipe)
    return trainer


def _arguments(settings: SegmenterTraining, run: RunSettings, on_gpu: bool, *, checked: bool) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(run.out),
        per_device_train_batch_size=run.per_device,
        gradient_accumulation_steps=accumulation(settings.batch, run.devices, run.per_device),
        max_steps=-1 if run.steps is None else run.steps,
        num_train_epochs=settings.epochs,
        learning_rate=settings.rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": settings.final_rate},
        seed=run.seed,
        data_seed=run.seed,
        logging_steps=run.log_every,
        logging_nan_inf_filter=False,
        save_steps=run.save_every,
        save_total_limit=run.keep,
        eval_strategy="steps" if checked else "no",
        eval_steps=run.save_every,
        report_to=[],
        # The network chooses itself what is computed in bfloat16.
        bf16=False,
        use_cpu=not on_gpu,
        ddp_find_unused_parameters=True,
        dataloader_num_workers=run.workers,
        dataloader_pin_memory=on_gpu,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    # Several GPUs are used by `accelerate launch`, one process each; never by torch's DataParallel.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


class SegmenterTrainer(FiniteSteps, Trainer):  # type: ignore[misc]
    """The Trainer with the tracker's groups of parameters.

    Its log has, beside the Trainer's own, the losses, the IoU after each turn, radiographs a second, and the share of
    the time that was spent outside the network: waiting for radiographs, and making prompts.
    """

    def __init__(self, *arguments: Any, settings: SegmenterTraining, checks: Checks | None, **named: Any) -> None:
        self._settings, self._checks = settings, checks
        self._since = time.perf_counter()
        super().__init__(*arguments, **named)

    @property
    def network(self) -> PromptedTracker:
        network: PromptedTracker = self.accelerator.unwrap_model(self.model)
        return network

    def create_optimizer(self, *_: Any, **__: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(parameter_groups(self.network.tracker, self._settings))
        return self.optimizer

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *others: Any) -> Any:
        begun = time.perf_counter()
        batches = super().get_batch_samples(epoch_iterator, *others)
        self.network.seen["seconds_outside"] += time.perf_counter() - begun
        return batches

    def compute_loss(self, model: Any, inputs: dict[str, Any], *others: Any, **named: Any) -> Any:
        return super().compute_loss(model, {**inputs, "step": self.state.global_step}, *others, **named)

    def log(self, logs: dict[str, float], *others: Any, **named: Any) -> None:
        seen, now = self.network.seen, time.perf_counter()
        if "loss" in logs and seen["radiographs"]:
            passed = now - self._since
            logs = {
                **logs,
                **averages(seen),
                "radiographs_per_second": seen["radiographs"] * self.args.world_size / passed,
                "share_outside_network": seen["seconds_outside"] / passed,
            }
            seen.clear()
            self._since = now
        super().log(logs, *others, **named)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The IoUs of the validation components, after their box and after each click."""
        begun = time.perf_counter()
        if self._checks is None:
            return {}
        tracker = self.network.tracker
        found = self._checks.run(tracker.eval())
        tracker.train()
        figures = {f"eval_iou/{turn}": float(value) for turn, value in enumerate(found)}
        self._since += time.perf_counter() - begun  # not the training's
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures


class PicturesToTensorBoard(TensorBoardCallback):  # type: ignore[misc]
    """Scalars as the Trainer logs them, and after each check some trajectories: box, masks, truth and clicks."""

    def __init__(self, checks: Checks | None) -> None:
        super().__init__()
        self._checks = checks

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._checks is None or self.tb_writer is None or not self._checks.shown:
            return
        picture = sheet(self._checks.shown, self._checks.turns)
        self.tb_writer.add_image("trajectories", picture, state.global_step, dataformats="HWC")


def _write(
    trainer: SegmenterTrainer, settings: SegmenterTraining, revision: RevisionSettings, run: RunSettings, recipe: str
) -> None:
    """The tracker's own files, each whole or not at all, then the report."""
    new = run.out / f".{os.getpid()}.part"
    try:
        # Under the tracker's own names, also where it came out of all of SAM3.
        trainer.network.tracker.save_pretrained(new, save_original_format=False)
        for path in sorted(new.iterdir()):
            os.replace(path, run.out / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    logged = [entry for entry in trainer.state.log_history if any(name.startswith("eval_iou") for name in entry)]
    report = {
        "schema": "xflow.segmenter-training/1",
        "notice": NOT_FOR_CLINICAL_USE,
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "radiographs": len(trainer.train_dataset),
        "recipe": recipe,
        "seed": run.seed,
        "settings": asdict(settings),
        "revision": asdict(revision),
        "validation_iou": [
            {"step": entry["step"], "iou": [round(entry[name], 4) for name in sorted(entry) if "iou/" in name]}
            for entry in logged
        ],
    }
    write_whole(run.out / REPORT, (json.dumps(report, indent=1) + "\n").encode())
