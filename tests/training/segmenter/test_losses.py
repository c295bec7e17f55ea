"""SAM 2's loss: its parts by their formulas, and which hypothesis is supervised."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from training.curation.paper import Settings
from training.segmenter.losses import mask_losses
from training.segmenter.settings import MaskLoss


@pytest.fixture
def weights(paper: Settings) -> MaskLoss:
    return paper.segmenter.loss


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of three hypotheses of two prompts, predicted IoUs, truths."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 5, 5, generator=generator) * 2
    return logits, torch.rand(2, 3, generator=generator), torch.rand(2, 5, 5, generator=generator) > 0.6


def test_the_papers_weights_are_20_to_1_to_1(weights: MaskLoss) -> None:
    assert (weights.focal, weights.dice, weights.iou) == (20, 1, 1)


def test_each_part_is_its_formula_pixel_by_pixel(weights: MaskLoss) -> None:
    logits, predicted, truth = drawn()
    losses = mask_losses(logits, predicted, truth, replace(weights, all_ious=False))
    for row in range(2):
        best = int(losses.best[row])
        focal, overlap, area, both, either = 0.0, 0.0, 0.0, 0, 0
        for value, true in zip(logits[row, best].flatten().tolist(), truth[row].flatten().tolist(), strict=True):
            p = 1 / (1 + math.exp(-value))
            p_t, alpha_t = (p, 0.25) if true else (1 - p, 0.75)
            focal += -alpha_t * (1 - p_t) ** 2 * math.log(p_t) / 25
            overlap, area = overlap + p * true, area + p + true
            both, either = both + (value > 0 and true), either + (value > 0 or true)
        dice = 1 - (2 * overlap + 1) / (area + 1)
        iou = abs(float(predicted[row, best]) - both / either)
        assert float(losses.focal[row]) == pytest.approx(focal, rel=1e-4)
        assert float(losses.dice[row]) == pytest.approx(dice, rel=1e-4)
        assert float(losses.iou[row]) == pytest.approx(iou, rel=1e-4)
        assert float(losses.total[row]) == pytest.approx(20 * focal + dice + iou, rel=1e-4)


def test_the_hypothesis_of_the_lowest_loss_is_supervised_and_no_other(weights: MaskLoss) -> None:
    logits, predicted, truth = drawn(1)
    logits[0, 2] = torch.where(truth[0], 4.0, -4.0)
    logits[1, 1] = torch.where(truth[1], 4.0, -4.0)
    logits.requires_grad_()
    losses = mask_losses(logits, predicted, truth, weights)
    assert losses.best.tolist() == [2, 1]
    losses.total.sum().backward()
    moved = logits.grad.abs().sum((2, 3)) > 0
    assert moved.tolist() == [[False, False, True], [False, True, False]]
    assert losses.ious[0, 2] == losses.ious[1, 1] == 1


@pytest.mark.parametrize("all_ious", [True, False])
def test_the_iou_head_learns_on_all_hypotheses_or_on_that_one(weights: MaskLoss, all_ious: bool) -> None:
    logits, predicted, truth = drawn(2)
    predicted.requires_grad_()
    losses = mask_losses(logits, predicted, truth, replace(weights, all_ious=all_ious))
    losses.total.sum().backward()
    told = (predicted.grad != 0).tolist()
    alone = [[k == best for k in range(3)] for best in losses.best.tolist()]
    assert told == ([[True] * 3] * 2 if all_ious else alone)


def test_the_iou_head_learns_from_the_step_that_is_said(weights: MaskLoss) -> None:
    logits, predicted, truth = drawn(3)
    late = replace(weights, iou_from=10)
    before, after = (mask_losses(logits, predicted, truth, late, step) for step in (9, 10))
    assert torch.allclose(after.total - before.total, before.iou)
    assert torch.equal(after.total, mask_losses(logits, predicted, truth, weights, 9).total)


def test_a_right_mask_with_a_right_iou_costs_nothing(weights: MaskLoss) -> None:
    _, _, truth = drawn()
    logits = torch.where(truth, 30.0, -30.0)[:, None].expand(-1, 3, -1, -1)
    assert mask_losses(logits, torch.ones(2, 3), truth, weights).total.max() < 1e-5
