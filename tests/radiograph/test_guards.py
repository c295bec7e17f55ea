"""What is plainly not one frontal chest radiograph is refused with its reason; what is doubtful is warned of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from radiograph.dresses import dataset, itk, jpeg_baseline, pillow, written

from xflow_core.domain.errors import RadiographRefused
from xflow_core.radiograph.guards import inspect_header_and_pixels
from xflow_core.radiograph.reading import read_radiograph


def judged(picture: np.ndarray, **attributes: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return inspect_header_and_pixels(read_radiograph(written(dataset(picture, **attributes))))


def coded(meaning: str) -> Sequence:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = "1", "99TEST", meaning
    return Sequence([item])


# --- the header -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modality", ["CR", "DX", "DR", "RG", "RF"])
@pytest.mark.parametrize("view", ["PA", "AP"])
def test_a_frontal_chest_radiograph_passes_without_a_word(picture, modality, view):
    assert judged(picture, Modality=modality, ViewPosition=view) == ((), ())


@pytest.mark.parametrize("modality", ["CT", "MR", "US", "MG", "PT", "NM", "XA", "SEG", "PX"])
def test_other_modalities_are_refused_by_name(picture, modality):
    refusals, _ = judged(picture, Modality=modality)
    assert len(refusals) == 1
    assert modality in refusals[0]


def test_a_ct_without_a_modality_is_known_by_its_class(picture):
    refusals, _ = judged(picture, Modality=None, SOPClassUID="1.2.840.10008.5.1.4.1.1.2")
    assert "image class" in refusals[0]


def test_a_secondary_capture_that_says_nothing_passes_with_warnings(picture):
    refusals, warnings = judged(
        picture, Modality="OT", SOPClassUID="1.2.840.10008.5.1.4.1.1.7", BodyPartExamined=None, ViewPosition=None
    )
    assert refusals == ()
    assert len(warnings) == 3


@pytest.mark.parametrize("part", ["CHEST", "THORAX", "Thorax", "LUNG", "CHEST_TO_ABDOMEN", "RIBS", "TORAX"])
def test_names_of_the_chest_pass(picture, part):
    assert judged(picture, BodyPartExamined=part) == ((), ())


@pytest.mark.parametrize(
    "part",
    ["EXTREMITY", "LOWER LEG", "LEG", "ABDOMEN", "PELVIS", "SKULL", "CSPINE", "TSPINE", "LSPINE", "SHOULDER", "HAND",
     "KNEE", "HEAD", "BREAST"],
)  # fmt: skip
def test_other_parts_of_the_body_are_refused_by_name(picture, part):
    refusals, _ = judged(picture, BodyPartExamined=part)
    assert len(refusals) == 1
    assert part in refusals[0]


def test_a_coded_region_counts_where_the_body_part_is_missing(picture):
    refusals, _ = judged(picture, BodyPartExamined=None, AnatomicRegionSequence=coded("Knee"))
    assert "KNEE" in refusals[0]


def test_an_unknown_body_part_is_a_warning(picture):
    refusals, warnings = judged(picture, BodyPartExamined="BORSTKAS")
    assert refusals == ()
    assert "body part" in warnings[0]
    assert "BORSTKAS" not in warnings[0], "what a station lets people type is not repeated: it may be a name"


@pytest.mark.parametrize("view", ["LL", "RL", "LATERAL", "LAT", "L LAT"])
def test_lateral_views_are_refused(picture, view):
    refusals, _ = judged(picture, ViewPosition=view)
    assert "lateral" in refusals[0]


@pytest.mark.parametrize("view", ["LAO", "RPO", "LLO", "OBLIQUE"])
def test_oblique_views_are_refused(picture, view):
    refusals, _ = judged(picture, ViewPosition=view)
    assert "oblique" in refusals[0]


@pytest.mark.parametrize(
    ("meaning", "refused"), [("left lateral", True), ("postero-anterior", False), ("antero-posterior", False)]
)
def test_a_coded_view_counts(picture, meaning, refused):
    refusals, warnings = judged(picture, ViewPosition=None, ViewCodeSequence=coded(meaning))
    assert bool(refusals) == refused
    assert refused or warnings == ()


def test_c20_a_lateral_labelled_pa_is_told_by_its_orientation(picture):
    refusals, _ = judged(picture, ViewPosition="PA", PatientOrientation=["A", "F"])
    assert "lateral" in refusals[0]


@pytest.mark.parametrize("orientation", [["L", "F"], ["LH", "FL"], ["LF", "F"]])
def test_the_frontal_orientation_is_silent(picture, orientation):
    assert judged(picture, PatientOrientation=orientation) == ((), ())


@pytest.mark.parametrize(
    ("orientation", "word"),
    [(["R", "F"], "mirrored"), (["L", "H"], "turned"), (["F", "R"], "turned"), (["H", "L"], "turned")],
)
def test_c24_a_mirrored_or_turned_picture_is_warned_of(picture, orientation, word):
    refusals, warnings = judged(picture, PatientOrientation=orientation)
    assert refusals == ()
    assert word in warnings[0]


@pytest.mark.parametrize("view", [None, "", "XYZ"])
def test_a_missing_or_unknown_view_is_a_warning(picture, view):
    refusals, warnings = judged(picture, ViewPosition=view)
    assert refusals == ()
    assert "view" in warnings[0]


@pytest.mark.parametrize("view", ["LLD", "LEFT LATERAL DECUBITUS"])
def test_decubitus_is_a_warning(picture, view):
    refusals, warnings = judged(picture, ViewPosition=None, ViewCodeSequence=coded(view))
    assert refusals == ()
    assert "decubitus" in warnings[0]


def test_raw_and_doubtful_pictures_carry_a_warning_from_the_reading(picture):
    raw = read_radiograph(written(dataset(picture, Modality="DX", PresentationIntentType="FOR PROCESSING")))
    assert any("FOR PROCESSING" in warning for warning in raw.record.warnings)
    doubtful = read_radiograph(written(dataset(picture, PixelIntensityRelationshipSign=1)))
    assert any("Pixel Intensity" in warning for warning in doubtful.record.warnings)
    for stored, photometric, sign in (
        (picture, "MONOCHROME2", -1),
        (picture.astype(np.int16) - 2000, "MONOCHROME1", 1),
    ):
        made = dataset(stored, PhotometricInterpretation=photometric, PixelIntensityRelationshipSign=sign)
        assert read_radiograph(written(made)).record.warnings == ()


def test_a_picture_without_a_header_passes_with_one_warning(picture_8bit):
    refusals, warnings = inspect_header_and_pixels(read_radiograph(pillow(picture_8bit, "PNG")))
    assert refusals == ()
    assert len(warnings) == 1


# --- refused at reading: no single grey image -----------------------------------------------------------------------


def test_several_frames_are_refused(picture):
    with pytest.raises(RadiographRefused, match="2 frames"):
        read_radiograph(written(dataset(picture, NumberOfFrames=2)))


def test_a_volume_of_several_slices_is_refused(picture):
    for suffix in (".nii.gz", ".nrrd", ".mha"):
        with pytest.raises(RadiographRefused, match="several slices"):
            read_radiograph(itk(np.stack([picture] * 3), suffix))


def test_a_tiff_of_several_pages_is_refused(picture_8bit):
    pages = [Image.fromarray(picture_8bit)]
    with pytest.raises(RadiographRefused, match="several pages"):
        read_radiograph(pillow(picture_8bit, "TIFF", save_all=True, append_images=pages))


@pytest.fixture(scope="module")
def photo(picture_8bit) -> np.ndarray:
    return np.stack([picture_8bit, picture_8bit[::-1], picture_8bit[:, ::-1]], axis=2)


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "TIFF"])
def test_a_colour_photo_is_refused(photo, fmt):
    with pytest.raises(RadiographRefused, match="colour"):
        read_radiograph(pillow(photo, fmt))


def test_a_colour_dicom_is_refused(photo):
    for data in (
        written(dataset(photo)),
        jpeg_baseline(photo),
        jpeg_baseline(photo, PhotometricInterpretation="YBR_FULL_422"),
    ):
        with pytest.raises(RadiographRefused, match="colour"):
            read_radiograph(data)


def test_cmyk_is_refused(picture_8bit):
    for fmt in ("JPEG", "TIFF"):
        with pytest.raises(RadiographRefused, match="CMYK"):
            read_radiograph(pillow(picture_8bit, fmt, "CMYK"))


@pytest.mark.parametrize("shape", [(1, 1), (63, 400), (400, 63)])
def test_tiny_pictures_are_refused(shape):
    with pytest.raises(RadiographRefused, match="at least 64"):
        read_radiograph(pillow(np.zeros(shape, np.uint8), "PNG"))


def test_a_small_coloured_marker_on_a_grey_picture_is_let_pass(picture_8bit):
    marked = np.stack([picture_8bit] * 3, axis=2)
    marked[5:15, 5:20] = (255, 220, 0)
    assert read_radiograph(pillow(marked, "PNG")).size == picture_8bit.shape


# --- the pixels -----------------------------------------------------------------------------------------------------


def refusals_of(picture: np.ndarray) -> tuple[str, ...]:
    return inspect_header_and_pixels(read_radiograph(pillow(picture, "PNG")))[0]


def test_blank_pictures_are_refused():
    rng = np.random.default_rng(1)
    assert "blank" in refusals_of(np.full((500, 400), 77, np.uint8))[0]
    assert refusals_of((1000 + rng.integers(0, 4, (500, 400))).astype(np.uint16))


def test_noise_is_refused():
    rng = np.random.default_rng(2)
    assert "noise" in refusals_of(rng.integers(0, 65535, (700, 600)).astype(np.uint16))[0]


def test_a_page_of_text_is_refused():
    page = Image.new("L", (800, 1000), 255)
    draw = ImageDraw.Draw(page)
    for line in range(60):
        draw.text((40, 16 * line), "The lungs are clear. No effusion. The heart is not enlarged. " * 2, fill=0)
    assert "no large shapes" in refusals_of(np.asarray(page))[0]


def test_flat_shapes_of_many_greys_are_refused():
    drawn = np.kron(np.arange(20 * 16).reshape(20, 16) * 7 % 251, np.ones((40, 40))).astype(np.uint8)
    assert "even grey" in refusals_of(drawn)[0]


def test_a_drawing_of_a_few_greys_is_refused():
    drawing = Image.new("L", (800, 800), 240)
    draw = ImageDraw.Draw(drawing)
    draw.ellipse((100, 150, 380, 700), fill=60)
    draw.ellipse((420, 150, 700, 700), fill=90)
    assert "few grey levels" in refusals_of(np.asarray(drawing))[0]


def test_a_strip_is_refused(picture_8bit):
    assert "shape" in refusals_of(picture_8bit[:, :100])[0]


def test_the_shape_is_that_of_the_chest_and_not_of_the_pixels(picture):
    squeezed = picture[:, ::3]
    assert judged(squeezed)[0] != ()
    assert judged(squeezed, ImagerPixelSpacing=[0.4, 1.2])[0] == ()


# --- the open pack --------------------------------------------------------------------------------------------------


def test_no_radiograph_of_the_pack_is_refused(pack):
    paths = sorted(pack.glob("*/images/*"))
    assert len(paths) > 800
    refused = {}
    for path in paths[::8]:
        reasons, _ = inspect_header_and_pixels(read_radiograph(path))
        if reasons:
            refused[path.name] = reasons
    assert refused == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("real/RG3_J2KR.dcm", "another part of the body (EXTREMITY)"),
        ("real/vlut_04.dcm", "test pattern"),
        ("real/mlut_18.dcm", "test pattern"),
        ("derived/study_lateral_m2_12bit.dcm", "lateral view (LL)"),
    ],
)
def test_the_packs_leg_patterns_and_lateral_are_refused(pack, name, reason):
    refusals, _ = inspect_header_and_pixels(read_radiograph(pack / "dicom" / name))
    assert reason in " ".join(refusals)


def test_the_packs_frontal_dicoms_pass(pack):
    others = {"RG3_J2KR.dcm", "vlut_04.dcm", "mlut_18.dcm", "study_lateral_m2_12bit.dcm"}
    frontal = [path for path in sorted((pack / "dicom").glob("*/*.dcm")) if path.name not in others]
    assert len(frontal) == 11
    for path in frontal:
        assert inspect_header_and_pixels(read_radiograph(path))[0] == (), path.name
