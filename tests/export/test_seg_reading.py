"""Reading a segmentation back: XFlow's own and other writers', and what is refused."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
import pytest
from export.dicom_headers import IN_SPACE, answer, blob, dcmqi, header, source
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.uid import ExplicitVRLittleEndian, RLELossless, generate_uid

from xflow_core.domain.codes import Code
from xflow_core.domain.errors import ExportError
from xflow_core.export.dicom_source import source_instance
from xflow_core.export.seg import write_seg
from xflow_core.export.seg_reading import read_seg

SIZE = (31, 17)


def foreign(
    path: Path,
    sources: list[Dataset],
    pixels: np.ndarray,
    kind: str,
    *,
    labels: tuple[str, ...] = ("Nodule",),
    codes_of: tuple[Any, ...] = (codes.SCT.Nodule,),
    **options: Any,
) -> Path:
    """A SEG as another program would write it: ``pixels`` is ``[frames, H, W]``, or with segments last."""
    descriptions = [
        hd.seg.SegmentDescription(number, label, codes.SCT.MorphologicallyAbnormalStructure, code, "MANUAL")
        for number, (label, code) in enumerate(zip(labels, codes_of, strict=True), start=1)
    ]
    made = hd.seg.Segmentation(
        sources,
        pixels,
        kind,
        descriptions,
        generate_uid(),
        1,
        generate_uid(),
        1,
        "Another",
        "Another",
        "1",
        "1",
        **options,
    )
    made.save_as(path)
    return path


@pytest.mark.parametrize("geometry", [{}, IN_SPACE], ids=["no geometry", "its own geometry"])
@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_other_writers_segmentations_are_read_in_every_type(kind, geometry, tmp_path: Path) -> None:
    made = header(SIZE, **(geometry | ({"SliceThickness": 1} if geometry else {})))
    mask = blob(SIZE, 1)
    pixels = mask.astype(np.float32)[None] if kind == "FRACTIONAL" else mask.astype(np.uint8)[None]
    path = foreign(tmp_path / "seg.dcm", [made], pixels, kind)
    (segment,) = read_seg(path, source_instance(made)).segments
    assert np.array_equal(segment.mask, mask)
    assert segment.mask.dtype == bool
    assert (segment.label, segment.code) == ("Nodule", Code("27925004", "SCT", "Nodule"))
    assert (segment.finding, segment.regions, segment.review) == (None, (), "unknown")


def test_of_a_fractional_segment_half_and_more_is_taken_with_a_warning(tmp_path: Path) -> None:
    made = header(SIZE)
    pixels = np.random.default_rng(0).random((1, *SIZE)).astype(np.float32)
    path = foreign(tmp_path / "seg.dcm", [made], pixels, "FRACTIONAL", max_fractional_value=200)
    read = read_seg(path, source_instance(made))
    assert np.array_equal(read.segments[0].mask, np.around(pixels[0] * 200) >= 100)
    assert any("half of the maximum" in warning for warning in read.warnings)


def test_a_label_map_of_several_findings_is_taken_apart(tmp_path: Path) -> None:
    made = header(SIZE)
    labels = np.random.default_rng(0).integers(0, 3, (1, *SIZE)).astype(np.uint8)
    path = foreign(
        tmp_path / "seg.dcm",
        [made],
        labels,
        "LABELMAP",
        labels=("Pleural effusion", "Something"),
        codes_of=(codes.SCT.PleuralEffusion, codes.SCT.Mass),
    )
    read = read_seg(path, source_instance(made)).segments
    assert [(segment.number, segment.finding) for segment in read] == [(1, "effusion"), (2, None)]
    assert all(np.array_equal(segment.mask, labels[0] == segment.number) for segment in read)


def test_compressed_frames_are_read(tmp_path: Path) -> None:
    made = header(SIZE)
    mask = blob(SIZE, 1)
    path = tmp_path / "seg.dcm"
    foreign(path, [made], mask.astype(np.uint8)[None], "LABELMAP")
    plain = pydicom.dcmread(path)
    plain.compress(RLELossless, encoding_plugin="pydicom", generate_instance_uid=False)
    plain.save_as(path)
    assert np.array_equal(read_seg(path, source_instance(made)).segments[0].mask, mask)


def test_what_slicers_exporter_writes_is_read(tmp_path: Path) -> None:
    """dcmqi's writer, which 3D Slicer calls, on a source that was given a geometry for it."""
    import SimpleITK as sitk

    tool = dcmqi("itkimage2segimage")
    place = {"FrameOfReferenceUID": "2.25.5", "ImagePositionPatient": [0, 0, 0], "PixelSpacing": [1.5, 2.5]}
    made = header(SIZE, **place, ImageOrientationPatient=[1, 0, 0, 0, 1, 0], SliceThickness=1, InstanceNumber=1)
    made.PixelData = bytes(2 * SIZE[0] * SIZE[1])
    made.ensure_file_meta()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    (tmp_path / "source").mkdir()
    made.save_as(tmp_path / "source" / "a.dcm", enforce_file_format=True)
    mask = blob(SIZE, 1)
    image = sitk.GetImageFromArray(mask.astype(np.uint8)[None])
    image.SetSpacing((2.5, 1.5, 1.0))
    sitk.WriteImage(image, str(tmp_path / "mask.nrrd"))
    code = {"CodingSchemeDesignator": "SCT", "CodeValue": "60046008", "CodeMeaning": "Pleural effusion"}
    category = {"CodingSchemeDesignator": "SCT", "CodeValue": "49755003", "CodeMeaning": "Abnormal structure"}
    segment = {
        "labelID": 1,
        "SegmentLabel": "Fluid",
        "SegmentAlgorithmType": "MANUAL",
        "SegmentedPropertyCategoryCodeSequence": category,
        "SegmentedPropertyTypeCodeSequence": code,
    }
    (tmp_path / "meta.json").write_text(
        json.dumps(
            {
                "ContentCreatorName": "Reader",
                "SeriesDescription": "Segmentation",
                "SeriesNumber": "300",
                "InstanceNumber": "1",
                "segmentAttributes": [[segment]],
                "ContentLabel": "SEG",
                "ContentDescription": "By hand",
                "ClinicalTrialSeriesID": "1",
                "ClinicalTrialTimePointID": "1",
            }
        )
    )
    call = [tool, "--inputDICOMDirectory", tmp_path / "source", "--inputImageList", tmp_path / "mask.nrrd"]
    call += ["--inputMetadata", tmp_path / "meta.json", "--outputDICOM", tmp_path / "seg.dcm"]
    subprocess.run([str(part) for part in call], check=True, capture_output=True)
    (read,) = read_seg(tmp_path / "seg.dcm", source_instance(made)).segments
    assert np.array_equal(read.mask, mask)
    assert (read.label, read.finding, read.review) == ("Fluid", "effusion", "unknown")


