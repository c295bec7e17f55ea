"""The loss of SFT for a base that was never trained (:class:`~training.policies.settings.FromScratch`).

Three things that MedGemma needs none of: a loss on every patch of the vision tower, verdicts that weigh more than other
tokens, and coordinates whose neighbours are nearly right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import TrainerCallback

from training.policies.dense import Dense
from training.policies.dialogues import Tokens
from training.policies.models import TOWER
from training.policies.settings import FromScratch
from xflow_core.domain.errors import CallError
from xflow_core.policies.medgemma_model import MedGemma
from xflow_core.policies.transcript import VERDICTS

HEAD = "dense.safetensors"


class FromScratchLoss(torch.nn.Module):
    """Computes the loss of a batch of :meth:`Tokens.batch`, with ``dense`` ``[pictures, channels, patches, patches]``.

    Args:
        gemma: the model that is trained. grid: whole numbers along the square's side.

    Raises:
        CallError: coordinates are to be spread, and the tokenizer writes one in several tokens.
    """

    def __init__(self, gemma: MedGemma, tokens: Tokens, settings: FromScratch, dense: Dense | None, grid: int) -> None:
        super().__init__()
        self.settings, self.dense = settings, dense
        hidden = gemma.gemma.config.vision_config.hidden_size
        self.head = None if dense is None else torch.nn.Linear(hidden, dense.channels).to(gemma.device)
        self._seen: Tensor | None = None
        towers = [each for name, each in gemma.gemma.named_modules() if name.rsplit(".", 1)[-1] == TOWER]
        (self._tower,) = [towers[0]]
        self._tower.register_forward_hook(self._look)
        verdicts = [tokens.pieces.of(words)[0] for words in VERDICTS]
        self.register_buffer("_verdicts", torch.tensor(verdicts, device=gemma.device), persistent=False)
        self._numbers: Tensor | None = None
        if settings.spread:
            spelled = [tokens.pieces.of(str(number)) for number in range(grid + 1)]
            if any(len(each) != 1 for each in spelled):
                raise CallError("from_scratch.spread needs a tokenizer that writes every coordinate in one token.")
            self._numbers = torch.tensor([each[0] for each in spelled], device=gemma.device)
            steps = torch.arange(grid + 1, device=gemma.device)
            bells = torch.exp(-0.5 * ((steps[:, None] - steps[None]) / settings.spread) ** 2)
            self._bells = bells / bells.sum(1, keepdim=True)
            self._number_of = torch.full((int(self._numbers.max()) + 1,), -1, device=gemma.device)
            self._number_of[self._numbers] = steps

    def _look(self, module: Any, inputs: Any, output: Any) -> None:
        self._seen = output.last_hidden_state

    def parts(self, model: Any, batch: dict[str, Any], step: int) -> tuple[Tensor, Tensor]:
        """(of the answer's tokens, of the patches with its weight); the first is 0 in the steps on the tower alone."""
        batch = dict(batch)
        dense = batch.pop("dense", None)
        if dense is not None and step < self.settings.dense_steps:
            self._tower(pixel_values=batch["pixel_values"])
            return torch.zeros((), device=dense.device), self._of_patches(dense)
        labels = batch.pop("labels")
        logits = model(**batch, use_cache=False).logits[:, :-1]
        said = self._of_tokens(logits, labels[:, 1:])
        return said, torch.zeros_like(said) if dense is None else self._of_patches(dense)

    def _of_patches(self, dense: Tensor) -> Tensor:
        if self.head is None or self._seen is None:
            raise ValueError("the tower was not asked")
        told = self.head(self._seen.float()).transpose(1, 2)
        wanted = dense.flatten(2)
        known = ~wanted.isnan()
        return self.settings.dense * F.binary_cross_entropy_with_logits(told[known], wanted[known])

    def _of_tokens(self, logits: Tensor, labels: Tensor) -> Tensor:
        own = labels >= 0
        shares, wanted = logits[own].float().log_softmax(-1), labels[own]
        losses = -shares.gather(1, wanted[:, None])[:, 0]
        if self._numbers is not None:
            known = wanted < len(self._number_of)
            number = torch.where(known, self._number_of[wanted.clamp(max=len(self._number_of) - 1)], -1)
            numeric = number >= 0
            spread = -(self._bells[number[numeric]] * shares[numeric][:, self._numbers]).sum(1)
            losses = losses.masked_scatter(numeric, spread)
        verdict = torch.isin(wanted, self._verdicts)
        weights = torch.where(verdict, self.settings.verdict_weight, 1.0)
        return (losses * weights).sum() / weights.sum()


class KeepHead(TrainerCallback):  # type: ignore[misc]
    """The patches' head in every checkpoint: the adapter does not hold it, and a resumed run goes on with it."""

    def __init__(self, loss: FromScratchLoss) -> None:
        self._loss = loss

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._loss.head is not None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            save_file(self._loss.head.state_dict(), folder / HEAD)

    def load(self, folder: Path) -> None:
        if self._loss.head is not None and (folder / HEAD).is_file():
            self._loss.head.load_state_dict(load_file(folder / HEAD))
