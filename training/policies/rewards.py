"""The rewards of both policies (paper, section 4.4), with what the paper leaves open settled.

    R_init = R_box + w R_format + R_rep          R_rev = R_gain + w R_format

The paper gives ``R_box = IoU(b, b_GT)`` for one box on each side, and ``R_gain``, the last mask's IoU less the first's.
The rest is XFlow's:

R_box     the mean over the regions that get a verdict. Present, and called so: the boxes of both sides are paired one
          to one so that their IoUs sum up to the most, and that sum is divided by the larger number of boxes. So one
          box on each side is the paper's IoU, and a box too many costs as much as one too few. Absent, and called so:
          1. Called present though absent: 0. **Called absent though present: -1.**
R_format  1 for a transcript that is read back, in the tokens that training writes; else 0, and R_box is then -1.
R_rep     minus the share of boxes that repeat an earlier one (IoU of 0.8 or more); of a text that cannot be read,
          minus the share of lines that stand there already.

Why a miss costs 1. With p the probability of the finding and q the IoU that a box would reach, "absent" is worth
``(1 - p) - p`` and a box ``p q``: a box is written from ``p >= 1 / (2 + q)`` on, a half for a box that is worth
nothing, a third for a perfect one, about where F1 is highest. If a miss cost nothing, that would be ``1 / (1 + q)``,
0.83 for a poor box; and since four in five questions of D_RL have the answer "absent" (Table 6), "always absent" would
beat an honest policy with poor boxes. GRPO finds such things: in a small trial it did.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from training.policies.targets import InitTarget
from xflow_core.domain.geometry import Box, mask_iou
from xflow_core.policies.transcript import Answer, regions_of_boxes

REPEATED = 0.8
"""The IoU from which on a box repeats an earlier one. Components of one mask do not reach it."""

ABSENT, FALSE_ALARM, MISSED, UNREADABLE = 1.0, 0.0, -1.0, -1.0


def paired_iou(boxes: Sequence[Box], truth: Sequence[Box]) -> float:
    """The best one-to-one pairing's sum of IoUs, by the larger number of boxes; in [0, 1]. 1 where both are empty."""
    if not boxes or not truth:
        return float(len(boxes) == len(truth))
    ious = np.array([[box.iou(other) for other in truth] for box in boxes])
    rows, columns = linear_sum_assignment(ious, maximize=True)
    return float(ious[rows, columns].sum()) / max(len(boxes), len(truth))


def box_reward(answer: Answer | None, target: InitTarget) -> float:
    """R_box, in [-1, 1]. answer: None where the text could not be read.

    A box of the answer belongs to one of the regions that the answer calls present; where those lie is told by the true
    lungs, so that an answer cannot move them.
    """
    if answer is None:
        return UNREADABLE
    called = [verdict.region for verdict in answer.verdicts if verdict.present]
    owners = regions_of_boxes(answer.boxes, target.bands_of(called))
    scores = []
    for verdict in target.verdicts:
        boxes = [b for b, owner in zip(answer.boxes, owners, strict=True) if called[owner] == verdict.region]
        if not verdict.present:
            scores.append(FALSE_ALARM if verdict.region in called else ABSENT)
        elif verdict.region not in called:
            scores.append(MISSED)
        else:
            scores.append(paired_iou(boxes, target.in_region(verdict.region)))
    return sum(scores) / len(scores)


def repetition_reward(answer: Answer | None, text: str) -> float:
    """R_rep, in [-1, 0]."""
    if answer is None:
        lines = [line for line in text.splitlines() if line.strip()]
        return -(len(lines) - len(set(lines))) / len(lines) if lines else 0.0
    boxes = answer.boxes
    repeats = [any(box.iou(earlier) >= REPEATED for earlier in boxes[:number]) for number, box in enumerate(boxes)]
    return -sum(repeats) / len(boxes) if boxes else 0.0


def format_reward(readable: bool) -> float:
    """R_format. For pi_rev: whether every turn of the trajectory could be read."""
    return float(readable)


def gain_reward(first: np.ndarray, last: np.ndarray, truth: np.ndarray) -> float:
    """R_gain over a whole trajectory, in [-1, 1]; bool masks ``[H, W]``. 0 for one that stops at once."""
    return mask_iou(last, truth) - mask_iou(first, truth)