def test_a_file_of_two_images_gives_each_its_own_mask(tmp_path: Path) -> None:
    places = [IN_SPACE | {"ImagePositionPatient": [0.0, y, 0.0], "SOPInstanceUID": f"2.25.7{y}"} for y in (0, 5)]
    made = [header(SIZE, **place, SliceThickness=1) for place in places]
    masks = np.stack([blob(SIZE, 1), blob(SIZE, 2)])
    path = foreign(tmp_path / "seg.dcm", made, masks.astype(np.uint8), "BINARY")
    for one, mask in zip(made, masks, strict=True):
        read = read_seg(path, source_instance(one))
        assert np.array_equal(read.segments[0].mask, mask)
        assert any("masks of other images" in warning for warning in read.warnings)


# Empty segments.


def test_an_empty_segment_is_reported_as_one(tmp_path: Path) -> None:
    made = header(SIZE)
    pixels = np.stack([blob(SIZE, 1), np.zeros(SIZE, bool)], axis=-1)[None]
    path = foreign(
        tmp_path / "seg.dcm",
        [made],
        pixels,
        "BINARY",
        labels=("Nodule", "Mass"),
        codes_of=(codes.SCT.Nodule, codes.SCT.Mass),
        omit_empty_frames=False,
    )
    read = read_seg(path, source_instance(made))
    assert [segment.empty for segment in read.segments] == [False, True]
    assert not read.segments[1].mask.any()
    assert "Segment 2 (Mass) is empty." in read.warnings


def test_a_segment_without_a_frame_is_reported_as_empty(tmp_path: Path) -> None:
    image = source(SIZE)
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(SIZE, 1))], image)
    made = pydicom.dcmread(tmp_path / "seg.dcm")
    second = copy.deepcopy(made.SegmentSequence[0])
    second.SegmentNumber, second.SegmentLabel = 2, "Edema, left lung"
    made.SegmentSequence.append(second)
    made.save_as(tmp_path / "seg.dcm")
    read = read_seg(tmp_path / "seg.dcm", image)
    assert [segment.empty for segment in read.segments] == [False, True]


