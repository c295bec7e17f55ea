"""Table 7's column of F_seg, and what the paper leaves open about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SIDES = (56, 2048)
"""The smallest and the largest side of a picture, as a bundle allows it."""


@dataclass(frozen=True)
class MaskLoss:
    """``focal * L_focal + dice * L_dice + iou * L_IoU``.

    alpha, gamma: of the focal loss. all_ious: the IoU head learns on all hypotheses; else on the supervised one alone.
    iou_from: the step from which the IoU head learns; an untrained network's masks are all wrong at first, and a head
    that learns that they are ends where its sigmoid has no slope. 0 for a network that knows.
    at: the picture's resolution, or the decoder's own, a quarter of a patch, which costs a fraction of the time.
    """

    focal: float
    dice: float
    iou: float
    alpha: float
    gamma: float
    all_ious: bool
    iou_from: int
    at: Literal["picture", "decoder"]


@dataclass(frozen=True)
class FirstPrompts:
    """What a component is first asked with, by share: its box, the box with points, a point alone.

    careless: share of the later clicks that fall anywhere in the error, not at its deepest point. jitter: how far each
    side of a box is moved at most, in shares of the box's side. (``revision.jitter`` is that of the boxes that pi_rev
    begins with.)
    """

    box: float
    box_and_points: float
    point: float
    careless: float
    jitter: float

    def __post_init__(self) -> None:
        shares = (self.box, self.box_and_points, self.point)
        if min(*shares, self.careless, self.jitter) < 0 or abs(sum(shares) - 1) > 1e-6 or self.careless > 1:
            raise ValueError(f"segmenter.prompts are shares, the first three of one whole, not {shares}")


@dataclass(frozen=True)
class SegmenterTraining:
    """The segmenter's part of the configuration.

    Attributes:
        side: pixels of the picture, in whole patches of 14 (1024 runs at 1022).
        encoder_rate: the image encoder's share of the rate. layer_decay: by which each layer of its trunk learns slower
            than the next one.
        batch: effective, in radiographs. components: of a radiograph, at most, in one step.
        final_rate: the share of the rate at which the cosine ends.
    """

    side: int
    hypotheses: int
    rate: float
    encoder_rate: float
    layer_decay: float
    weight_decay: float
    clip: float
    batch: int
    epochs: int
    final_rate: float
    components: int
    loss: MaskLoss
    prompts: FirstPrompts

    def __post_init__(self) -> None:
        if not SIDES[0] <= self.side <= SIDES[1]:
            raise ValueError(f"segmenter.side is {self.side}; it lies between {SIDES[0]} and {SIDES[1]}")
        for name in ("hypotheses", "batch", "epochs", "components"):
            if getattr(self, name) < 1:
                raise ValueError(f"segmenter.{name} is {getattr(self, name)}; it is at least 1")
        for name in ("encoder_rate", "layer_decay", "final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"segmenter.{name} is {getattr(self, name)}; it lies between 0 and 1")
