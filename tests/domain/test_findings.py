"""Seven findings, twelve regions, and where in a lung a region lies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.findings import (
    FINDINGS,
    LEVELS,
    LUNGS,
    REGIONS,
    ZONES,
    check_finding,
    check_region,
    level_of,
    lung_of,
    lungs_for,
    region_band,
    verdict_regions,
)
from xflow_core.domain.geometry import Box


def test_the_seven_findings_and_the_regions_are_those_of_the_contract() -> None:
    assert set(FINDINGS) == {
        "cardiomegaly",
        "pneumonia",
        "atelectasis",
        "opacity",
        "consolidation",
        "edema",
        "effusion",
    }
    expected = {"chest", "heart", "right lung", "left lung"} | {
        f"{side} {zone}"
        for side in ("right", "left")
        for zone in ("apical zone lung", "upper zone lung", "mid zone lung", "lung base")
    }
    assert set(REGIONS) == expected
    assert len(REGIONS) == len(expected)


@pytest.mark.parametrize("name", ["pneumothorax", "Effusion", "", "lung", None])
def test_another_finding_or_region_is_refused_by_name(name: str) -> None:
    for check in (check_finding, check_region, level_of, lung_of):
        with pytest.raises(ValueRefused) as refused:
            check(name)
        assert repr(name) in str(refused.value)


def test_every_region_has_a_level_and_every_zone_a_lung() -> None:
    assert {level_of(region) for region in REGIONS} == set(LEVELS)
    assert level_of("chest") == level_of("heart") == "chest"
    assert lung_of("chest") is None
    assert lung_of("heart") is None
    assert {level_of(lung) for lung in LUNGS} == {"lung"}
    assert {level_of(zone) for zone in ZONES} == {"zone"}
    assert all(lung_of(zone) == f"{zone.split()[0]} lung" for zone in ZONES)


@pytest.mark.parametrize(
    ("regions", "lungs", "verdicts"),
    [
        (("chest",), LUNGS, LUNGS),
        (("heart",), LUNGS, ("heart",)),
        (("left lung",), ("left lung",), ("left lung",)),
        (LUNGS, LUNGS, LUNGS),
        (("left mid zone lung", "left lung base"), ("left lung",), ("left mid zone lung", "left lung base")),
        (("right lung base", "left lung base"), LUNGS, ("right lung base", "left lung base")),
    ],
)
def test_which_lungs_are_grounded_and_which_regions_get_a_verdict(
    regions: tuple[str, ...], lungs: tuple[str, ...], verdicts: tuple[str, ...]
) -> None:
    assert lungs_for(regions) == lungs
    assert verdict_regions(regions) == verdicts


@given(
    st.tuples(st.floats(0, 0.4), st.floats(0.6, 1), st.floats(0, 0.4), st.floats(0.6, 1)),
    st.sampled_from(["right", "left"]),
)
def test_the_three_zones_tile_the_lung_and_the_apex_is_the_top_sixth(
    edges: tuple[float, float, float, float], side: str
) -> None:
    x1, x2, y1, y2 = edges
    lung = Box(x1, y1, x2, y2)
    upper, mid, base = (
        region_band(f"{side} {zone}", lung) for zone in ("upper zone lung", "mid zone lung", "lung base")
    )
    assert region_band(f"{side} lung", lung) == lung
    assert (upper.y1, upper.y2, mid.y2, base.y2) == (lung.y1, mid.y1, base.y1, lung.y2)
    assert upper.height == pytest.approx(lung.height / 3)
    assert mid.height == pytest.approx(lung.height / 3)
    apex = region_band(f"{side} apical zone lung", lung)
    assert apex.y1 == lung.y1
    assert apex.height == pytest.approx(lung.height / 6)
    assert all((band.x1, band.x2) == (lung.x1, lung.x2) for band in (upper, mid, base, apex))


@pytest.mark.parametrize("region", ["chest", "heart"])
def test_the_chest_and_the_heart_have_no_band(region: str) -> None:
    with pytest.raises(ValueRefused, match=region):
        region_band(region, Box(0, 0, 0.5, 1))
