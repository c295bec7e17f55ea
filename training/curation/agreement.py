"""Three-source agreement (paper, A.2): a (radiograph, finding, region) is admitted only with three equal verdicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from training.curation.report_parsing import Stated
from training.curation.sources.chexpercept import Review
from training.curation.sources.imagenome import SceneGraph
from training.curation.verdicts import verdicts_of
from xflow_core.domain.findings import CHEST, HEART, LUNGS

# Why a triple is dropped, in the order that is asked.
REASONS = (
    "no report",
    "report unreadable",
    "no scene graph",
    "report silent on the finding",
    "scene graph silent on the finding",
    "report silent on the region",
    "scene graph silent on the region",
    "report disagrees",
    "scene graph disagrees",
    "both disagree",
)


@dataclass(frozen=True)
class Agreed:
    """What three sources agree on for one reviewed finding of one radiograph.

    verdicts: present or absent by region, admitted triples only; never empty. zones: CheXpercept's own list. mask: of
    the MIMIC-ILS pair that was reviewed, where it is positive.
    """

    study: str
    subject: str
    dicom_id: str
    finding: str
    mask: str | None
    zones: frozenset[str]
    verdicts: dict[str, bool]

    @property
    def present(self) -> bool | None:
        """The verdict for the chest, or the heart; None where the sources do not agree on it."""
        return self.verdicts.get(HEART if self.finding == "cardiomegaly" else CHEST)

    @property
    def unilateral(self) -> bool:
        """One lung has it and the other does not, both admitted."""
        return {self.verdicts.get(lung) for lung in LUNGS} == {True, False}


def agree(
    review: Review,
    subject: str,
    mask: str | None,
    report: Stated | None,
    has_report: bool,
    graph: SceneGraph | None,
    dropped: Counter[str],
) -> Agreed | None:
    """The admitted triples of one review; None where there is none.

    Args:
        mask: of the reviewed pair.
        report: what the report states, None where there is no report or its parse could not be read.
        dropped: one is added for every triple that is dropped, under its reason.
    """
    finding = review.finding
    if finding == "cardiomegaly":
        mine = verdicts_of(finding, {HEART} if review.present else (), () if review.present else {HEART})
    else:
        mine = verdicts_of(finding, review.zones, () if review.present else {CHEST})
    reason = "no report" if not has_report else "report unreadable" if report is None else None
    reason = reason or ("no scene graph" if graph is None else None)
    if reason is not None or report is None or graph is None:
        dropped[reason or ""] += len(mine)
        return None
    theirs = verdicts_of(finding, *report.get(finding, ((), ())))
    silver = verdicts_of(finding, *graph.stated.get(finding, ((), ())))
    admitted = {}
    for region, verdict in mine.items():
        if theirs.get(region) is verdict and silver.get(region) is verdict:
            admitted[region] = verdict
        elif finding not in report:
            dropped["report silent on the finding"] += 1
        elif finding not in graph.stated:
            dropped["scene graph silent on the finding"] += 1
        elif region not in theirs:
            dropped["report silent on the region"] += 1
        elif region not in silver:
            dropped["scene graph silent on the region"] += 1
        elif theirs[region] == silver[region]:
            dropped["both disagree"] += 1
        elif silver[region] is verdict:
            dropped["report disagrees"] += 1
        else:
            dropped["scene graph disagrees"] += 1
    if not admitted:
        return None
    return Agreed(review.study, subject, review.dicom_id, finding, mask, review.zones, admitted)
