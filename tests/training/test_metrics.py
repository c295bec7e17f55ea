"""The measures of the paper, on counts that the paper itself gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from training.evaluation.metrics import Answered, ciou, f1, giou, metrics, over_levels, pieces_of

ROW = Answered(
    id="0", image="a", finding="effusion", level="chest", positive=True, returned=True, probability=0.5, intersection=0,
    union=1, area=1, first_iou=0.0, pieces=1, true_pieces=1, specks=0, specks_outside=0, speck_area=0, boxes=1,
    true_boxes=1, box_hits=0, box_right=0, lung_box_iou=None, seconds=0.0,
)  # fmt: skip

TABLE_8 = {"chest": (382, 444), "lung": (429, 1050), "zone": (330, 3286)}


def always_positive(counts: dict[str, tuple[int, int]]) -> list[Answered]:
    return [
        replace(ROW, level=level, positive=positive)
        for level, (yes, no) in counts.items()
        for positive in [True] * yes + [False] * no
    ]


def test_a_model_that_always_returns_a_mask_gets_the_papers_f1_on_table_8() -> None:
    assert over_levels(always_positive(TABLE_8), f1) == pytest.approx(0.4165, abs=5e-5)


def test_and_on_chexlocalize() -> None:
    assert f1(always_positive({"chest": (775, 1643)})) == pytest.approx(0.485, abs=5e-4)


def test_giou_is_the_mean_and_ciou_the_ratio_of_sums_over_positive_rows() -> None:
    rows = [
        replace(ROW, intersection=1, union=2),
        replace(ROW, intersection=90, union=100),
        replace(ROW, positive=False, intersection=0, union=1000),
    ]
    assert giou(rows) == pytest.approx((0.5 + 0.9) / 2)
    assert ciou(rows) == pytest.approx(91 / 102)


def test_levels_count_equally_however_many_rows_they_have() -> None:
    rows = [replace(ROW, intersection=1)] + [replace(ROW, level="lung")] * 9
    assert over_levels(rows, giou) == pytest.approx(0.5)


def test_specks_are_pieces_under_the_share_and_touching_pixels_hang_together() -> None:
    mask = np.zeros((100, 100), bool)
    mask[10:20, 10:20] = True
    mask[50, 50] = mask[51, 51] = mask[80, 80] = True
    truth = np.zeros_like(mask)
    truth[45:55, 45:55] = True
    assert pieces_of(mask, 5e-4, truth) == (3, 2, 1, 3)


def test_a_clean_mask_has_no_specks() -> None:
    mask = np.zeros((100, 100), bool)
    mask[10:20, 10:20] = True
    assert pieces_of(mask, 1e-4, mask) == (1, 0, 0, 0)


def test_the_written_metrics_have_the_contracts_keys() -> None:
    found = metrics([ROW, replace(ROW, positive=False, returned=False, probability=0.1, level="lung")])
    assert {
        "n",
        "gIoU",
        "cIoU",
        "F1",
        "lung_box_iou",
        "by_level",
        "by_finding",
        "by_finding_lung",
        "noise",
        "revision",
    } <= (found.keys())
    assert {"n_positive", "n_negative", "gIoU", "F1", "auc", "box_recall_at_0.3", "box_precision_at_0.3"} <= (
        found["by_finding"]["effusion"].keys()
    )
    assert {"iou_before", "iou_after", "improved", "worsened"} <= found["revision"].keys()
