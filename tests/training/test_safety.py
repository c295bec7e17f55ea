"""The instrument for safety, on an engine whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from phantom import phantom, phantom_engine

from training.evaluation import safety
from training.evaluation.cases import Case, as_png
from training.evaluation.honesty import Compared, Sided


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """One disc in the right lung, two in the left."""
    path = tmp_path / "phantom.png"
    path.write_bytes(as_png(phantom([(0.25, 0.5, 12.0), (0.7, 0.3, 9.0), (0.75, 0.7, 10.0)]).display))
    return Case("phantom", "nih_normal_1024", "dev", path, labels=frozenset({"no_finding"}))


def test_a_mask_goes_where_the_change_takes_its_pixels() -> None:
    rng = np.random.default_rng(0)
    picture = cv2.GaussianBlur(rng.integers(0, 255, (120, 100), dtype=np.uint8), (9, 9), 3)
    mask = np.zeros(picture.shape, bool)
    mask[30:60, 20:50] = True
    for change in safety.SENSITIVITY:
        made = change.of(picture)
        assert made.dtype == np.uint8
        moved = change.mask(mask)
        assert moved.shape == made.shape
        if change.moves:
            assert moved.sum() == pytest.approx(900, rel=0.02), change.name
        else:
            assert moved is mask
    names = {change.name: change for change in safety.SENSITIVITY}
    assert names["rotated by 180 degrees"].mask(mask)[60:90, 50:80].all()
    assert names["cropped by 8 % at each edge"].of(picture).shape == (100, 84)
    assert names["gamma 0.7"].of(picture).mean() > picture.mean()


def test_every_question_beyond_the_vocabulary_is_refused_and_a_contradiction_is_noted() -> None:
    words = safety.word_figures()
    assert all(word["refused"] for word in words if word["kind"] == "out of vocabulary")
    for word in words:
        assert word["said"]
        if not word["refused"]:
            assert "no note" not in word["said"], word["prompt"]


def test_a_refused_picture_is_no_flipped_verdict() -> None:
    kept = Compared("a", "effusion", "x", True, True, 0.95)
    lost = Compared("b", "effusion", "x", True, False, None)
    found = [safety.Changed("a", "x", False, (kept,)), safety.Changed("b", "x", False, (lost,))]
    found += [safety.Changed("c", "x", True), safety.Changed("c", "y", True)]
    figures = safety.change_figures(found)
    assert figures["x"]["refused"]["count"] == 1
    assert figures["x"]["refused"]["n"] == 3
    assert figures["x"]["answered"]["lost"] == 1
    assert figures["x"]["answered"]["n"] == 2
    assert figures["y"]["answered"] is None


def test_wrong_side_questions_are_told_from_those_about_a_finding_in_neither_lung() -> None:
    def asked(truth: bool | None, other: bool | None, present: bool) -> Sided:
        return Sided("a", "effusion", "left lung", truth, other, present, 0.0 if present else None)

    rows = [asked(False, True, True), asked(False, True, False), asked(False, False, False), asked(True, True, True)]
    figures = safety.wrong_side_figures([*rows, asked(None, None, True)])["effusion"]
    counts = {name: (rate["count"], rate["n"]) for name, rate in figures.items()}
    assert counts == {
        "finding_in_the_other_lung": (1, 2),
        "finding_in_neither_lung": (0, 1),
        "finding_in_this_lung": (1, 1),
    }


def test_an_engine_that_only_looks_at_pixels_answers_the_same_again_and_the_measures_become_a_page(case: Case) -> None:
    engine, _ = phantom_engine()
    figures = safety.figures_of(engine.identity, [safety.watch(engine, case)])
    for part in figures["repeats"].values():
        assert part["every_decision_the_same"]["share"] == 1
        assert part["answered"]["same_verdict"]["share"] == 1
    assert len(figures["changes"]) == len(safety.SENSITIVITY)
    for part in figures["changes"].values():
        assert (part["answered"] is None) == (part["refused"]["count"] == 1)
    # A report of "No Finding" makes every lung one without it; the phantom finds its discs in both all the same.
    assert figures["wrong_side"]["all"]["finding_in_neither_lung"]["share"] == 1
    json.dumps(figures, allow_nan=False)
    table = safety.table(figures)
    assert "Not for clinical use." in table
    assert "| turned by 3 degrees |" in table
