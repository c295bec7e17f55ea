"""What stops a training with a reason, before it spoils what was saved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from xflow_core.domain.errors import EngineError


class StopWhenLost(TrainerCallback):  # type: ignore[misc]
    """Raises where the loss is no number, or where rewards say nothing.

    Nothing is saved in such a step; the checkpoints before it stay.

    Args:
        patience: logs in a row in which every group's rewards were all the same.
    """

    def __init__(self, patience: int = 20) -> None:
        self._patience = patience
        self._constant = 0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        for name in ("loss", "grad_norm"):
            value = (logs or {}).get(name)
            if value is not None and not math.isfinite(float(value)):
                raise EngineError(
                    f"The training stopped at step {state.global_step}: its {name} is {value}. "
                    f"The checkpoints in {args.output_dir} are of the steps before; a lower rate may help."
                )
        share = (logs or {}).get("frac_reward_zero_std")
        if share is not None:
            self._constant = self._constant + 1 if float(share) >= 1 else 0
            if self._constant >= self._patience:
                raise EngineError(
                    f"The training stopped at step {state.global_step}: in {self._patience} logs in a row all answers "
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
