"""The module's terminologies: made from the one list of codes, read by Slicer's own logic, and put on real segments."""

from __future__ import annotations

import json

import pytest

from xflow_core.domain.codes import FINDING_CODES, SIDES, region_codes
from xflow_core.domain.errors import CallError
from xflow_core.domain.findings import FINDINGS, REGIONS
from xflow_core.export import sr

slicer = pytest.importorskip("slicer", reason="slicer-core is not installed")
vtk = pytest.importorskip("vtk")

from XFlowSlicerLib import resource, terminology  # noqa: E402  after the check for Slicer

# What dcmqi's schemas allow (github.com/QIICR/dcmqi, doc/schemas/segment-context-common-schema.json).
CODE = {"CodeValue", "CodingSchemeDesignator", "CodeMeaning"}
SHOWN = {"recommendedDisplayRGBValue", "3dSlicerLabel"}
LEVELS = (("Category", CODE | {"showAnatomy"}), ("Type", CODE | SHOWN), ("Modifier", CODE | SHOWN))


@pytest.fixture(scope="module")
def logic():
    made = slicer.vtkSlicerTerminologiesModuleLogic()
    terminology.load(made)
    return made


def test_the_shipped_files_are_made_from_the_codes():
    shipped = resource("Terminologies")
    assert sorted(path.name for path in shipped.iterdir()) == [terminology.REGION_FILE, terminology.TERMINOLOGY_FILE]
    for file, terms in (
        (terminology.TERMINOLOGY_FILE, terminology.finding_terms()),
        (terminology.REGION_FILE, terminology.region_terms()),
    ):
        assert json.loads((shipped / file).read_text()) == terms, f"write {file} anew: terminology.write()"


def test_writing_them_anew_gives_the_shipped_bytes(tmp_path):
    terminology.write(tmp_path)
    for file in (terminology.TERMINOLOGY_FILE, terminology.REGION_FILE):
        assert (tmp_path / file).read_bytes() == (resource("Terminologies") / file).read_bytes()


def test_every_level_has_the_keys_that_the_schema_knows():
    def check(terms, depth):
        name, known = LEVELS[depth]
        for term in terms[name]:
            below = LEVELS[depth + 1][0] if depth + 1 < len(LEVELS) else None
            assert CODE <= set(term) <= known | {below}
            assert len(term["CodeValue"]) <= 16 and len(term["CodeMeaning"]) <= 64
            if below in term:
                check(term, depth + 1)

    check(terminology.finding_terms()["SegmentationCodes"], 0)
    for region in terminology.region_terms()["AnatomicCodes"]["AnatomicRegion"]:
        assert CODE <= set(region) <= CODE | {"Modifier"}
        assert all(set(modifier) == CODE for modifier in region.get("Modifier", []))


def test_slicer_reads_both_files(logic):
    names = vtk.vtkStringArray()
    logic.GetLoadedTerminologyNames(names)
    regions = vtk.vtkStringArray()
    logic.GetLoadedRegionContextNames(regions)
    assert terminology.TERMINOLOGY in [names.GetValue(i) for i in range(names.GetNumberOfValues())]
    assert terminology.REGION_CONTEXT in [regions.GetValue(i) for i in range(regions.GetNumberOfValues())]


@pytest.mark.parametrize("finding", FINDINGS)
def test_slicer_finds_each_finding_by_its_name_with_its_colour(logic, finding):
    found = slicer.vtkSlicerTerminologyEntry()
    assert logic.FindTypeInTerminologyBy3dSlicerLabel(terminology.TERMINOLOGY, finding, found)
    coded = FINDING_CODES[finding]
    assert coded.code.same(found.GetTypeObject().GetCodeValue(), found.GetTypeObject().GetCodingSchemeDesignator())
    shown = found.GetTypeObject() if coded.verified else found.GetTypeModifierObject()
    assert shown.GetRecommendedDisplayRGBValue() == coded.colour
    assert shown.GetSlicerLabel() == finding


@pytest.mark.parametrize("finding", FINDINGS)
def test_an_entry_is_what_slicer_itself_writes(logic, finding):
    """Read by Slicer, completed from the loaded contexts and written again, nothing is missing and nothing changes."""
    for region in REGIONS:
        check_entry(logic, finding, region)


