"""The seven findings, the regions they are asked in, and where a region lies (paper, sections 3 and 5.2).

Zones are the vertical thirds of that lung's own y-extent (upper, mid, base); the apical zone is its top sixth, so it
lies inside the upper zone. The patient's right lung is on the image's left in a standard frontal view.
"""

from __future__ import annotations

from .errors import ValueRefused
from .geometry import Box

FINDINGS = ("cardiomegaly", "pneumonia", "atelectasis", "opacity", "consolidation", "edema", "effusion")

LUNGS = ("right lung", "left lung")
ZONES = tuple(
    f"{side} {zone}"
    for side in ("right", "left")
    for zone in ("apical zone lung", "upper zone lung", "mid zone lung", "lung base")
)
CHEST = "chest"
HEART = "heart"
REGIONS = (CHEST, *LUNGS, *ZONES, HEART)
LEVELS = ("chest", "lung", "zone")

# The part of the lung box's height that a zone takes, from the top.
_BANDS = {
    "apical zone lung": (0.0, 1 / 6),
    "upper zone lung": (0.0, 1 / 3),
    "mid zone lung": (1 / 3, 2 / 3),
    "lung base": (2 / 3, 1.0),
    "lung": (0.0, 1.0),
}


def check_finding(finding: str) -> str:
    if finding not in FINDINGS:
        raise ValueRefused(f"{finding!r} is not one of the seven findings: {', '.join(FINDINGS)}.")
    return finding


def check_region(region: str) -> str:
    if region not in REGIONS:
        raise ValueRefused(f"{region!r} is not a region of XFlow: {', '.join(REGIONS)}.")
    return region


def level_of(region: str) -> str:
    """``chest`` for chest and heart, ``lung`` for a lung, ``zone`` for a zone of one."""
    check_region(region)
    if region in (CHEST, HEART):
        return "chest"
    return "lung" if region in LUNGS else "zone"


def lung_of(region: str) -> str | None:
    """The lung that a region lies in; None for chest and heart."""
    return None if level_of(region) == "chest" else f"{region.split()[0]} lung"


def lungs_for(regions: tuple[str, ...]) -> tuple[str, ...]:
    """The lungs to ground for a question: both for the chest and the heart, else only those asked about."""
    asked = {lung_of(region) for region in regions}
    return LUNGS if None in asked else tuple(lung for lung in LUNGS if lung in asked)


def verdict_regions(regions: tuple[str, ...]) -> tuple[str, ...]:
    """The regions that get a verdict: both lungs for a chest question, else the regions asked for."""
    return LUNGS if regions == (CHEST,) else regions


def region_band(region: str, lung: Box) -> Box:
    """The part of a grounded lung box that a lung or zone takes."""
    if lung_of(region) is None:
        raise ValueRefused(f"{region!r} has no band in a lung.")
    top, bottom = _BANDS[region.split(" ", 1)[1]]
    y2 = lung.y2 if bottom == 1.0 else lung.y1 + bottom * lung.height  # y1 + (y2 - y1) is not always y2
    return Box(lung.x1, lung.y1 + top * lung.height, lung.x2, y2)
