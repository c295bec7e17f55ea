"""A miniature of chosen findings: nothing names another, and what counts as one of them is drawn."""

from __future__ import annotations

import argparse

import pytest

from training.curation import miniature
from training.curation.synthetic.records import instruction_record, reviews
from training.curation.synthetic.study import Plan
from training.curation.synthetic.words import report_text, sentences
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS

CHOSEN = ("cardiomegaly", "opacity", "effusion")


def test_reports_pairs_and_reviews_name_the_chosen_findings_alone() -> None:
    studies = list(Plan(300, seed=5, images=False, findings=CHOSEN))
    others = set(FINDINGS) - set(CHOSEN)
    for study in studies:
        said = sentences(study)
        # One kind of MIMIC-ILS's answers guesses at a cause; it asks for no mask of it.
        record = str(instruction_record(study, said)).replace("suggests pneumonia", "")
        told = f"{record} {report_text(study, said)} {reviews(study)}".lower()
        assert not [other for other in others if other in told]
    present = {finding for study in studies for finding in study.present}
    assert present == set(CHOSEN)
    drawn = {lesion.finding for study in studies for lesion in study.lesions}
    assert drawn == {"cardiomegaly", "opacity", "effusion", "consolidation", "pneumonia"}


def test_all_findings_are_drawn_by_default_as_they_were() -> None:
    chosen = [study.lesions for study in Plan(60, seed=5, images=False, findings=FINDINGS)]
    assert chosen == [study.lesions for study in Plan(60, seed=5, images=False)]


def test_the_share_that_chexpercept_covers_can_be_chosen() -> None:
    covered = [
        sum(bool(study.reviewed) for study in Plan(600, images=False, reviewed_share=share)) for share in (0.1, 0.6)
    ]
    assert 30 <= covered[0] <= 90 and covered[1] > 3 * covered[0]
    with pytest.raises(CallError, match="--reviewed"):
        miniature.run(parsed("--reviewed", "2"))


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    miniature.add_arguments(parser)
    return parser.parse_args(["--studies", "20", "--out", "nowhere", *words])
