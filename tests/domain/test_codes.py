"""Every code is looked up again in the tables of the DICOM standard that pydicom ships."""

from __future__ import annotations

import re

import pytest
from pydicom.sr._cid_dict import cid_concepts
from pydicom.sr._concepts_dict import concepts

from xflow_core.domain.codes import (
    ABSENT,
    ARTIFICIAL_INTELLIGENCE,
    BILATERAL,
    FINDING_CODES,
    LEFT,
    PRESENCE,
    PRESENT,
    RIGHT,
    Code,
    finding_of,
    place_codes,
    region_codes,
    regions_of,
)
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.findings import FINDINGS, REGIONS


def groups_of(code: Code) -> set[int]:
    """The context groups that hold a code, by pydicom's tables."""
    keywords = {keyword for keyword, held in concepts[code.scheme].items() if code.value in held}
    return {cid for cid, held in cid_concepts.items() if keywords & set(held.get(code.scheme, ()))}


def meanings_of(code: Code) -> set[str]:
    held = concepts[code.scheme].values()
    return {meanings[code.value][0].casefold() for meanings in held if code.value in meanings}


def named_groups(source: str) -> set[int]:
    return {int(number) for number in re.findall(r"CID (\d+)", source)}


EVERY_CODE = {
    *(coded.code for coded in FINDING_CODES.values()),
    *(coded.category for coded in FINDING_CODES.values()),
    *(region_codes(region).anatomy for region in REGIONS),
    *(modifier for region in REGIONS for modifier in region_codes(region).all_modifiers),
    *(BILATERAL, PRESENCE, PRESENT, ABSENT, ARTIFICIAL_INTELLIGENCE),
}


@pytest.mark.parametrize("code", sorted(EVERY_CODE, key=lambda code: code.value), ids=lambda code: code.meaning)
def test_every_code_stands_in_the_dictionary_with_its_meaning(code: Code) -> None:
    assert any(meaning.startswith(code.meaning.casefold()) for meaning in meanings_of(code)), meanings_of(code)


def test_all_seven_findings_have_a_code_a_category_and_a_colour_of_their_own() -> None:
    assert tuple(FINDING_CODES) == FINDINGS
    assert all(7150 in groups_of(coded.category) for coded in FINDING_CODES.values())
    assert len({coded.colour for coded in FINDING_CODES.values()}) == len(FINDINGS)


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_findings_code_is_in_the_group_that_the_table_names(finding: str) -> None:
    coded = FINDING_CODES[finding]
    first = named_groups(coded.source.split(".")[0])
    assert first <= groups_of(coded.code)
    assert first or "pydicom's dictionary" in coded.source
    assert coded.verified == (finding in ("opacity", "edema", "effusion"))
    if not coded.verified:
        assert "as the parent" in coded.source


@pytest.mark.parametrize(
    ("value", "meaning"),
    [("8186001", "Cardiomegaly"), ("233604007", "Pneumonia"), ("46621007", "Atelectasis"), ("95436008", "Lung cons.")],
)
def test_the_codes_called_unverified_are_still_in_no_table(value: str, meaning: str) -> None:
    """When pydicom's dictionary learns one of these, use it, and call the finding verified."""
    assert not any(value in held for held in concepts["SCT"].values()), meaning


@pytest.mark.parametrize("region", REGIONS)
def test_a_regions_codes_are_in_the_groups_that_the_table_names(region: str) -> None:
    place = region_codes(region)
    held = set.union(*(groups_of(code) for code in (place.anatomy, *place.all_modifiers)))
    assert named_groups(place.source) <= held
    for side, code in (("right", RIGHT), ("left", LEFT)):
        assert (place.laterality == code) == region.startswith(side)


@pytest.mark.parametrize("region", REGIONS)
def test_a_region_comes_back_from_its_codes(region: str) -> None:
    place = region_codes(region)
    modifiers = [(code.value, code.scheme) for code in place.all_modifiers]
    assert regions_of((place.anatomy.value, place.anatomy.scheme), modifiers) == (region,)


@pytest.mark.parametrize(
    ("regions", "anatomy", "modifiers"),
    [
        (("right lung", "left lung"), "Lung", ["Bilateral"]),
        (("right lung base", "left lung base"), "Lung", ["Bilateral", "Lower zone of lung"]),
        (("left upper zone lung", "left lung base"), "Lung", ["Left", "Upper zone of lung", "Lower zone of lung"]),
        (("left lung base", "left lung"), "Lung", ["Left"]),
        (("heart", "left lung"), "Chest", []),
        (("heart",), "Heart", []),
    ],
)
def test_several_regions_are_one_place(regions, anatomy, modifiers) -> None:
    place = place_codes(regions)
    assert place.anatomy.meaning == anatomy
    assert [code.meaning for code in place.all_modifiers] == modifiers


def test_a_code_that_several_findings_share_is_told_by_the_label() -> None:
    assert finding_of("112001", "DCM") == "opacity"
    assert finding_of("112001", "DCM", "Consolidation, left lung") == "consolidation"
    assert finding_of("19829001", "SCT", "Pneumonia") == "pneumonia"
    assert finding_of("19829001", "SCT", "Fibrosis") is None  # a disorder of the lung, but not one of the seven
    assert finding_of("60046008", "SCT", "Edema") == "effusion"  # the code is the finding's own
    assert finding_of("27925004", "SCT", "Effusion") is None


def test_a_place_that_is_none_of_xflows_is_no_region() -> None:
    assert regions_of(("10200004", "SCT")) == ()
    assert regions_of(("39607008", "SCT")) == ("chest",)
    with pytest.raises(ValueRefused):
        place_codes(())
    with pytest.raises(ValueRefused):
        region_codes("liver")


def test_a_code_that_dicom_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueRefused):
        Code("", "SCT", "Lung")
    with pytest.raises(ValueRefused):
        Code("1" * 17, "SCT", "Lung")
