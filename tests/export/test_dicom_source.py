"""The source of DICOM results: real headers and those that lack what the standard wants."""

from __future__ import annotations

import warnings
from pathlib import Path

import pydicom
import pytest
from export.dicom_headers import IN_SPACE, PATIENT, header, source
from pydicom.dataset import Dataset
from pydicom.uid import UID

from xflow_core.domain.errors import ExportError
from xflow_core.export.dicom_source import read_source, source_instance

TYPE_2 = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID"),
    *("StudyDate", "StudyTime", "ReferringPhysicianName"),
)


def quietly(**attributes: object) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return header(**attributes)


def test_the_header_of_a_real_radiograph(rg1: Path) -> None:
    image = read_source(rg1)
    assert image.size == (1955, 1841)
    assert image.sop_instance_uid == pydicom.dcmread(rg1, stop_before_pixels=True).SOPInstanceUID
    assert UID(image.sop_class_uid).name == "Computed Radiography Image Storage"
    assert (image.frame_of_reference, image.spacing_mm, image.spacing_kind) == (None, None, "none")
    assert image.dataset.PatientName == "CompressedSamples^RG1"
    assert not {"PixelData", "IconImageSequence"} & {element.keyword for element in image.dataset}
    assert not any(element.tag.is_private for element in image.dataset)
    from_bytes = read_source(rg1.read_bytes())
    assert from_bytes.dataset.to_json() == image.dataset.to_json()


def test_what_is_missing_of_type_2_is_added_empty() -> None:
    image = source_instance(header(**dict.fromkeys(TYPE_2)))
    assert all(keyword in image.dataset and image.dataset[keyword].is_empty for keyword in TYPE_2)


def test_the_callers_header_is_left_as_it_was() -> None:
    made = header(PatientSex=None, PixelData=bytes(3072), PatientComments="a comment")
    before = made.to_json()
    source_instance(made)
    assert made.to_json() == before


@pytest.mark.parametrize(
    ("attributes", "spacing", "kind"),
    [
        ({"ImagerPixelSpacing": [2.0, 1.5]}, (2.0, 1.5), "detector"),
        ({"PixelSpacing": [2.0, 1.5], "PixelSpacingCalibrationType": "GEOMETRY"}, (2.0, 1.5), "patient"),
        ({"PixelSpacing": [0, 0]}, None, "none"),
        ({"PixelSpacing": [2.0, -1.0]}, None, "none"),
        ({"PixelSpacing": None, "ImagerPixelSpacing": []}, None, "none"),
        ({}, None, "none"),
    ],
)
def test_the_spacing_is_that_of_the_trace(attributes, spacing, kind) -> None:
    from xflow_core.domain.spacing import dicom_spacing

    image = source(**attributes)
    assert (image.spacing_mm, image.spacing_kind) == (spacing, kind)
    read = dicom_spacing(
        image.size,
        pixel=attributes.get("PixelSpacing"),
        imager=attributes.get("ImagerPixelSpacing"),
        nominal=None,
        calibration=attributes.get("PixelSpacingCalibrationType"),
    )
    assert read[:2] == (spacing, kind)


def test_a_spacing_of_more_digits_than_dicom_allows_is_a_spacing() -> None:
    value = b"1.43000006675720215\\1.43000006675720215 "
    made = header()
    tag = pydicom.tag.Tag("ImagerPixelSpacing")
    made[tag] = pydicom.dataelem.RawDataElement(tag, "DS", len(value), value, 0, False, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = source_instance(made)
    assert image.spacing_mm == pytest.approx((1.43000006675720215, 1.43000006675720215))
    assert all(len(str(number)) <= 16 for number in image.dataset.ImagerPixelSpacing)


def test_a_frame_of_reference_counts_where_the_image_lies_in_it() -> None:
    assert source(**IN_SPACE).frame_of_reference == "2.25.1004"
    assert source(FrameOfReferenceUID="2.25.1004").frame_of_reference is None
    assert source(**(IN_SPACE | {"PixelSpacing": [0, 0]})).frame_of_reference is None


@pytest.mark.parametrize(
    ("orientation", "lies"),
    [
        ([-1, 0, 0, 0, 0, -1], True),
        ([1, 0, 0, 0, 0, 1], True),
        ([0.9998, 0.02, 0, -0.02, 0.9998, 0], True),
        ([0, 0, 0, 0, 0, 0], False),
        ([1, 0, 0, 1, 0, 0], False),
        ([2, 0, 0, 0, 2, 0], False),
    ],
)
def test_an_orientation_is_two_directions_at_a_right_angle(orientation, lies) -> None:
    image = source(**(IN_SPACE | {"ImageOrientationPatient": orientation}))
    assert (image.frame_of_reference is not None) == lies


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        (["L", "F"], ["L", "F"]),
        (["RA", "HLP"], ["RA", "HLP"]),
        ("L", None),
        (["L", "F", "H"], None),
        (["LEFT", "FOOT"], None),
    ],
)
def test_a_patient_orientation_names_two_directions_or_is_left_out(stated, kept) -> None:
    assert source(PatientOrientation=stated).dataset.get("PatientOrientation") == kept


