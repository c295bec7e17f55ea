"""The square of the image that the compact bundle looks at around a prompt, and the way in and out of it.

Everything is exact to a fraction of a pixel: image coordinates are normalised as in
:mod:`xflow_core.domain.geometry` (pixel ``c`` of ``W`` spans ``[c/W, (c+1)/W]``), which is what ``grid_sample`` with
``align_corners=False`` means once mapped to [-1, 1]. A ``theta`` is the 2x3 matrix of
``torch.nn.functional.affine_grid`` from region coordinates to image coordinates, both in [-1, 1]; training turns and
mirrors it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.geometry import Box
from xflow_core.domain.trace import Click

SIDE = 192
"""Side of the region as the networks see it, in pixels."""

MASK_SIDE = 96
"""Side of the networks' dense outputs, in pixels."""

CHANNELS = 6
"""Prompt channels: box, positive clicks, negative clicks, previous mask, height, distance from the midline."""

MASK_CHANNEL = 3
"""Which of them the previous mask is."""

_CONTEXT = 1.7  # Region side over the longer side of the box.
_SMALLEST = 80 / 512  # Region sides, as shares of the image's longer side.
_LARGEST = 1.1
_WITHOUT_BOX = 0.35
_CLICK_MARGIN = 0.08  # A click stays at least this share of the side away from the region's edge.
_CLICK_RADIUS = 5.0  # In region pixels.

Turn = tuple[float, float, bool]
"""A click in normalised image coordinates: x, y, positive."""


