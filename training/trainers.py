"""What every training does: it goes on from its newest whole checkpoint, and stops with a reason, before it spoils what
was saved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from xflow_core.domain.errors import CallError, EngineError


def last_checkpoint(out: Path) -> Path | None:
    """The newest checkpoint that was written to its end; its state is written last."""
    whole = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def beginning(out: Path, *, resume: bool) -> Path | None:
    """The checkpoint from which a training in ``out`` goes on; None where it begins anew.

    Raises:
        CallError: the folder holds checkpoints, and the training is not to go on from them.
    """
    newest = last_checkpoint(out)
    if newest is not None and not resume:
        raise CallError(f"{out} holds checkpoints of a run; go on with --resume, or choose another folder.")
    return newest


class FiniteSteps:
    """For a transformers Trainer, before it in the bases: looks at each loss and gradient before they count, so that no
    checkpoint ever holds what follows from one that is no number."""

    def training_step(self, *given: Any, **named: Any) -> Any:
        loss = super().training_step(*given, **named)  # type: ignore[misc]
        self._look("loss", loss)
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        norm = super()._clip_grad_norm(model)  # type: ignore[misc]
        # DeepSpeed tells the norm later.
        if norm is not None:
            self._look("gradient's norm", norm)
        return norm

    def _look(self, what: str, value: Any) -> None:
        if not math.isfinite(float(value)):
            state, arguments = self.state, self.args  # type: ignore[attr-defined]
            raise EngineError(
                f"The training stopped at step {state.global_step}: its {what} is {float(value)}. "
                f"The checkpoints in {arguments.output_dir} are of the steps before; a lower rate may help."
            )


class StopWhenConstant(TrainerCallback):  # type: ignore[misc]
    """Raises where rewards say nothing; the checkpoints before it stay.

    Args:
        patience: steps in a row in which every group's rewards were all the same.
    """

    def __init__(self, patience: int = 50) -> None:
        self._patience = patience
        self._varied = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        self._varied = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        share = (logs or {}).get("frac_reward_zero_std")
        if share is None:
            return
        if float(share) < 1:
            self._varied = state.global_step
        if state.global_step - self._varied >= self._patience:
            raise EngineError(
                f"The training stopped at step {state.global_step}: in {self._patience} steps in a row all answers "
                "to a question were paid the same, so there is nothing to learn from. "
                "Start from a checkpoint whose answers differ, or raise the temperature."
            )


@contextmanager
def memory_told(batch: int) -> Iterator[None]:
    """Where the memory does not suffice, say so, and what to change."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise EngineError(
            f"The memory of the GPU does not suffice for {batch} examples at once; choose a smaller per-device batch "
            "(accumulation grows with it, and the effective batch stays)."
        ) from None
