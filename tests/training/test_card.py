"""The compact bundle's model card: every figure is the manifest's, with its n and interval, and none is rounded up."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from training.compact.card import card, number
from training.evaluation.calibration import calibration
from training.evaluation.metrics import Answered, metrics
from training.evaluation.printed import cut, percent
from training.evaluation.rates import Rate
from xflow_core.bundles.manifest import Bundle, find_bundle


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.6996, 2, "0.69"), (0.6996, 3, "0.699"), (0.57, 2, "0.57"), (1.0, 3, "1.000"), (-0.0012, 3, "-0.002"),
     (0.99996, 3, "0.999"), (1e-9, 3, "0.000")],
)  # fmt: skip
def test_a_figure_is_cut_and_never_rounded_up(value: float, digits: int, text: str) -> None:
    assert cut(value, digits) == text


def test_shares_are_cut_likewise() -> None:
    assert percent(0.9778) == "97 %"
    assert percent(0.57) == "57 %"
    assert str(Rate(132, 135)) == "97.7 % [93.6, 99.2], 132 of 135"
    assert number(0.69999, [0.59999, 0.79999]) == "0.699 [0.59, 0.79]"
    assert number(None) == "-"


def answered(k: int, **changes: Any) -> Answered:
    row = Answered(
        id=str(k), image=f"{k}.png", finding="effusion", level=("chest", "lung")[k % 2], positive=k % 3 == 0,
        returned=k % 4 == 0, probability=(k % 10) / 10, intersection=6996 * (k % 3 == 0), union=10_000, area=7000,
        pieces=1, true_pieces=1, specks=0, specks_outside=0, speck_area=0, pixels=100_000, first_iou=0.6,
        source="nih_chestxdet_1024" if k % 2 else "nih_normal_1024", patient=f"p{k // 2}", view=("PA", "AP")[k % 2],
        age=20.0 + k, sex="F",
    )  # fmt: skip
    return replace(row, **changes)


@pytest.fixture
def bundle() -> Bundle:
    """The one that ships, with what an evaluation of 60 rows has measured."""
    rows = [answered(k) for k in range(60)]
    shipped = find_bundle("compact")
    quality = copy.deepcopy(dict(shipped.quality))
    quality["end_to_end"] = {**metrics(rows), "calibration": calibration(rows)}
    return replace(shipped, quality=quality)


def test_the_card_gives_the_evaluation_by_finding_level_size_source_view_and_age(bundle: Bundle) -> None:
    page = card(bundle)
    whole = bundle.quality["end_to_end"]
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    subsets = ("nih_chestxdet_1024", "nih_normal_1024", "view PA", "view AP", "age under 40", "age 40 to 59")
    for name in ("all, levels with equal weight", "chest level", "lung level", *subsets):
        assert " of " in lines[name], name
    assert "20 of 60 | 30 |" in lines["all, levels with equal weight"]
    low, high = whole["intervals"]["false_alarms"]
    assert f"{cut(whole['false_alarms'])} [{cut(low, 2)}, {cut(high, 2)}]" in lines["all, levels with equal weight"]
    assert "0.699 [0.69, 0.69]" in lines["chest level"], ".6996 is no .70"
    assert "Brier" in page
    assert "Not for clinical use" in page


def test_a_manifest_of_an_earlier_make_still_has_a_card(bundle: Bundle) -> None:
    quality = copy.deepcopy(dict(bundle.quality))
    whole = quality["end_to_end"]
    quality["end_to_end"] = {key: whole[key] for key in ("n", "gIoU", "cIoU", "F1", "by_finding_lung", "revision")}
    settings = {"steps": 2900, "seed": 0, "command": "python -m training compact segmenter"}
    training = {**bundle.training, "segmenter": settings}
    page = card(replace(bundle, quality=quality, training=training))
    assert "60 questions" in page and "segmenter --data PACK --work SEGMENTER/0 --steps 2900 --seed 0" in page
    for name in ("end_to_end", "bench", "guards", "honesty"):
        quality.pop(name, None)
    assert "### Lungs" in card(replace(bundle, quality=quality))
