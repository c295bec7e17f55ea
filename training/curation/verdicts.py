"""What a source says of one finding, reduced to present or absent for each region (paper, A.2).

Three sources state three different things: CheXpercept lists zones, a report is text, Chest ImaGenome answers for some
places. One rule reduces them all, so that they differ only where they disagree:

- present in a zone is present in its lung, and in the chest; present in a lung is present in the chest;
- absent in the chest is absent everywhere, absent in a lung is absent in its zones;
- a finding that is located stays there: with a zone named, the lung's other zones are absent, and with a lung named the
  other lung is absent ("the finding does not move", B.1);
- a lung named without a zone says nothing of its zones, and the chest named without a lung nothing of the lungs;
- what is stated both ways, or not at all, has no verdict.
"""

from __future__ import annotations

from collections.abc import Collection

from training.curation.sources.regions import THIRDS, thirds_of
from xflow_core.domain.findings import CHEST, HEART, LUNGS

COMPARED = (CHEST, *LUNGS, *THIRDS)


def verdicts_of(finding: str, present: Collection[str], absent: Collection[str]) -> dict[str, bool]:
    """The verdict for every region that has one: of chest, lungs and zones, or of the heart for cardiomegaly.

    Args:
        present, absent: the regions that a source states, of XFlow's names.
    """
    if finding == "cardiomegaly":
        yes, no = bool(present), bool(absent)
        return {HEART: yes} if yes != no else {}
    zones = {zone for region in present if region not in (CHEST, HEART, *LUNGS) for zone in thirds_of(region)}
    lungs = {lung for lung in LUNGS if lung in present or any(_lies_in(zone, lung) for zone in zones)}
    verdicts: dict[str, bool | None] = {}
    somewhere = bool(present)
    verdicts[CHEST] = True if somewhere else False if CHEST in absent or set(LUNGS) <= set(absent) else None
    if somewhere and CHEST in absent:
        return {}
    for lung in LUNGS:
        denied = lung in absent or CHEST in absent
        located = lung in lungs
        if located:
            verdicts[lung] = None if denied else True
        else:
            verdicts[lung] = False if denied or lungs else None
        for zone in thirds_of(lung):
            named = any(_lies_in(other, lung) for other in zones)
            stated_absent = zone in absent or verdicts[lung] is False
            if zone in zones:
                verdicts[zone] = None if zone in absent or denied else True
            elif denied and located:
                verdicts[zone] = None
            else:
                verdicts[zone] = False if stated_absent or named else None
    return {region: verdicts[region] for region in COMPARED if verdicts[region] is not None}  # type: ignore[misc]


def _lies_in(zone: str, lung: str) -> bool:
    return zone.split()[0] == lung.split()[0]
