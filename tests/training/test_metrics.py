"""The measures of the paper, on counts that the paper itself gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from training.evaluation.comparison import compare
from training.evaluation.metrics import (
    MEASURES,
    NOISE,
    TRUE_NOISE,
    Answered,
    by_size,
    ciou,
    f1,
    giou,
    interval,
    metrics,
    over_levels,
    pieces_of,
    pixels_of,
)
from xflow_core.domain.errors import CallError

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


def drawn_at_random(seed: int, shift: float = 0.0) -> list[Answered]:
    """200 images with a question at each level, half of them positive; IoU around 0.5 + shift."""
    rng = np.random.default_rng(seed)
    rows = []
    for image in range(200):
        hardness = np.random.default_rng(image).uniform(-0.2, 0.2)
        for level in TABLE_8:
            met = int(1000 * np.clip(0.5 + shift + hardness + rng.normal(0, 0.1), 0, 1))
            positive = image % 2 == 0
            rows.append(
                replace(ROW, id=f"{image} {level}", image=str(image), level=level, positive=positive,
                        returned=positive or bool(rng.random() < 0.3), intersection=met * positive, union=1000)
            )  # fmt: skip
    return rows


def test_intervals_are_of_the_same_measure_as_the_number() -> None:
    rows = drawn_at_random(0)
    for measure in MEASURES.values():
        low, high = interval(rows, measure, averaged=True)
        assert low < over_levels(rows, measure) < high
        assert high - low < 0.15
        plain = interval(rows, lambda some, m=measure: m(some), draws=400)
        assert interval(rows, measure) == pytest.approx(plain, abs=0.02)


def test_questions_about_one_image_do_not_make_an_interval_narrower() -> None:
    once = [row for row in drawn_at_random(0) if row.level == "chest"]
    five_times = [replace(row, id=f"{row.id} {k}") for row in once for k in range(5)]
    assert interval(five_times, giou) == pytest.approx(interval(once, giou))


def test_a_better_system_is_told_from_an_equal_one() -> None:
    better, equal = drawn_at_random(1, shift=0.05), drawn_at_random(2)
    found = compare(better, drawn_at_random(0), giou)
    assert found.p < 0.001
    assert 0.02 < found.interval[0] < found.difference < found.interval[1] < 0.08
    assert found.cases == 200
    assert compare(equal, drawn_at_random(0), giou).p > 0.05
    same = compare(equal, equal, f1)
    assert (same.difference, same.p) == (0.0, 1.0)


def test_the_paired_interval_is_narrower_than_the_systems_own() -> None:
    a, b = drawn_at_random(1, shift=0.05), drawn_at_random(0)
    low, high = compare(a, b, giou).interval
    own = interval(a, giou, averaged=True)
    assert high - low < own[1] - own[0]


def test_systems_are_compared_on_the_same_rows_in_any_order() -> None:
    a, b = drawn_at_random(1), drawn_at_random(0)
    assert compare(a, b[::-1], ciou) == compare(a, b, ciou)
    with pytest.raises(CallError, match="same rows"):
        compare(a, b[1:], ciou)


def test_noise_is_counted_over_all_positive_rows_and_the_truths_own_is_known() -> None:
    truth = np.zeros((100, 100), bool)
    truth[10:40, 10:40] = truth[90, 90] = True
    mask = truth.copy()
    mask[60, 60] = True
    facts = pixels_of(mask, truth, 5e-4)
    rows = [replace(ROW, **facts), replace(ROW, **pixels_of(np.zeros_like(mask), truth, 5e-4), returned=False)]
    rows.append(replace(ROW, **pixels_of(mask, np.zeros_like(mask), 5e-4), positive=False))
    assert {name: measure(rows) for name, measure in NOISE.items()} == {
        "delta_components": (1 - 2) / 2,
        "specks": 1.0,
        "specks_outside_truth": 0.5,
        "speck_share_of_mask": 2 / 902,
    }
    assert {name: measure(rows) for name, measure in TRUE_NOISE.items()} == {
        "specks": 1.0,
        "speck_share_of_mask": 1 / 901,
    }


def test_lesions_are_told_apart_by_their_share_of_the_image() -> None:
    rows = []
    for side in (5, 10, 20, 30):
        truth = np.zeros((100, 100), bool)
        truth[:side, :side] = True
        rows.append(replace(ROW, **pixels_of(truth, truth, 1e-4)))
    assert [len(at) for at in by_size(rows).values()] == [1, 2, 1]
    small = metrics(rows)["by_size"]["small, under 1 %"]
    assert (small["gIoU"], small["found"], small["F1"], small["intervals"]["F1"]) == (1.0, 1.0, None, None)


def test_one_case_has_no_interval() -> None:
    rows = [replace(ROW, id=str(k), intersection=k) for k in range(2)]
    assert interval(rows, giou) is None
    assert interval([*rows, replace(ROW, image="b", positive=False)], giou) is None, "the other is no positive case"
    assert interval([*rows, replace(ROW, image="b", intersection=1)], giou) is not None


def test_a_patients_radiographs_are_one_case() -> None:
    once = [replace(row, patient=row.image) for row in drawn_at_random(0) if row.level == "chest"]
    thrice = [replace(row, id=f"{row.id} {k}", image=f"{row.image} {k}") for row in once for k in range(3)]
    assert interval(thrice, giou) == pytest.approx(interval(once, giou))
    strangers = interval([replace(row, patient=None) for row in thrice], giou)
    assert strangers[1] - strangers[0] < 0.7 * (interval(once, giou)[1] - interval(once, giou)[0])


def test_subsets_are_given_where_there_is_more_than_one_kind() -> None:
    rows = [
        replace(ROW, id=str(k), image=str(k), view=("PA", "AP")[k % 2], age=30.0 + k, source="one", positive=k < 30,
                returned=k % 2 == 0, intersection=1)
        for k in range(40)
    ]  # fmt: skip
    found = metrics(rows)["subsets"]
    assert found.keys() == {"view", "age"}
    assert list(found["age"]) == ["under 40", "40 to 59", "60 and more"]
    assert [part["n"] for part in found["age"].values()] == [10, 20, 10]
    assert (found["view"]["PA"]["false_alarms"], found["view"]["AP"]["false_alarms"]) == (1.0, 0.0)
    assert found["view"]["PA"]["n_positive"] == 15
    assert found["view"]["PA"]["intervals"]["F1"] is not None


def test_measured_figures_stand_in_full() -> None:
    rows = [replace(ROW, id=str(k), intersection=1, union=3) for k in range(2)]
    assert metrics(rows)["gIoU"] == 1 / 3