def test_uids_with_leading_zeros_stay_as_the_pacs_knows_them() -> None:
    image = source_instance(quietly(StudyInstanceUID="1.02.3", SOPInstanceUID="1.2.003"))
    assert (image.study_uid, image.sop_instance_uid) == ("1.02.3", "1.2.003")


@pytest.mark.parametrize(
    ("keyword", "value", "kept"),
    [
        ("PatientSex", "M", "M"),
        ("PatientSex", "male", ""),
        ("PatientBirthDate", "19500231", ""),
        ("PatientBirthDate", "1950", ""),
        ("StudyDate", "20260102", "20260102"),
        ("StudyTime", "1011", "1011"),
        ("StudyTime", "101112.123456", "101112.123456"),
        ("StudyTime", "10:11:12", ""),
        ("StudyTime", "2561", ""),
        ("PatientID", "9" * 80, "9" * 80),
        ("AccessionNumber", "A" * 30, "A" * 30),
    ],
)
def test_a_value_that_is_none_of_its_type_is_left_empty_and_every_other_stays(keyword, value, kept) -> None:
    assert str(source_instance(quietly(**{keyword: value})).dataset[keyword].value) == kept


@pytest.mark.parametrize(
    ("keyword", "kind", "value"),
    [
        ("PatientAge", "AS", b"62"),
        ("PatientWeight", "DS", b"sixty "),
        ("DateOfLastCalibration", "DA", b"yesterday "),
        ("ImagerPixelSpacing", "DS", b"one\\two "),
    ],
)
def test_an_impossible_optional_value_is_left_out(keyword, kind, value) -> None:
    made = header()
    tag = pydicom.tag.Tag(pydicom.datadict.tag_for_keyword(keyword))
    made[tag] = pydicom.dataelem.RawDataElement(tag, kind, len(value), value, 0, False, True)
    image = source_instance(made)
    assert keyword not in image.dataset
    assert image.spacing_mm is None


@pytest.mark.parametrize(
    ("stated", "settled"),
    [
        (None, None),
        ("", None),
        ("ISO_IR 6", None),
        ("ISO_IR 100", "ISO_IR 100"),
        ("ISO IR 100", "ISO_IR 100"),
        ("ISO-IR 192", "ISO_IR 192"),
        ("GB18030", "GB18030"),
        (["", "ISO 2022 IR 87"], ["ISO 2022 IR 6", "ISO 2022 IR 87"]),
        (["ISO_IR 13", "ISO 2022 IR 87"], ["ISO 2022 IR 13", "ISO 2022 IR 87"]),
        (["ISO 2022 IR 100"], "ISO_IR 100"),
        (["", "ISO 2022 IR 149"], "ISO_IR 192"),
        ("LATIN-1", "ISO_IR 192"),
    ],
)
def test_the_character_set_is_spelled_as_the_standard_spells_it(stated, settled) -> None:
    assert source_instance(quietly(SpecificCharacterSet=stated)).dataset.get("SpecificCharacterSet") == settled


@pytest.mark.parametrize("keyword", ["SOPInstanceUID", "SOPClassUID", "StudyInstanceUID", "SeriesInstanceUID"])
@pytest.mark.parametrize("value", [None, "", "1.2.x"])
def test_without_its_uids_a_source_is_refused(keyword, value) -> None:
    with pytest.raises(ExportError, match=r"chest\.dcm has no .* \(00"):
        source_instance(quietly(**{keyword: value}), file="chest.dcm")


def test_several_frames_are_refused_with_the_reason() -> None:
    with pytest.raises(ExportError, match="holds 2 frames"):
        source(NumberOfFrames=2)
    assert source(NumberOfFrames=1).size == (48, 32)


@pytest.mark.parametrize("attributes", [{"Rows": None}, {"Columns": 0}])
def test_a_header_without_a_size_is_no_image(attributes) -> None:
    with pytest.raises(ExportError, match="not a DICOM image"):
        source_instance(header(**attributes))


def test_what_is_no_image_class_is_refused() -> None:
    with pytest.raises(ExportError, match="no DICOM image of a standard class"):
        source(SOPClassUID="1.2.840.10008.5.1.4.1.1.88.33")
    with pytest.raises(ExportError, match="no DICOM image of a standard class"):
        source(SOPClassUID="1.2.3.4")


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n" + bytes(200), b"text " * 100, bytes(1000)])
def test_what_is_no_dicom_file_is_refused_in_one_sentence(data, tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_bytes(data)
    for given in (tmp_path / "a.dcm", data):
        with pytest.raises(ExportError) as refused:
            read_source(given, name="a.dcm")
        assert "\n" not in str(refused.value)
        assert "a.dcm" in str(refused.value)


def test_a_refusal_names_no_patient() -> None:
    for attributes in ({"SOPInstanceUID": None}, {"NumberOfFrames": 3}, {"Rows": None}, {"SOPClassUID": "1.2.3"}):
        with pytest.raises(ExportError) as refused:
            source_instance(header(**attributes))
        assert not any(value in str(refused.value) for value in PATIENT.values())
