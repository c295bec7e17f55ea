"""The compact bundle's survey network: one look at the whole radiograph that answers every first question.

From one 256 x 256 picture: where the lungs and the findings are (maps), which finding is in which lung (presence), and
whether the picture is an upright frontal chest radiograph at all (guard).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xflow_core.segmenters.trunk import Trunk

SIDE = 256
MAPS = (
    "right lung",
    "left lung",
    "consolidation",
    "effusion",
    "atelectasis",
    "cardiomegaly",
    "fibrosis",
    "pleural_thickening",
    "nodule_mass",
    "pneumothorax",
    "pneumonia",
    "edema",
    "opacity",
)
# The classes with a presence logit; maps of the same names.
CLASSES = MAPS[2:]
# The guard's sigmoid logits, and its softmax over the degrees, counter-clockwise, that the picture was turned by.
SIGNS = ("not_frontal", "inverted", "mirrored")
TURNS = (0, 90, 180, 270)
_GRID = 4


class Survey(NamedTuple):
    """Logits for a batch.

    maps: ``[B, len(MAPS), 128, 128]``.
    presence: ``[B, 2, len(CLASSES)]``; row 0 is the right lung. For cardiomegaly both rows answer for the heart.
    signs: ``[B, len(SIGNS)]``.
    turns: ``[B, len(TURNS)]``.
    """

    maps: Tensor
    presence: Tensor
    signs: Tensor
    turns: Tensor


class SurveyNet(nn.Module):
    """See the module's text. Input ``[B, 1, 256, 256]`` in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()
        self.maps = nn.Conv2d(32, len(MAPS), 1)
        assert self.maps.bias is not None
        nn.init.constant_(self.maps.bias, -3.0)  # most pixels are background
        self.layout = nn.Conv2d(320, 32, 1)
        layout = 32 * _GRID * _GRID
        self.whole = nn.Sequential(nn.Linear(layout, 64), nn.SiLU())
        self.presence = nn.Sequential(nn.Linear(64 * 4, 96), nn.SiLU(), nn.Dropout(0.4), nn.Linear(96, len(CLASSES)))
        self.guard = nn.Sequential(
            nn.Linear(layout, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, len(SIGNS) + len(TURNS))
        )

    def forward(self, grey: Tensor) -> Survey:
        fine, coarse, deep = self.trunk(grey)
        maps = self.maps(fine)
        # Where things are, coarsely: the guard needs the heart's side and the turn, cardiomegaly the heart's place.
        layout = F.adaptive_avg_pool2d(F.silu(self.layout(deep)), _GRID).flatten(1)
        whole = self.whole(layout)
        lungs = F.adaptive_avg_pool2d(maps[:, :2].detach().float().sigmoid(), tuple(coarse.shape[2:]))
        # Dilated, so that fluid and pleura at the lung's edge are looked at as well.
        lungs = F.max_pool2d(lungs, 3, 1, 1).to(coarse.dtype)
        half = coarse.shape[3] // 2
        sides = []
        for side, columns in ((0, slice(None, half)), (1, slice(half, None))):
            weight = lungs[:, side : side + 1] + 0.02
            under = (coarse * weight).sum((2, 3)) / weight.sum((2, 3))
            peak = (coarse * weight.clamp(max=1.0)).amax((2, 3))
            sides.append(self.presence(torch.cat([under, peak, coarse[..., columns].mean((2, 3)), whole], 1)))
        guard = self.guard(layout)
        return Survey(maps, torch.stack(sides, 1), guard[:, : len(SIGNS)], guard[:, len(SIGNS) :])


class SurveyNets(nn.Module):
    """One or more survey networks, trained apart; their logits are averaged."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.members = nn.ModuleList([SurveyNet() for _ in range(count)])

    def forward(self, grey: Tensor) -> Survey:
        surveys = [member(grey) for member in self.members]
        return Survey(*(torch.stack(parts).mean(0) for parts in zip(*surveys, strict=True)))


def flipped(survey: Survey) -> Survey:
    """What the logits of a mirrored picture say of the picture itself: the sides change places, 90 becomes 270."""
    maps = survey.maps.flip(3)
    maps = torch.cat([maps[:, 1:2], maps[:, :1], maps[:, 2:]], 1)
    signs = torch.cat([survey.signs[:, :2], -survey.signs[:, 2:]], 1)
    return Survey(maps, survey.presence.flip(1), signs, survey.turns[:, [0, 3, 2, 1]])
