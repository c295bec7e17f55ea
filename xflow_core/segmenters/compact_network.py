"""The network of the compact promptable segmenter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .compact_region import CHANNELS
from .trunk import Trunk


class SegmenterNet(nn.Module):
    """One region of the image and a prompt to a mask, and how good that mask is.

    The box, the clicks and the previous mask go in beside the image, so that one pass of 3.2 million parameters answers
    each prompt; a separate image embedding (as SAM has) pays only for encoders that are far heavier.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk(extra=CHANNELS)
        self.mask = nn.Conv2d(32, 1, 1)
        assert self.mask.bias is not None
        nn.init.constant_(self.mask.bias, -1.0)
        self.quality = nn.Sequential(nn.Linear(320 + 32 + 3, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, grey: Tensor, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """Mask and quality.

        Args:
            grey: ``[B, 1, 192, 192]`` in [0, 1].
            prompt: ``[B, 6, 192, 192]``, see :func:`~xflow_core.segmenters.compact_region.prompt_channels`.

        Returns:
            logits of the mask ``[B, 96, 96]``, and of its expected IoU once cut at probability 0.5, ``[B]``.
        """
        fine, _, deep = self.trunk(grey, prompt)
        logits = self.mask(fine)
        # The quality head looks on: it must not bend the features that the mask is made from.
        seen = logits.detach().float().sigmoid()
        inside = (seen > 0.5).float()
        area = inside.sum((2, 3))
        overlap = (seen * inside).sum((2, 3)) / torch.maximum(seen, inside).sum((2, 3)).clamp(min=1.0)
        doubt = (seen * (1 - seen)).mean((2, 3)) * 4
        held = (fine.detach().float() * inside).sum((2, 3)) / area.clamp(min=1.0)
        summary = torch.cat([deep.detach().float().mean((2, 3)), held, overlap, doubt, area / inside[0].numel()], dim=1)
        with torch.autocast(summary.device.type, enabled=False):
            quality = self.quality(summary)[:, 0]
        return logits[:, 0].float(), quality


class SegmenterNets(nn.Module):
    """One or more networks trained apart; logits are averaged. Every second one looks at the mirror image.

    On patients kept from training, two networks that look so came within .002 of the same two looking both ways each,
    from the box and after a click, in half the time.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.members = nn.ModuleList([SegmenterNet() for _ in range(count)])

    def forward(self, grey: Tensor, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`SegmenterNet.forward`."""
        masks, qualities = [], []
        for place, member in enumerate(self.members):
            if place % 2:
                mask, quality = member(grey.flip(3), prompt.flip(3))
                mask = mask.flip(2)
            else:
                mask, quality = member(grey, prompt)
            masks.append(mask)
            qualities.append(quality)
        return torch.stack(masks).mean(0), torch.stack(qualities).mean(0)
