"""The network behind the compact revision policy: where the lesion is believed to be, beside a mask."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from xflow_core.segmenters.compact_region import CHANNELS
from xflow_core.segmenters.trunk import ConvNorm, Trunk

CLASSES = (
    "consolidation",
    "effusion",
    "atelectasis",
    "cardiomegaly",
    "opacity",
    "fibrosis",
    "pleural_thickening",
    "nodule_mass",
)
"""What it was trained on, in the order of its embedding. Unlike the segmenter, it knows what is looked for."""


def class_of(finding: str) -> int:
    """The embedding's index; a finding that no open data contour is looked at as an opacity."""
    return CLASSES.index(finding if finding in CLASSES else "opacity")


class RevisionNet(nn.Module):
    """One region of the image, what was asked and drawn there, and the finding, to a belief.

    What is believed missing is the belief outside the mask, and what is believed too much its complement inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk(extra=CHANNELS)
        self.finding = nn.Embedding(len(CLASSES), 64)
        self.modulate = nn.Linear(64, 64)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)
        self.mix = ConvNorm(32, 32)
        self.belief = nn.Conv2d(32, 1, 1)

    def forward(self, grey: Tensor, prompt: Tensor, finding: Tensor) -> Tensor:
        """Logits ``[B, 96, 96]`` of each pixel being lesion.

        Args:
            grey: ``[B, 1, 192, 192]`` in [0, 1].
            prompt: ``[B, 6, 192, 192]``, the segmenter's channels; the fourth, the mask so far, may be left empty.
            finding: ``[B]``, :func:`class_of`.
        """
        fine, _, _ = self.trunk(grey, prompt)
        scale, shift = self.modulate(F.silu(self.finding(finding)))[:, :, None, None].chunk(2, dim=1)
        logits: Tensor = self.belief(self.mix(fine * (1 + scale) + shift))
        return logits[:, 0].float()


def expected_iou(mask: Tensor, belief: Tensor) -> Tensor:
    """Expected intersection over expected union of masks with a truth that has probability ``belief`` per pixel.

    Both ``[.., S, S]``; mask bool.
    """
    inside = mask.float()
    overlap = (inside * belief).sum((-2, -1))
    union = (inside + (1 - inside) * belief).sum((-2, -1))
    return overlap / union.clamp(min=1e-6)
