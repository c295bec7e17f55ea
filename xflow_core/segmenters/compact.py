"""The compact bundle's promptable segmenter: each prompt is one square of the image, which a few small networks see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from xflow_core.domain.errors import EngineError, ValueRefused
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph, engine_grey

from .compact_network import SegmenterNets
from .compact_region import MASK_CHANNEL, SIDE, Region, look, prompt_channels
from .protocol import Prediction, Prompt
from .trunk import fold_norms
from .weights import fill, members_in, read_weights

_PICTURE = 512  # Longer side of the picture that regions are cut from.
_UNAIDED = 64  # Answers without a mask that are kept with an image; 37 kB each.


@dataclass(frozen=True, eq=False)
class _Held:
    """What is kept with an image: its grey, and the answers without a mask before them, which a revision asks for."""

    grey: Tensor
    unaided: dict[Any, np.ndarray] = field(default_factory=dict)


def _held(image: EncodedRadiograph) -> _Held:
    def compute(radiograph: Radiograph) -> _Held:
        grey = engine_grey(radiograph)
        height, width = grey.shape
        scale = _PICTURE / max(height, width)
        size = (max(round(width * scale), 1), max(round(height * scale), 1))
        # Pillow's triangle filter averages over what it merges, so that fine detail does not alias.
        picture = np.array(Image.fromarray(grey).resize(size, Image.Resampling.BILINEAR))
        return _Held(torch.from_numpy(np.clip(picture, 0, 1))[None, None])

    held: _Held = image.feature("compact.grey", compute)
    return held


def encoded_grey(image: EncodedRadiograph) -> Tensor:
    """The engine's grey, its longer side 512 pixels, made once per image: float32 ``[1, 1, h, w]`` in [0, 1]."""
    return _held(image).grey


def prompt_inputs(image: EncodedRadiograph, prompts: Sequence[Prompt]) -> tuple[list[Region], Tensor, Tensor]:
    """Where each prompt looks, and the two inputs of a region network.

    Returns:
        N regions, the grey ``[N, 1, 192, 192]`` and the prompt's channels ``[N, 6, 192, 192]``.

    Raises:
        ValueRefused: a prompt with neither box nor click, or a previous mask of another size.
    """
    size = image.radiograph.record.size
    regions, previous = [], []
    for prompt in prompts:
        if prompt.box is None and not prompt.clicks:
            raise ValueRefused("A prompt needs a box or at least one click; this one has neither.")
        before = None if prompt.previous is None else prompt.previous.mask
        if before is not None and before.shape != size:
            raise ValueRefused(f"The previous mask is of {before.shape} pixels, the image of {size}.")
        region = Region.around(prompt.box, prompt.clicks, before, size)
        regions.append(region)
        previous.append(torch.zeros(SIDE, SIDE) if before is None else region.cut(before))
    theta = torch.stack([region.theta() for region in regions])
    channels = prompt_channels(
        theta,
        [None if p.box is None else (p.box.x1, p.box.y1, p.box.x2, p.box.y2) for p in prompts],
        [[(c.point.x, c.point.y, c.polarity == "positive") for c in p.clicks] for p in prompts],
        torch.stack(previous),
    )
    return regions, look(encoded_grey(image), theta), channels


class CompactSegmenter:
    """A :class:`~xflow_core.segmenters.protocol.PromptableSegmenter` on the CPU (or a GPU).

    Args:
        net: in evaluation mode.
        quality: slope and offset on the logit of the network's own estimate of its mask's IoU, set on patients that it
            did not learn from: unseen images go less well than those of the training, which the estimate was made on.
    """

    def __init__(self, net: SegmenterNets, quality: tuple[float, float] = (1.0, 0.0)) -> None:
        self._net = net
        self._quality = quality

    @classmethod
    def load(cls, path: Path, quality: tuple[float, float] = (1.0, 0.0), device: str = "cpu") -> CompactSegmenter:
        """From the bundle's safetensors file.

        Raises:
            BundleError: the file is not this network's.
        """
        arrays = read_weights(path)
        net = SegmenterNets(members_in(arrays))
        fill(net, arrays, path)
        fold_norms(net)
        return cls(net.to(device), quality)

    def probabilities(
        self, image: EncodedRadiograph, prompts: Sequence[Prompt]
    ) -> list[tuple[Region, np.ndarray, float]]:
        """Each prompt's region, the mask's probability in it (float32 ``[96, 96]``) and the predicted IoU.

        Raises:
            ValueRefused: a prompt with neither box nor click, or a previous mask of another size.
            EngineError: the network gave no usable numbers.
        """
        slope, offset = self._quality
        found: list[tuple[Region, np.ndarray, float]] = []
        # One by one: a batch's last digits depend on its size, and a replay must give the same mask as the first run.
        for prompt in prompts:
            (region,), grey, channels = prompt_inputs(image, [prompt])
            probability, score = self._answer(grey, channels)
            if prompt.previous is None:
                unaided = _held(image).unaided
                unaided[self, region, prompt.box, tuple(prompt.clicks)] = probability
                for old in list(unaided)[:-_UNAIDED]:
                    unaided.pop(old, None)
            found.append((region, probability, 1 / (1 + math.exp(-(slope * score + offset)))))
        return found

    def unaided(self, image: EncodedRadiograph, prompt: Prompt) -> np.ndarray:
        """The probability ``[96, 96]`` in the prompt's region as if no mask had come before: a previous mask only says
        where to look.

        Raises:
            ValueRefused, EngineError: as :meth:`probabilities`.
        """
        before = None if prompt.previous is None else prompt.previous.mask
        region = Region.around(prompt.box, prompt.clicks, before, image.radiograph.record.size)
        kept = _held(image).unaided.get((self, region, prompt.box, tuple(prompt.clicks)))
        if kept is not None:
            return kept
        _, grey, channels = prompt_inputs(image, [prompt])
        channels[:, MASK_CHANNEL] = 0
        return self._answer(grey, channels)[0]

    def _answer(self, grey: Tensor, channels: Tensor) -> tuple[np.ndarray, float]:
        """Probability ``[96, 96]`` and the logit of the estimated IoU, for inputs of one prompt."""
        device = next(self._net.parameters()).device
        with torch.inference_mode():
            logits, quality = self._net(grey.to(device), channels.to(device))
        if not (torch.isfinite(logits).all() and torch.isfinite(quality).all()):
            raise EngineError("The segmenter gave numbers that are not finite; no mask was computed.")
        return logits[0].sigmoid().cpu().numpy(), float(quality[0])

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        """See the protocol. ``state`` is always None: the binary mask is all that the next click starts from, so a
        trace read from disk goes on exactly as it would have live."""
        return [
            Prediction(region.paste(probability) > 0.5, predicted_iou)
            for region, probability, predicted_iou in self.probabilities(image, prompts)
        ]