# Another image, and files that are none.


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    image = source(SIZE)
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(SIZE, 1))], image, geometry="none")
    return tmp_path / "seg.dcm"


def test_a_segmentation_of_another_image_is_refused_with_both_uids(ours: Path) -> None:
    with pytest.raises(ExportError, match=r"seg\.dcm is a segmentation of the image 2\.25\.1001, not of 2\.25\.42\."):
        read_seg(ours, source(SIZE, SOPInstanceUID="2.25.42"))


def test_a_segmentation_of_another_size_is_refused_with_both_sizes(ours: Path) -> None:
    with pytest.raises(ExportError, match=r"17 x 31 pixels, .* has 17 x 32"):
        read_seg(ours, source((32, 17)))


def test_a_segmentation_that_names_no_image_is_refused_unless_the_frame_of_reference_tells(tmp_path: Path) -> None:
    image = source(SIZE, **IN_SPACE)
    path = tmp_path / "seg.dcm"
    mask = blob(SIZE, 1)
    write_seg(path, [answer(image, "effusion", mask)], image)
    made = pydicom.dcmread(path)
    del made.ReferencedSeriesSequence, made.SourceImageSequence
    for frame in made.PerFrameFunctionalGroupsSequence:
        del frame.DerivationImageSequence
    made.save_as(path)
    read = read_seg(path, image)
    assert np.array_equal(read.segments[0].mask, mask)
    assert any("Frame of Reference" in warning for warning in read.warnings)
    with pytest.raises(ExportError, match="does not say which image"):
        read_seg(path, source(SIZE))


def test_a_mask_in_another_plane_is_refused(tmp_path: Path) -> None:
    image = source(SIZE, **IN_SPACE)
    write_seg(tmp_path / "seg.dcm", [answer(image, "effusion", blob(SIZE, 1))], image)
    turned = source(SIZE, **(IN_SPACE | {"ImageOrientationPatient": [-1, 0, 0, 0, 0, -1]}))
    with pytest.raises(ExportError, match="another plane"):
        read_seg(tmp_path / "seg.dcm", turned)


def broken(made: Dataset, how: str) -> None:
    if how == "truncated":
        made.PixelData = made.PixelData[:40]
    elif how == "no pixels":
        del made.PixelData
    elif how == "no frames":
        made.NumberOfFrames = 3
    elif how == "no segments":
        made.SegmentSequence = []
    elif how == "a frame without a segment":
        for group in (made.SharedFunctionalGroupsSequence[0], made.PerFrameFunctionalGroupsSequence[0]):
            group.pop("SegmentIdentificationSequence", None)
    elif how == "no size":
        del made.Rows
    else:
        made.SegmentationType = how


@pytest.mark.parametrize(
    "how",
    ["truncated", "no pixels", "no frames", "no segments", "a frame without a segment", "no size", "SOMETHING"],
)
def test_a_damaged_segmentation_is_refused_in_one_sentence(how, ours: Path) -> None:
    made = pydicom.dcmread(ours)
    broken(made, how)
    made.save_as(ours)
    with pytest.raises(ExportError) as refused:
        read_seg(ours, source(SIZE))
    assert str(refused.value).startswith("seg.dcm ")
    assert "\n" not in str(refused.value)


def test_what_is_no_segmentation_is_refused(tmp_path: Path, rg1: Path) -> None:
    (tmp_path / "a.dcm").write_bytes(b"no DICOM at all" * 20)
    with pytest.raises(ExportError, match="not a DICOM file"):
        read_seg(tmp_path / "a.dcm", source(SIZE))
    with pytest.raises(ExportError, match=r"no DICOM Segmentation \(its class is Computed Radiography"):
        read_seg(rg1, source(SIZE))
    with pytest.raises(ExportError, match="cannot be read: No such file"):
        read_seg(tmp_path / "none.dcm", source(SIZE))


def test_a_label_of_the_reader_does_not_hide_what_the_code_says(ours: Path) -> None:
    made = pydicom.dcmread(ours)
    made.SegmentSequence[0].SegmentLabel = "Segment_1"
    made.save_as(ours)
    (segment,) = read_seg(ours, source(SIZE)).segments
    assert (segment.label, segment.finding, segment.regions) == ("Segment_1", "effusion", ("left lung",))
