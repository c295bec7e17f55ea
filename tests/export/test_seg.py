"""seg.dcm: the masks as a DICOM Segmentation, held against highdicom, dcmqi and dciodvfy."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
import pytest
from export.dicom_headers import (
    BUNDLE,
    IN_SPACE,
    answer,
    blob,
    dcmqi,
    every_element,
    header,
    patch,
    source,
    validated,
    without_answer,
)

from xflow_core.domain.codes import FINDING_CODES
from xflow_core.domain.errors import CallError, ExportError
from xflow_core.domain.findings import FINDINGS
from xflow_core.domain.geometry import Point
from xflow_core.domain.trace import Click, ClickStep
from xflow_core.export.dicom_source import read_source, source_instance
from xflow_core.export.seg import GEOMETRIES, write_seg
from xflow_core.export.seg_reading import read_seg

SIZES = [(48, 32), (7, 13), (31, 1), (1, 9), (129, 257)]
CHESTS = (
    "derived/m1_12bit_rle.dcm",
    "derived/m2_12bit.dcm",
    "derived/m2_12bit_j2k_lossless.dcm",
    "derived/m2_12bit_jpeg_lossless_sv1.dcm",
    "derived/m2_12bit_narrow_window.dcm",
    "derived/m2_12bit_voilut_sequence.dcm",
    "derived/m2_nospacing_implicit.dcm",
    "derived/study_frontal_m2_12bit.dcm",
    "real/Fake_MONOHR1.dcm",
    "real/RG1_J2KI.dcm",
    "real/siim_jpeg_baseline.dcm",
)


def frames_of(path: Path) -> list[np.ndarray]:
    """The frames as highdicom reads them."""
    read = hd.seg.segread(path)
    pixels = read.pixel_array
    return list(pixels if pixels.ndim == 3 else pixels[None])


# The pixels.


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("size", SIZES)
def test_masks_come_back_bit_for_bit_overlaps_and_odd_sizes_included(size, geometry, tmp_path: Path) -> None:
    image = source(size)
    masks = [blob(size, seed) for seed in range(3)]
    traces = [answer(image, finding, mask) for finding, mask in zip(FINDINGS, masks, strict=False)]
    write_seg(tmp_path / "seg.dcm", traces, image, geometry=geometry)
    ours = read_seg(tmp_path / "seg.dcm", image)
    for segment, frame, mask in zip(ours.segments, frames_of(tmp_path / "seg.dcm"), masks, strict=True):
        assert np.array_equal(segment.mask, mask)
        assert np.array_equal(frame.astype(bool), mask)


def test_a_mask_of_a_single_pixel_survives(tmp_path: Path) -> None:
    image = source((5, 3))
    mask = np.zeros((5, 3), bool)
    mask[4, 0] = True
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", mask)], image)
    assert np.array_equal(read_seg(tmp_path / "seg.dcm", image).segments[0].mask, mask)


def test_an_overlap_with_a_second_finding_takes_no_pixel_from_the_first(tmp_path: Path) -> None:
    """Case C29."""
    image = source()
    first, second = blob(image.size, 1), np.ones(image.size, bool)
    traces = [answer(image, "consolidation", first), answer(image, "pneumonia", second)]
    write_seg(tmp_path / "seg.dcm", traces, image)
    assert pydicom.dcmread(tmp_path / "seg.dcm").SegmentsOverlap == "YES"
    assert read_seg(tmp_path / "seg.dcm", image).segments[0].mask.sum() == first.sum()


# Where it lies.


def test_without_geometry_nothing_is_invented(tmp_path: Path) -> None:
    """Cases C01, C02 and C31."""
    image = source(ImagerPixelSpacing=[2.0, 1.0], PixelSpacing=[2.0, 1.0])
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image, geometry="none")
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    assert not {
        "FrameOfReferenceUID",
        "ImagePositionPatient",
        "ImageOrientationPatient",
        "PlanePositionSequence",
        "PlaneOrientationSequence",
        "PixelMeasuresSequence",
        "PixelSpacing",
    } & set(every_element(made))
    assert made.PatientOrientation == ["L", "F"]
    assert "synthetic" not in made.SeriesDescription
    references = made.PerFrameFunctionalGroupsSequence[0].DerivationImageSequence[0].SourceImageSequence
    assert [item.ReferencedSOPInstanceUID for item in references] == [image.sop_instance_uid]


def test_a_synthetic_geometry_says_so_and_refers_to_the_real_source(tmp_path: Path) -> None:
    image = source(ImagerPixelSpacing=[2.0, 1.0])
    trace = answer(image, "effusion", blob(image.size, 1))
    written = write_seg(tmp_path / "seg.dcm", [trace], image)
    assert written is not None and written.warnings == ()
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    shared, frame = made.SharedFunctionalGroupsSequence[0], made.PerFrameFunctionalGroupsSequence[0]
    assert "synthetic geometry" in made.SeriesDescription
    assert made.FrameOfReferenceUID not in (image.study_uid, image.series_uid)
    assert shared.PixelMeasuresSequence[0].PixelSpacing == [2, 1]  # rows first
    assert shared.PlaneOrientationSequence[0].ImageOrientationPatient == [1, 0, 0, 0, 1, 0]
    assert frame.PlanePositionSequence[0].ImagePositionPatient == [0, 0, 0]
    assert frame.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID == image.sop_instance_uid
    again = write_seg(tmp_path / "again.dcm", [trace], image)
    assert again is not None
    assert pydicom.dcmread(tmp_path / "again.dcm").FrameOfReferenceUID != made.FrameOfReferenceUID


@pytest.mark.parametrize("spacing", [{}, {"PixelSpacing": [0, 0]}, {"ImagerPixelSpacing": [2.0, 0]}])
def test_without_a_usable_spacing_the_synthetic_one_is_1_mm_with_a_warning(spacing, tmp_path: Path) -> None:
    image = source(**spacing)
    written = write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image)
    assert written is not None
    assert "1 mm" in written.warnings[0]
    measures = pydicom.dcmread(tmp_path / "seg.dcm").SharedFunctionalGroupsSequence[0].PixelMeasuresSequence
    assert measures[0].PixelSpacing == [1, 1]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_source_with_a_geometry_of_its_own_keeps_it(geometry, tmp_path: Path) -> None:
    image = source(**IN_SPACE)
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image, geometry=geometry)
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    assert made.FrameOfReferenceUID == "2.25.1004"
    assert "synthetic" not in made.SeriesDescription
    frame = made.PerFrameFunctionalGroupsSequence[0]
    shared = made.SharedFunctionalGroupsSequence[0]
    assert frame.PlanePositionSequence[0].ImagePositionPatient == [10, -20, 30]
    assert shared.PlaneOrientationSequence[0].ImageOrientationPatient == [1, 0, 0, 0, 0, -1]
    assert validated(tmp_path / "seg.dcm") == []


@pytest.mark.parametrize("missing", ["ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"])
def test_half_a_geometry_is_none(missing, tmp_path: Path) -> None:
    image = source(**(IN_SPACE | {missing: None}))
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image, geometry="none")
    assert "FrameOfReferenceUID" not in pydicom.dcmread(tmp_path / "seg.dcm")


def test_the_source_is_left_as_it_was(tmp_path: Path) -> None:
    image = source()
    before = image.dataset.to_json()
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image)
    assert image.dataset.to_json() == before


def test_another_geometry_is_refused(tmp_path: Path) -> None:
    image = source()
    with pytest.raises(CallError, match="synthetic, none"):
        write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", None)], image, geometry="guess")


# What is a segment.


def test_only_what_is_present_makes_a_segment_and_nothing_is_empty(tmp_path: Path) -> None:
    """Cases C04, C05 and C06: several viewers hang on an empty segment or drop it."""
    image = source()
    traces = [
        answer(image, "edema", None),
        answer(image, "effusion", blob(image.size, 1)),
        without_answer(image, "pneumonia", "failed"),
        without_answer(image, "atelectasis", "unsupported"),
        answer(image, "cardiomegaly", blob(image.size, 2), ("heart",)),
    ]
    written = write_seg(tmp_path / "seg.dcm", traces, image)
    assert written is not None
    assert [(s.number, s.finding, s.region) for s in written.segments] == [
        (1, "effusion", "left lung"),
        (2, "cardiomegaly", "heart"),
    ]
    assert written.segment_of("cardiomegaly") == written.segments[1]
    assert written.segment_of("edema") is None
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    assert (made.SOPInstanceUID, made.SeriesInstanceUID) == (written.sop_instance_uid, written.series_uid)
    assert made.NumberOfFrames == 2
    read = read_seg(tmp_path / "seg.dcm", image)
    assert not any(segment.empty for segment in read.segments)
    assert [s.tracking_uid for s in read.segments] == [s.tracking_uid for s in written.segments]


@pytest.mark.parametrize("status", ["absent", "refused", "unsupported", "failed"])
def test_without_a_present_finding_there_is_no_file_and_an_older_one_goes(status, tmp_path: Path) -> None:
    image = source()
    path = tmp_path / "seg.dcm"
    write_seg(path, [answer(image, "effusion", blob(image.size, 1))], image)
    trace = answer(image, "effusion", None) if status == "absent" else without_answer(image, "effusion", status)
    assert write_seg(path, [trace], image) is None
    assert not path.exists()


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_segment_says_what_where_and_by_whom(finding, tmp_path: Path) -> None:
    image = source()
    places = ("heart",) if finding == "cardiomegaly" else ("right upper zone lung",)
    written = write_seg(tmp_path / "seg.dcm", [answer(image, finding, blob(image.size, 1), places)], image)
    assert written is not None
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    item = made.SegmentSequence[0]
    coded = FINDING_CODES[finding]
    assert item.SegmentLabel == f"{finding.capitalize()}, {places[0]}"
    assert item.SegmentedPropertyTypeCodeSequence[0].CodeValue == coded.code.value
    assert item.SegmentedPropertyCategoryCodeSequence[0].CodeValue == "49755003"
    region = item.AnatomicRegionSequence[0]
    if finding == "cardiomegaly":
        assert region.CodeMeaning == "Heart"
    else:
        assert region.CodeMeaning == "Lung"
        modifiers = [code.CodeMeaning for code in region.AnatomicRegionModifierSequence]
        assert modifiers == ["Right", "Upper zone of lung"]
    algorithm = item.SegmentationAlgorithmIdentificationSequence[0]
    assert (algorithm.AlgorithmName, algorithm.AlgorithmVersion) == ("XFlow compact", "0.1.0")
    assert BUNDLE.sha256 in algorithm.AlgorithmParameters
    assert algorithm.AlgorithmFamilyCodeSequence[0].CodeMeaning == "Artificial Intelligence"
    assert item.TrackingUID == written.segments[0].tracking_uid
    assert finding in item.TrackingID
    assert (made.Manufacturer, made.ManufacturerModelName, made.DeviceSerialNumber) == (
        "XFlow",
        "compact",
        BUNDLE.sha256,
    )
    (segment,) = read_seg(tmp_path / "seg.dcm", image).segments
    assert (segment.finding, segment.regions) == (finding, places)
    assert segment.colour is not None
    assert np.abs(np.subtract(segment.colour, coded.colour)).max() <= 2


def test_several_places_become_one_and_are_read_back_one_by_one(tmp_path: Path) -> None:
    image = source()
    places = ("right upper zone lung", "left lung base")
    write_seg(tmp_path / "seg.dcm", [answer(image, "opacity", blob(image.size, 1), places)], image)
    region = pydicom.dcmread(tmp_path / "seg.dcm").SegmentSequence[0].AnatomicRegionSequence
    assert len(region) == 1
    assert [code.CodeMeaning for code in region[0].AnatomicRegionModifierSequence] == [
        "Bilateral",
        "Upper zone of lung",
        "Lower zone of lung",
    ]
    assert read_seg(tmp_path / "seg.dcm", image).segments[0].regions == places


def test_every_place_at_once_still_fits_the_label(tmp_path: Path) -> None:
    from xflow_core.domain.findings import ZONES

    image = source()
    write_seg(tmp_path / "seg.dcm", [answer(image, "consolidation", blob(image.size, 1), ZONES)], image)
    assert len(pydicom.dcmread(tmp_path / "seg.dcm").SegmentSequence[0].SegmentLabel) <= 64
    assert read_seg(tmp_path / "seg.dcm", image).segments[0].regions == ZONES
    assert validated(tmp_path / "seg.dcm") == []


@pytest.mark.parametrize("reviewed", [False, True])
def test_the_review_state_and_the_notice_stand_in_the_object(reviewed, tmp_path: Path) -> None:
    image = source()
    trace = answer(image, "effusion", blob(image.size, 1))
    write_seg(tmp_path / "seg.dcm", [trace], image, reviewed=reviewed)
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    assert made.ContentDescription.startswith("AI result, reviewed" if reviewed else "AI result, not reviewed")
    assert "not for clinical use" in made.ContentDescription
    assert "not for clinical use" in made.SeriesDescription
    (segment,) = read_seg(tmp_path / "seg.dcm", image).segments
    assert segment.review == ("reviewed" if reviewed else "not reviewed")


def test_what_makes_a_side_doubtful_travels_with_the_segment(tmp_path: Path) -> None:
    image = source(PatientOrientation=["R", "F"])
    trace = answer(image, "effusion", blob(image.size, 1))
    warned = r"Patient Orientation (R\F) says that the picture is mirrored: left and right may be exchanged."
    trace = replace(trace, image=replace(trace.image, warnings=(warned,)))
    write_seg(tmp_path / "seg.dcm", [trace], image)
    assert pydicom.dcmread(tmp_path / "seg.dcm").SegmentSequence[0].SegmentDescription.endswith(warned)
    assert validated(tmp_path / "seg.dcm") == []


def test_a_hand_in_the_result_makes_it_semiautomatic(tmp_path: Path) -> None:
    image = source()
    click = ClickStep(component=0, turn=1, click=Click("positive", Point(0.5, 0.5)), origin="user")
    mask = blob(image.size, 1)
    traces = [answer(image, "effusion", mask, steps=[click]), answer(image, "edema", mask)]
    write_seg(tmp_path / "seg.dcm", traces, image)
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    assert [item.SegmentAlgorithmType for item in made.SegmentSequence] == ["SEMIAUTOMATIC", "AUTOMATIC"]
    said = ["Decided by the user: a click." in item.SegmentDescription for item in made.SegmentSequence]
    assert said == [True, False]


def test_traces_of_another_image_are_refused_with_both_uids(tmp_path: Path) -> None:
    image = source()
    mask = blob(image.size, 1)
    with pytest.raises(ExportError, match=r"2\.25\.9.*2\.25\.1001"):
        write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", mask, uid="2.25.9")], image)
    with pytest.raises(ExportError, match="without a SOP Instance UID"):
        write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", mask, uid=None)], image)
    with pytest.raises(ExportError, match="32 x 48 pixels, and its source has 32 x 49"):
        write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", mask)], source((49, 32)))
    with pytest.raises(ExportError, match="at least one"):
        write_seg(tmp_path / "seg.dcm", [], image)
    assert list(tmp_path.iterdir()) == []


# Awkward sources.

JAPANESE = {
    "SpecificCharacterSet": ["", "ISO 2022 IR 87"],
    "PatientName": "Yamada^Tarou=山田^太郎=やまだ^たろう",
    "StudyDescription": "胸部単純撮影",
}


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        (JAPANESE, "山田"),
        (JAPANESE | {"SpecificCharacterSet": ["ISO 2022 IR 13", "ISO 2022 IR 87"]}, "山田"),
        (JAPANESE | {"SpecificCharacterSet": "ISO_IR 192"}, "山田"),
        (JAPANESE | {"SpecificCharacterSet": "ISO IR 192"}, "山田"),
        ({"SpecificCharacterSet": "ISO_IR 100", "PatientName": "Müller^Jörg"}, "Müller"),
        ({"SpecificCharacterSet": "ISO_IR 144", "PatientName": "Иванов^Иван"}, "Иванов"),
        ({"SpecificCharacterSet": "GB18030", "PatientName": "Wang^XiaoDong=王^小东"}, "王"),
        ({"SpecificCharacterSet": ["", "ISO 2022 IR 149"], "PatientName": "Hong^Gildong=洪^吉洞=홍^길동"}, "홍"),
        ({"SpecificCharacterSet": None, "PatientName": "Doe"}, "Doe"),
        ({"SpecificCharacterSet": "", "PatientName": ""}, ""),
    ],
)
def test_names_survive_in_any_character_set(attributes, shown, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = header(**attributes)
        made.ensure_file_meta()
        made.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
        made.save_as(tmp_path / "source.dcm", enforce_file_format=True)
        stated = str(pydicom.dcmread(tmp_path / "source.dcm").PatientName)
    image = read_source(tmp_path / "source.dcm")
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image)
    read = pydicom.dcmread(tmp_path / "seg.dcm")
    assert str(read.PatientName) == stated
    assert shown in str(read.PatientName)
    assert read.get("StudyDescription", "") == attributes.get("StudyDescription", "")


def test_letters_without_a_character_set_keep_their_bytes(tmp_path: Path) -> None:
    """Half-width kana without Specific Character Set, as older Japanese stations send them."""
    name = b"\xd4\xcf\xc0\xde^\xc0\xdb\xb3"
    made = header()
    tag = pydicom.tag.Tag("PatientName")
    made[tag] = pydicom.dataelem.RawDataElement(tag, "PN", len(name), name, 0, False, True)
    image = source_instance(made)
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image)
    assert name in (tmp_path / "seg.dcm").read_bytes()


AWKWARD = {
    "nothing but the UIDs": dict.fromkeys(
        (
            *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyDate"),
            *("StudyTime", "StudyID", "ReferringPhysicianName", "PatientOrientation", "BodyPartExamined", "Modality"),
        )
    ),
    "all of type 2 empty": dict.fromkeys(
        ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"), ""
    ),
    "a sex in small letters": {"PatientSex": "f"},
    "an age without its unit": {"PatientAge": "62"},
    "dates of the last century": {"StudyDate": "1998.02.31", "PatientBirthDate": "19500231", "StudyTime": "10:11:12"},
    "a lossy source": {"LossyImageCompression": "01", "LossyImageCompressionRatio": "10"},
    "more digits than allowed": {"ImagerPixelSpacing": [1.43000006675720215, 1 / 0.7]},
    "zero spacing": {"PixelSpacing": [0, 0]},
    "dark is dense": {"PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "INVERSE"},
    "one frame, stated": {"NumberOfFrames": 1},
    "no character set that exists": {"SpecificCharacterSet": "LATIN-1"},
    "a place without directions": IN_SPACE | {"ImageOrientationPatient": [0, 0, 0, 0, 0, 0]},
    "words for an orientation": {"PatientOrientation": ["LEFT", "FOOT"]},
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("attributes", AWKWARD.values(), ids=list(AWKWARD))
def test_an_awkward_source_makes_a_valid_segmentation(attributes, geometry, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = source_instance(header(**attributes))
    mask = blob(image.size, 1)
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", mask)], image, geometry=geometry)
    assert np.array_equal(read_seg(tmp_path / "seg.dcm", image).segments[0].mask, mask)
    assert validated(tmp_path / "seg.dcm") == []


def test_a_name_longer_than_the_standard_allows_is_kept_whole(tmp_path: Path) -> None:
    name = "Wolfeschlegelsteinhausenbergerdorff^" + "Hubert " * 12 + "Blaine"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = source_instance(header(PatientName=name, PatientID="9" * 80))
        write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image)
        made = pydicom.dcmread(tmp_path / "seg.dcm")
        assert (str(made.PatientName), made.PatientID) == (name, "9" * 80)


def test_the_sources_equipment_contributed_and_ours_made_it(tmp_path: Path) -> None:
    image = source(Manufacturer="Acme", ManufacturerModelName="Bucky 9", DeviceSerialNumber="17", StationName="R1")
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image)
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    assert made.Manufacturer == "XFlow"
    contributed = made.ContributingEquipmentSequence[0]
    assert (contributed.Manufacturer, contributed.ManufacturerModelName) == ("Acme", "Bucky 9")


def test_writing_says_nothing_of_the_patient(tmp_path: Path, capfd, caplog) -> None:
    image = source(PatientName="Bono")  # highdicom warns of a name without a caret, and quotes it
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(image.size, 1))], image)
    assert said == []
    assert caplog.text == ""
    assert "Bono" not in "".join(capfd.readouterr())
    assert pydicom.dcmread(tmp_path / "seg.dcm").PatientName == "Bono"


# Other people's readers.


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", CHESTS)
def test_dciodvfy_finds_no_error_for_any_kind_of_source(name, geometry, pack: Path, tmp_path: Path) -> None:
    image = read_source(pack / "dicom" / name)
    first, second = patch(image.size, 1), patch(image.size, 2)
    traces = [answer(image, "effusion", first), answer(image, "cardiomegaly", second, ("heart",))]
    write_seg(tmp_path / "seg.dcm", traces, image, geometry=geometry)
    assert validated(tmp_path / "seg.dcm") == []
    read = read_seg(tmp_path / "seg.dcm", image)
    assert all(np.array_equal(s.mask, mask) for s, mask in zip(read.segments, (first, second), strict=True))


@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((48, 32), {}),
        ((31, 17), {"ImagerPixelSpacing": [1.5, 2.5]}),
        ((33, 65), {"ImagerPixelSpacing": [3.0, 1.5], "PhotometricInterpretation": "MONOCHROME1"}),
        ((20, 30), IN_SPACE),
        ((20, 30), IN_SPACE | {"ImageOrientationPatient": [-1.0, 0.0, 0.0, 0.0, 0.0, -1.0]}),
        ((20, 30), IN_SPACE | {"ImageOrientationPatient": [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]}),
    ],
)
def test_dcmqi_reads_the_synthetic_geometry_with_identical_pixels(size, attributes, tmp_path: Path) -> None:
    """Cases C11 (Imager Pixel Spacing alone) and C15 (pixels that are not square), and mirrored and turned planes."""
    import SimpleITK as sitk

    tool = dcmqi("segimage2itkimage")
    image = source(size, **attributes)
    masks = [blob(size, 1), blob(size, 2)]
    traces = [answer(image, finding, mask) for finding, mask in zip(("effusion", "edema"), masks, strict=True)]
    write_seg(tmp_path / "seg.dcm", traces, image)
    (tmp_path / "out").mkdir()
    call = [tool, "--inputDICOM", tmp_path / "seg.dcm", "--outputDirectory", tmp_path / "out", "-t", "nrrd"]
    subprocess.run([str(part) for part in call], check=True, capture_output=True)
    for number, mask in enumerate(masks, start=1):
        read = sitk.ReadImage(str(tmp_path / "out" / f"{number}.nrrd"))
        assert np.array_equal(sitk.GetArrayFromImage(read)[0] > 0, mask)
        if image.spacing_mm is not None and not image.frame_of_reference:
            assert read.GetSpacing()[1::-1] == pytest.approx(image.spacing_mm)
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    labels = [attributes["SegmentLabel"] for group in meta["segmentAttributes"] for attributes in group]
    assert labels == ["Effusion, left lung", "Edema, left lung"]


# Whole or not at all.


def test_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    image = source()
    path = tmp_path / "seg.dcm"
    write_seg(path, [answer(image, "effusion", blob(image.size, 1))], image)
    before = path.read_bytes()
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv[2])\n"
        "from export.dicom_headers import *\nfrom xflow_core.export.seg import write_seg\n"
        "from xflow_core.domain.errors import CallError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\nimage = source()\n"
        "try: write_seg(sys.argv[1], [answer(image, 'edema', blob(image.size, 2))], image)\n"
        "except CallError as problem: print(problem)"
    )
    tests = Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", code, path, tests], capture_output=True, text=True, check=False)
    assert "cannot be written: File too large" in ran.stdout, ran.stderr
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["seg.dcm"]