@dataclass(frozen=True)
class Region:
    """A square in the source image, in its pixels; it may reach beyond the image, where everything is 0."""

    x: float
    y: float
    side: float
    size: tuple[int, int]

    @classmethod
    def around(
        cls, box: Box | None, clicks: Sequence[Click], previous: np.ndarray | None, size: tuple[int, int]
    ) -> Region:
        """The region for a prompt; it depends on nothing else.

        1.7 times the box, grown as far as a click or the previous mask lies outside. Without a box it starts from the
        previous mask, or from a square of a third of the image around the first click.

        Raises:
            ValueRefused: neither box, nor click, nor a pixel of a previous mask.
        """
        height, width = size
        longest = max(size)
        drawn = None if previous is None else Box.around(previous)
        start = box or drawn
        if start is not None:
            x1, y1, x2, y2 = start.x1 * width, start.y1 * height, start.x2 * width, start.y2 * height
            side = max(_CONTEXT * max(x2 - x1, y2 - y1), _SMALLEST * longest)
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
        elif clicks:
            side = _WITHOUT_BOX * longest
            x, y = clicks[0].point.x * width, clicks[0].point.y * height
        else:
            raise ValueRefused("A prompt needs a box or at least one click.")
        side = min(side, _LARGEST * longest)
        extent = np.array([x - side / 2, y - side / 2, x + side / 2, y + side / 2])
        needed = [extent]
        margin = _CLICK_MARGIN * side
        for click in clicks:
            cx, cy = click.point.x * width, click.point.y * height
            needed.append(np.array([cx - margin, cy - margin, cx + margin, cy + margin]))
        if drawn is not None:
            # One region pixel of tolerance: the segmenter's own mask must not move the region that it came from.
            slack = side / MASK_SIDE
            edges = np.array([drawn.x1 * width, drawn.y1 * height, drawn.x2 * width, drawn.y2 * height])
            needed.append(edges + slack * np.array([1, 1, -1, -1]))
        low = np.min([e[:2] for e in needed], axis=0)
        high = np.max([e[2:] for e in needed], axis=0)
        side = float(max(high - low))
        x, y = (low + high) / 2
        return cls(float(x) - side / 2, float(y) - side / 2, side, size)

    def theta(self) -> Tensor:
        """``[2, 3]``, float32."""
        height, width = self.size
        return torch.tensor(
            [
                [self.side / width, 0.0, 2 * (self.x + self.side / 2) / width - 1],
                [0.0, self.side / height, 2 * (self.y + self.side / 2) / height - 1],
            ],
            dtype=torch.float32,
        )

    def paste(self, values: np.ndarray, fill: float = 0.0) -> np.ndarray:
        """Region values ``[S, S]`` put back into the source image: float32 ``[H, W]``, ``fill`` outside the region.

        Bilinear between the centres of the region's pixels.
        """
        height, width = self.size
        pasted = np.full(self.size, fill, np.float32)
        # Source pixels whose centre lies in the region.
        rows = np.arange(max(math.ceil(self.y - 0.5), 0), min(math.ceil(self.y + self.side - 0.5), height))
        columns = np.arange(max(math.ceil(self.x - 0.5), 0), min(math.ceil(self.x + self.side - 0.5), width))
        if rows.size == 0 or columns.size == 0:
            return pasted
        v = torch.from_numpy((2 * (rows + 0.5 - self.y) / self.side - 1).astype(np.float32))
        u = torch.from_numpy((2 * (columns + 0.5 - self.x) / self.side - 1).astype(np.float32))
        grid = torch.stack([u[None].expand(len(v), -1), v[:, None].expand(-1, len(u))], dim=-1)[None]
        source = torch.from_numpy(np.ascontiguousarray(values, np.float32))[None, None]
        inside = F.grid_sample(source, grid, mode="bilinear", padding_mode="border", align_corners=False)
        pasted[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = inside[0, 0].numpy()
        return pasted

    def cut(self, mask: np.ndarray, side: int = SIDE) -> Tensor:
        """A source mask ``[H, W]`` in the region: float32 ``[side, side]``, the share of each region pixel covered."""
        samples = min(max(math.ceil(self.side / side), 2), 4)
        source = torch.from_numpy(np.ascontiguousarray(mask, np.float32))[None, None]
        return look(source, self.theta()[None], side, samples)[0, 0]


def look(image: Tensor, theta: Tensor, side: int = SIDE, samples: int = 2) -> Tensor:
    """What the regions ``theta`` show of one image.

    Args:
        image: float ``[1, C, h, w]``, of any resolution; 0 outside.
        theta: ``[N, 2, 3]``, region to image.
        side: pixels of the result.
        samples: bilinear samples averaged along each side of a pixel, against aliasing.

    Returns:
        ``[N, C, side, side]``.
    """
    n, fine = theta.shape[0], side * samples
    grid = F.affine_grid(theta, [n, image.shape[1], fine, fine], align_corners=False)
    seen = F.grid_sample(image.expand(n, -1, -1, -1), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return F.avg_pool2d(seen, samples) if samples > 1 else seen


def prompt_channels(
    theta: Tensor,
    boxes: Sequence[tuple[float, float, float, float] | None],
    clicks: Sequence[Sequence[Turn]],
    previous: Tensor,
    side: int = SIDE,
) -> Tensor:
    """The prompts as pictures.

    Args:
        theta: ``[N, 2, 3]``, region to image.
        boxes: normalised to the image; None leaves the channel empty.
        clicks: of each prompt, normalised to the image.
        previous: ``[N, side, side]``, the previous binary mask cut to the region, in [0, 1].

    Returns:
        float32 ``[N, CHANNELS, side, side]``.
    """
    n = theta.shape[0]
    grid = F.affine_grid(theta, [n, 1, side, side], align_corners=False)
    u, v = (grid[..., 0] + 1) / 2, (grid[..., 1] + 1) / 2
    channels = torch.zeros(n, CHANNELS, side, side)
    # Pixel (row, column) of the region has its centre at column + 0.5.
    centres = torch.arange(side, dtype=torch.float32) + 0.5
    for i in range(n):
        box = boxes[i]
        if box is not None:
            x1, y1, x2, y2 = box
            channels[i, 0] = ((u[i] >= x1) & (u[i] <= x2) & (v[i] >= y1) & (v[i] <= y2)).float()
        inverse = torch.linalg.inv(theta[i, :, :2])
        for x, y, positive in clicks[i]:
            column, row = (inverse @ (torch.tensor([2 * x - 1, 2 * y - 1]) - theta[i, :, 2]) + 1) * (side / 2)
            near = (centres[None] - column) ** 2 + (centres[:, None] - row) ** 2 <= _CLICK_RADIUS**2
            channels[i, 1 if positive else 2] = torch.maximum(channels[i, 1 if positive else 2], near.float())
    channels[:, MASK_CHANNEL] = previous
    channels[:, 4] = v
    # Mirrored lungs look alike: the distance from the midline, not the side.
    channels[:, 5] = (u - 0.5).abs() * 2
    return channels
