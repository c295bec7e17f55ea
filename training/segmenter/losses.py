"""SAM 2's loss (A.4): 20 focal + dice + IoU, on the best of several hypotheses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.segmenter.settings import MaskLoss


@dataclass(frozen=True, eq=False)
class Losses:
    """Of each of N prompts, ``[N]``: the parts, unweighted, of the hypothesis that is supervised; and the whole.

    best: which hypothesis that is. ious: every hypothesis's true IoU, ``[N, M]``.
    """

    focal: Tensor
    dice: Tensor
    iou: Tensor
    total: Tensor
    best: Tensor
    ious: Tensor


def mask_losses(
    logits: Tensor, predicted_ious: Tensor, truth: Tensor, weights: MaskLoss, step: int | None = None
) -> Losses:
    """The loss of each prompt.

    The hypothesis with the lowest focal and dice loss, as weighted, is supervised, the others are not: their masks may
    show other readings of the prompt. The IoU head is another matter: what a user gets is the hypothesis whose IoU is
    predicted highest, so with ``all_ious`` it learns on all of them, as in SAM 2's own training. L1, likewise.

    Args:
        logits: ``[N, M, S, S]``. predicted_ious: ``[N, M]``. truth: bool ``[N, S, S]``.
        step: the optimizer's; None for one at which the IoU head learns.
    """
    true = truth[:, None].to(logits.dtype).expand_as(logits)
    seen = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, true, reduction="none")
    missed = seen + true - 2 * seen * true  # 1 - p_t
    weighted = (weights.alpha * true + (1 - weights.alpha) * (1 - true)) * missed**weights.gamma * entropy
    focal = weighted.flatten(2).mean(-1)
    overlap, area = (seen * true).flatten(2).sum(-1), (seen + true).flatten(2).sum(-1)
    dice = 1 - (2 * overlap + 1) / (area + 1)
    with torch.no_grad():
        mask = logits > 0
        both, either = mask & truth[:, None], mask | truth[:, None]
        ious = both.flatten(2).sum(-1) / either.flatten(2).sum(-1).clamp(min=1)
    wrong = (predicted_ious - ious).abs()
    best = (weights.focal * focal + weights.dice * dice).argmin(-1)
    chosen = torch.arange(len(best), device=best.device), best
    iou = wrong.mean(-1) if weights.all_ious else wrong[chosen]
    total = weights.focal * focal[chosen] + weights.dice * dice[chosen]
    if step is None or step >= weights.iou_from:
        total = total + weights.iou * iou
    return Losses(focal[chosen], dice[chosen], iou, total, best, ious)
