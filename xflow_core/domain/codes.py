"""What the findings, the regions and the verdicts are called in coded terms (DICOM PS3.16, SNOMED CT).

Every code stands here once, with the place where it was looked up: a context group (CID) of PS3.16, or the code
dictionary that pydicom ships, which is made from the standard's own tables (``tests/domain/test_codes.py`` looks all of
them up again). Three of the seven findings have a code of their own there. The SNOMED CT concepts of the other four
stand in neither, so they are not used: the nearest verified concept that contains the finding takes their place, and
the finding's own name is the segment's label. ``verified`` is False for these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .errors import ValueRefused
from .findings import CHEST, FINDINGS, HEART, LUNGS, REGIONS, check_region, lung_of


@dataclass(frozen=True)
class Code:
    """A coded concept: ``value`` in the coding scheme ``scheme`` ("SCT" is SNOMED CT, "DCM" is DICOM's own)."""

    value: str
    scheme: str
    meaning: str

    def __post_init__(self) -> None:
        if not (self.value and self.scheme and self.meaning):
            raise ValueRefused(f"A code has a value, a scheme and a meaning; got {self!r}.")
        if len(self.value) > 16 or len(self.scheme) > 16 or len(self.meaning) > 64:
            raise ValueRefused(f"DICOM holds 16, 16 and 64 characters of a code (PS3.3, 8.1-8.3); got {self!r}.")

    def same(self, value: str, scheme: str) -> bool:
        """Whether another code names the same concept; its meaning may be worded in another way."""
        return (self.value, self.scheme) == (value, scheme)


@dataclass(frozen=True)
class CodedFinding:
    """A finding's code.

    Attributes:
        code: the segmented property type, and the finding type of the report.
        category: the segmented property category (CID 7150).
        source: where the code was looked up; for an unverified finding, which concept is meant and why it is not used.
        verified: whether the code is the finding's own. If not, it is a wider one, and the label says what is meant.
        colour: the recommended display colour, sRGB 0-255. The seven can be told apart with any colour vision.
    """

    code: Code
    category: Code
    source: str
    verified: bool
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class RegionCode:
    """A place: an anatomic region, its side, and what narrows it further (topographical modifiers).

    ``source`` says where each of its codes was looked up.
    """

    anatomy: Code
    laterality: Code | None
    modifiers: tuple[Code, ...]
    source: str

    @property
    def all_modifiers(self) -> tuple[Code, ...]:
        """The side, and then the other modifiers, as SEG's Anatomic Region Modifier Sequence wants them."""
        return self.modifiers if self.laterality is None else (self.laterality, *self.modifiers)


MORPHOLOGICALLY_ABNORMAL = Code("49755003", "SCT", "Morphologically Abnormal Structure")  # CID 7150

_OPACITY = Code("112001", "DCM", "Opacity")
_NOT_FOUND = "stands in no CID and not in pydicom's dictionary"

# The colours are those of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/.
FINDING_CODES: Mapping[str, CodedFinding] = MappingProxyType(
    {
        "cardiomegaly": CodedFinding(
            Code("56265001", "SCT", "Heart disease"),
            MORPHOLOGICALLY_ABNORMAL,
            f"CID 3727, as the parent. SCT 8186001 Cardiomegaly {_NOT_FOUND}. CID 12248 names SCT 287272002 "
            "Cardiomegaly, which the dictionary also calls an enlarged septal foramen of the heart: not used.",
            False,
            (204, 121, 167),
        ),
        "pneumonia": CodedFinding(
            Code("19829001", "SCT", "Disorder of lung"),
            MORPHOLOGICALLY_ABNORMAL,
            f"pydicom's dictionary (SCT), as the parent. SCT 233604007 Pneumonia {_NOT_FOUND}.",
            False,
            (213, 94, 0),
        ),
        "atelectasis": CodedFinding(
            _OPACITY,
            MORPHOLOGICALLY_ABNORMAL,
            f"CID 6104, as the parent (XFlow's opacity contains atelectasis). SCT 46621007 Atelectasis {_NOT_FOUND}; "
            "CID 6103 has plate-like atelectasis alone.",
            False,
            (0, 114, 178),
        ),
        "opacity": CodedFinding(_OPACITY, MORPHOLOGICALLY_ABNORMAL, "CID 6104", True, (240, 228, 66)),
        "consolidation": CodedFinding(
            _OPACITY,
            MORPHOLOGICALLY_ABNORMAL,
            "CID 6104, as the parent (XFlow's opacity contains consolidation). SCT 95436008 Lung consolidation "
            f"{_NOT_FOUND}.",
            False,
            (230, 159, 0),
        ),
        "edema": CodedFinding(
            Code("19242006", "SCT", "Pulmonary edema"), MORPHOLOGICALLY_ABNORMAL, "CID 3700", True, (86, 180, 233)
        ),
        "effusion": CodedFinding(
            Code("60046008", "SCT", "Pleural effusion"), MORPHOLOGICALLY_ABNORMAL, "CID 645", True, (0, 158, 115)
        ),
    }
)

RIGHT = Code("24028007", "SCT", "Right")
LEFT = Code("7771000", "SCT", "Left")
BILATERAL = Code("51440002", "SCT", "Bilateral")
SIDES: Mapping[str, Code] = MappingProxyType({"right": RIGHT, "left": LEFT})

LUNG = Code("39607008", "SCT", "Lung")
_CHEST = Code("816094009", "SCT", "Chest")
_HEART = Code("80891009", "SCT", "Heart")
ZONE_CODES: Mapping[str, Code] = MappingProxyType(
    {
        "apical zone lung": Code("43674008", "SCT", "Apical"),
        "upper zone lung": Code("281392002", "SCT", "Upper zone of lung"),
        "mid zone lung": Code("281393007", "SCT", "Middle zone of lung"),
        "lung base": Code("281394001", "SCT", "Lower zone of lung"),
    }
)
_ZONE_SOURCES = {zone: "CID 2" if zone == "apical zone lung" else "CID 6171" for zone in ZONE_CODES}

PRESENCE = Code("121052", "DCM", "Presence of property")
PRESENT = Code("121053", "DCM", "Present")
ABSENT = Code("121054", "DCM", "Absent")
ARTIFICIAL_INTELLIGENCE = Code("123110", "DCM", "Artificial Intelligence")  # CID 7162


def region_codes(region: str) -> RegionCode:
    """The codes of one region.

    Raises:
        ValueRefused: no region of XFlow.
    """
    check_region(region)
    if region == CHEST:
        return RegionCode(_CHEST, None, (), "CID 4031")
    if region == HEART:
        return RegionCode(_HEART, None, (), "CID 4031")
    side, place = region.split(" ", 1)
    if region in LUNGS:
        return RegionCode(LUNG, SIDES[side], (), "CID 4; laterality CID 244")
    source = f"CID 4; laterality CID 244; zone {_ZONE_SOURCES[place]}"
    return RegionCode(LUNG, SIDES[side], (ZONE_CODES[place],), source)


def place_codes(regions: Sequence[str]) -> RegionCode:
    """The codes of one place that holds several regions: DICOM gives a segment a single anatomic region.

    Both lungs are the lung, bilateral; zones of both sides are the lung, bilateral, with each zone. A place of lungs
    and others is the chest.

    Raises:
        ValueRefused: no region, or one that is none of XFlow's.
    """
    if not regions:
        raise ValueRefused("A place has at least one region.")
    codes = [region_codes(region) for region in dict.fromkeys(regions)]
    if len(codes) == 1:
        return codes[0]
    if any(lung_of(region) is None for region in regions):
        return region_codes(CHEST)
    sides = {code.laterality for code in codes}
    whole = any(not code.modifiers for code in codes)
    modifiers = () if whole else tuple(dict.fromkeys(modifier for code in codes for modifier in code.modifiers))
    laterality = BILATERAL if len(sides) == 2 else codes[0].laterality
    return RegionCode(LUNG, laterality, modifiers, "; ".join(dict.fromkeys(code.source for code in codes)))


def finding_of(value: str, scheme: str, label: str = "") -> str | None:
    """The finding behind a code, None when it is none of the seven.

    A label that begins with a finding's name says which of those that share the code is meant; a code alone means the
    finding whose own it is.
    """
    holders = [finding for finding, coded in FINDING_CODES.items() if coded.code.same(value, scheme)]
    named = next((finding for finding in FINDINGS if label.strip().casefold().startswith(finding)), None)
    if named in holders:
        return named
    return next((finding for finding in holders if FINDING_CODES[finding].verified), None)


def regions_of(anatomy: tuple[str, str], modifiers: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """The regions behind the codes of a place, ``(value, scheme)`` each; none where the codes are none of these.

    Bilateral zones are read as these zones of both lungs, a lung without a side as the chest.
    """
    if _CHEST.same(*anatomy):
        return (CHEST,)
    if _HEART.same(*anatomy):
        return (HEART,)
    if not LUNG.same(*anatomy):
        return ()
    held = set(modifiers)

    def has(code: Code) -> bool:
        return (code.value, code.scheme) in held

    sides = [side for side, code in SIDES.items() if has(code) or has(BILATERAL)]
    if not sides:
        return (CHEST,)
    zones = [zone for zone, code in ZONE_CODES.items() if has(code)] or ["lung"]
    return tuple(region for region in REGIONS if region in {f"{side} {zone}" for side in sides for zone in zones})