def check_entry(logic, finding, region):
    text = terminology.entry(finding, (region,))
    entry = slicer.vtkSlicerTerminologyEntry()
    assert logic.DeserializeTerminologyEntry(text, entry)
    assert logic.SerializeTerminologyEntry(entry) == text
    assert logic.UpdateEntryFromLoadedTerminologies(entry, [terminology.TERMINOLOGY], [terminology.REGION_CONTEXT])
    assert logic.SerializeTerminologyEntry(entry) == text
    # Completed from the files: only there are the colours and labels.
    shown = entry.GetTypeObject() if FINDING_CODES[finding].verified else entry.GetTypeModifierObject()
    assert shown.GetSlicerLabel() == finding
    side = region_codes(region).laterality
    assert (entry.GetRegionModifierObject().GetCodeValue() or None) == (None if side is None else side.value)


def test_no_two_findings_and_no_two_places_share_an_entry():
    places = [region for region in REGIONS if "apical" not in region]
    assert len({terminology.entry(finding, (place,)) for finding in FINDINGS for place in places}) == 7 * len(places)


@pytest.mark.parametrize("side", SIDES)
def test_the_apical_zone_is_said_as_the_upper_zone_in_which_it_lies(side):
    apical, upper = f"{side} apical zone lung", f"{side} upper zone lung"
    assert terminology.entry("opacity", (apical,)) == terminology.entry("opacity", (upper,))


@pytest.mark.parametrize(
    ("regions", "words"),
    [
        (("right lung", "left lung"), ("Lung", "Bilateral")),
        (("right lung base", "left lung base"), ("Lower zone of lung", "Bilateral")),
        (("right lung base", "right mid zone lung"), ("Lung", "Right")),
        (("right apical zone lung", "right upper zone lung"), ("Upper zone of lung", "Right")),
        (("right lung", "heart"), ("Chest", "")),
    ],
)
def test_several_regions_are_one_place(regions, words):
    region, side = terminology.entry("effusion", regions).split("~")[5:]
    assert (region.split("^")[2], side.split("^")[2]) == words


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_segment_gets_codes_and_colour_and_keeps_its_name(finding):
    segment = slicer.vtkSegment()
    segment.SetName("left effusion, as the user called it")
    terminology.apply(segment, finding, ("left lung base",))
    assert segment.GetName() == "left effusion, as the user called it"
    assert not segment.GetNameAutoGenerated() and not segment.GetColorAutoGenerated()
    assert [round(part * 255) for part in segment.GetColor()] == list(FINDING_CODES[finding].colour)
    assert terminology.finding_of(segment) == finding


def test_a_segment_of_someone_else_is_no_finding(logic):
    segment = slicer.vtkSegment()
    assert terminology.finding_of(segment) is None
    slicers = "Segmentation category and type - 3D Slicer General Anatomy list"
    tissue = "SCT^85756007^Tissue"
    segment.SetTerminology(f"{slicers}~{tissue}~{tissue}~^^~Anatomic codes - DICOM master list~^^~^^")
    assert terminology.finding_of(segment) is None
    wider = FINDING_CODES["pneumonia"]
    segment.SetTerminology(terminology.entry_of_codes(wider.category, wider.code))
    assert terminology.finding_of(segment) is None, "a disorder of the lung is not pneumonia"


def test_the_private_scheme_is_the_report_s():
    assert terminology.PRIVATE_SCHEME == sr.PRIVATE_SCHEME


def test_a_damaged_file_is_said(tmp_path):
    terminology.write(tmp_path)
    (tmp_path / terminology.REGION_FILE).write_text("{")
    quiet = vtk.vtkObject.GetGlobalWarningDisplay()
    vtk.vtkObject.GlobalWarningDisplayOff()
    try:
        with pytest.raises(CallError, match=r"RegionAndModifier-XFlow\.term\.json"):
            terminology.load(slicer.vtkSlicerTerminologiesModuleLogic(), tmp_path)
    finally:
        vtk.vtkObject.SetGlobalWarningDisplay(quiet)
