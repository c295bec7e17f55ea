"""Questions at three levels from what the sources agree on (paper, 5.2 and B.1), and the sentences that ask them.

- chest: one for every finding with a verdict there ("Segment the edema."); cardiomegaly has this level alone;
- lung: one for every lung with a verdict ("Segment the edema in the left lung.");
- zone: where it is present, one a lung, naming all zones that it fills there ("in the left mid zone lung and left lung
  base"), asked only when the sources agree on each zone that CheXpercept lists, since the mask shows them all; where it
  is absent, one a zone.

This is how the sizes of Table 8 come out: fewer positive zone questions than positive lung questions, many more
negative ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from training.curation.agreement import Agreed
from training.curation.sources.mimic_ils import Study
from training.curation.sources.regions import thirds_of
from xflow_core.domain.findings import CHEST, HEART, LUNGS, REGIONS


@dataclass(frozen=True)
class Question:
    """A question about a radiograph, and whether the finding is there."""

    study: str
    finding: str
    regions: tuple[str, ...]
    level: str
    present: bool

    @property
    def instruction(self) -> str:
        return sentence(self.finding, self.regions)


def sentence(finding: str, regions: Sequence[str]) -> str:
    """The instruction in MIMIC-ILS's words."""
    if tuple(regions) in ((CHEST,), (HEART,)):
        return f"Segment the {finding}."
    named = list(regions)
    where = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"Segment the {finding} in the {where}."


def questions_of(agreed: Agreed) -> Iterator[Question]:
    """All questions that one agreed finding gives rise to."""

    def asked(regions: tuple[str, ...], level: str, present: bool) -> Question:
        return Question(agreed.study, agreed.finding, regions, level, present)

    verdicts = agreed.verdicts
    for region in (CHEST, HEART):
        if region in verdicts:
            yield asked((region,), "chest", verdicts[region])
    for lung in LUNGS:
        if lung in verdicts:
            yield asked((lung,), "lung", verdicts[lung])
        zones = thirds_of(lung)
        filled = tuple(zone for zone in zones if verdicts.get(zone) is True)
        if filled and set(filled) == agreed.zones & set(zones):
            yield asked(filled, "zone", True)
        for zone in zones:
            if verdicts.get(zone) is False:
                yield asked((zone,), "zone", False)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that MIMIC-ILS's pairs ask. located: where its pair says that the finding lies. mask: the pair's."""

    finding: str
    regions: tuple[str, ...]
    present: bool
    located: tuple[str, ...]
    mask: str | None


def asked_of(study: Study) -> list[Asked]:
    """The distinct questions that a study's pairs ask, in their order; regions in XFlow's.

    A global pair asks about the chest (or the heart); one that also asks for the type of a lesion is asked without it.
    """
    asked: dict[tuple[str, tuple[str, ...], bool], Asked] = {}
    for pair in study.pairs:
        if pair.finding == "cardiomegaly":
            regions: tuple[str, ...] = (HEART,)
        elif pair.type == "basic" or (pair.type == "lesion_inference" and " in the " in pair.instruction):
            regions = tuple(sorted(pair.regions, key=REGIONS.index))
        else:
            regions = (CHEST,)
        key = (pair.finding, regions, pair.positive)
        asked.setdefault(key, Asked(*key, pair.regions, pair.mask))
    return list(asked.values())
