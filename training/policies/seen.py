"""Pictures that a frozen vision tower has seen already.

RL leaves the tower alone, and a trajectory's pictures come back: in each later turn, in the reference's pass, in the
update's. Eight trajectories of four turns show 192 pictures to the model, of which 26 at most are different.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from xflow_core.policies.medgemma_model import MedGemma


class SeenPictures:
    """What tower and projector made of each picture, so that they look at it once.

    While :meth:`used`, the model's ``get_image_features`` answers from what is kept. Tower and projector must not move
    meanwhile, nor differ among the adapters that are switched, nor be divided among devices: where one device asks the
    tower and another need not, a gathering of its weights would wait for ever.
    """

    def __init__(self, gemma: MedGemma) -> None:
        self._model = gemma.gemma.model
        self._look = self._model.get_image_features
        self._kept: dict[bytes, Tensor] = {}
        self.asked = 0
        """Pictures that were asked for."""
        self.encoded = 0
        """Pictures that the tower has looked at."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep pictures, and forget them at the end."""
        self._model.get_image_features = self._features
        try:
            yield
        finally:
            del self._model.get_image_features
            self.forget()

    def forget(self) -> None:
        self._kept = {}

    def _features(self, pixel_values: Tensor, **named: object) -> BaseModelOutputWithPooling:
        names = [hashlib.blake2b(one, digest_size=16).digest() for one in _bytes(pixel_values)]
        fresh = {name: index for index, name in enumerate(names) if name not in self._kept}
        self.asked += len(names)
        self.encoded += len(fresh)
        if fresh:
            with torch.no_grad():
                made = self._look(pixel_values[list(fresh.values())], return_dict=True).pooler_output
            self._kept.update(zip(fresh, made, strict=True))
        return BaseModelOutputWithPooling(pooler_output=torch.stack([self._kept[name] for name in names]))


def _bytes(pixel_values: Tensor) -> Iterator[memoryview]:
    for picture in pixel_values.detach().cpu():
        yield memoryview(picture.contiguous().view(torch.uint8).numpy()).cast("B")
