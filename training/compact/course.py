"""What the trainings of prompts share: optimiser, schedule, running average, checkpoints, log."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from xflow_core.segmenters.weights import save_weights

LOG = logging.getLogger(__name__)

_WARM = 60  # Steps of linear warm-up.
_AVERAGED = 0.995  # Decay of the running average.
_LOGGED, _KEPT = 50, 100  # Steps between lines of the log, and between checkpoints.


class Course:
    """A fixed number of optimiser steps on one network, that goes on from its checkpoint after a break.

    AdamW; linear warm-up, then a cosine to a hundredth; gradients clipped at a norm of 2. ``average`` holds the running
    average of the weights, which is what is shipped. Draw what a step needs from a generator seeded with its number: a
    continued course then takes the steps that an unbroken one would.
    """

    def __init__(
        self,
        net: nn.Module,
        encoder: list[nn.Parameter],
        rates: tuple[float, float],
        steps: int,
        seed: int,
        checkpoint: Path,
    ) -> None:
        """
        Args:
            encoder: the pretrained parameters, which learn at ``rates[0]``; all others learn at ``rates[1]``.
            checkpoint: the file that is written every hundred steps, and read when it exists.

        Raises:
            ValueError: the checkpoint is of a course of another length or seed.
        """
        slow = {id(parameter) for parameter in encoder}
        rest = [parameter for parameter in net.parameters() if id(parameter) not in slow]
        self.net = net
        self.steps = steps
        self.seed = seed
        self.average = {name: value.detach().clone() for name, value in net.state_dict().items()}
        self._rates = rates
        self._optimiser = torch.optim.AdamW([{"params": encoder}, {"params": rest}], weight_decay=1e-3)
        self._checkpoint = checkpoint
        self._history: list[dict[str, float]] = []
        self.done = 0
        if checkpoint.is_file():
            kept = torch.load(checkpoint, weights_only=True)
            if (kept["steps"], kept["seed"]) != (steps, seed):
                raise ValueError(
                    f"{checkpoint} is of another run ({kept['steps']} steps, seed {kept['seed']}); remove it."
                )
            net.load_state_dict(kept["net"])
            self._optimiser.load_state_dict(kept["optimiser"])
            self.average = kept["average"]
            self.done = int(kept["done"])
        self._began, self._first = time.monotonic(), self.done

    def train_mode(self) -> None:
        """Training, but for the batch norms of the pretrained encoder: their statistics stay ImageNet's."""
        self.net.train()
        for module in self.net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()

    def learn(self, loss: Tensor, figures: dict[str, float]) -> None:
        """One step down the gradient of ``loss``; ``figures`` are averaged for the log."""
        factor = min(1.0, (self.done + 1) / _WARM) * (0.5 * (1 + math.cos(math.pi * self.done / self.steps)) + 0.01)
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.net.parameters(), 2.0)
        self._optimiser.step()
        self.done += 1
        decay = min(_AVERAGED, (1 + self.done) / (10 + self.done))
        for name, value in self.net.state_dict().items():
            if value.is_floating_point():
                self.average[name].mul_(decay).add_(value, alpha=1 - decay)
        self._history.append(figures)
        if self.done % _LOGGED == 0:
            mean = {k: round(float(np.mean([h[k] for h in self._history[-_LOGGED:]])), 3) for k in figures}
            pace = (time.monotonic() - self._began) / (self.done - self._first)
            left = pace * (self.steps - self.done) / 60
            LOG.info("step %d %s, %.2f s a step, %.0f min left", self.done, mean, pace, left)
        if self.done % _KEPT == 0 or self.done == self.steps:
            self._keep()

    def _keep(self) -> None:
        state = {
            "net": self.net.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "average": self.average,
            "done": self.done,
            "steps": self.steps,
            "seed": self.seed,
        }
        part = self._checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._checkpoint)

    def save(self, path: Path) -> None:
        """The averaged weights as the bundle keeps them, whole or not at all."""
        save_weights({name: value for name, value in self.average.items() if value.is_floating_point()}, path)
