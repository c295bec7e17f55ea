"""Spacing with its kind, never invented (cases C11, C12, C13, C15)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from radiograph.dresses import dataset, itk, pillow, written

from xflow_core.domain.spacing import dicom_spacing
from xflow_core.domain.trace import ImageRecord
from xflow_core.radiograph.reading import read_radiograph


def record(picture: np.ndarray, **attributes: Any) -> ImageRecord:
    return read_radiograph(written(dataset(picture, **attributes))).record


def test_c11_imager_pixel_spacing_alone_is_the_detectors(picture):
    found = record(picture, ImagerPixelSpacing=[0.4, 0.4])
    assert (found.spacing_mm, found.spacing_kind) == ((0.4, 0.4), "detector")


def test_c12_pixel_spacing_equal_to_the_imagers_is_the_detectors(picture):
    found = record(picture, ImagerPixelSpacing=[0.4, 0.4], PixelSpacing=[0.4, 0.4])
    assert (found.spacing_mm, found.spacing_kind) == ((0.4, 0.4), "detector")


def test_pixel_spacing_other_than_the_imagers_is_the_patients(picture):
    found = record(picture, ImagerPixelSpacing=[0.4, 0.4], PixelSpacing=[0.35, 0.35])
    assert (found.spacing_mm, found.spacing_kind) == ((0.35, 0.35), "patient")


@pytest.mark.parametrize("imager", [None, [0.4, 0.4]])
def test_a_calibration_type_makes_pixel_spacing_the_patients(picture, imager):
    found = record(picture, ImagerPixelSpacing=imager, PixelSpacing=[0.4, 0.4], PixelSpacingCalibrationType="GEOMETRY")
    assert (found.spacing_mm, found.spacing_kind) == ((0.4, 0.4), "patient")


def test_pixel_spacing_alone_does_not_say_its_plane_and_is_taken_for_the_weaker_claim(picture):
    found = record(picture, PixelSpacing=[0.4, 0.4])
    assert (found.spacing_mm, found.spacing_kind) == ((0.4, 0.4), "detector")
    assert any("in which plane" in warning for warning in found.warnings)


def test_a_digitised_film_has_its_films_spacing(picture):
    found = record(picture, NominalScannedPixelSpacing=[0.4, 0.4])
    assert (found.spacing_mm, found.spacing_kind) == ((0.4, 0.4), "detector")


def test_c13_no_spacing_is_none_and_never_one(picture):
    found = record(picture)
    assert (found.spacing_mm, found.spacing_kind) == (None, "none")
    assert found.area_mm2(1000) is None


@pytest.mark.parametrize("stated", [[0, 0], [0.4, 0], [-0.4, 0.4], [0.4], [3.0, 3.0], [1e-4, 1e-4]])
def test_what_cannot_be_a_spacing_is_ignored_with_a_warning(picture, stated):
    found = record(picture, PixelSpacing=stated)
    assert (found.spacing_mm, found.spacing_kind) == (None, "none")
    assert any("Pixel Spacing" in warning for warning in found.warnings)


def test_zero_pixel_spacing_leaves_the_imagers(picture):
    found = record(picture, PixelSpacing=[0, 0], ImagerPixelSpacing=[0.4, 0.4])
    assert (found.spacing_mm, found.spacing_kind) == ((0.4, 0.4), "detector")


def test_the_demo_radiograph_has_none(demo):
    assert (demo.record.spacing_mm, demo.record.spacing_kind) == (None, "none")


def test_c15_pixels_that_are_not_square_keep_row_and_column_apart(picture):
    found = record(picture, ImagerPixelSpacing=[0.3, 0.5])
    assert found.spacing_mm == (0.3, 0.5)
    assert found.area_mm2(100) == pytest.approx(15.0)


@pytest.mark.parametrize("suffix", [".nii", ".nrrd", ".mha"])
def test_volumes_give_row_and_column_in_this_order_and_one_means_none(picture, suffix):
    found = read_radiograph(itk(picture, suffix, spacing=(0.5, 0.25))).record  # ITK's x, y
    assert found.spacing_mm == pytest.approx((0.25, 0.5))
    assert found.spacing_kind == "detector"
    assert any("in which plane" in warning for warning in found.warnings)
    assert read_radiograph(itk(picture, suffix)).record.spacing_kind == "none"


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "TIFF"])
def test_pictures_have_none_whatever_their_resolution_says(picture_8bit, fmt):
    found = read_radiograph(pillow(picture_8bit, fmt, dpi=(254, 254))).record
    assert (found.spacing_mm, found.spacing_kind) == (None, "none")


def test_the_packs_files(pack):
    kinds = {
        "derived/m1_12bit_rle.dcm": "detector",
        "derived/m2_12bit.dcm": "patient",
        "derived/m2_nospacing_implicit.dcm": "none",
        "real/siim_jpeg_baseline.dcm": "detector",
        "real/RG1_J2KI.dcm": "none",
    }
    assert {name: read_radiograph(pack / "dicom" / name).record.spacing_kind for name in kinds} == kinds


_numbers = st.one_of(st.none(), st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=3))


@given(_numbers, _numbers, _numbers, st.sampled_from([None, "GEOMETRY", "FIDUCIAL"]))
def test_whatever_the_header_holds_a_spacing_is_stated_or_there_is_none(pixel, imager, nominal, calibration):
    spacing, kind, _ = dicom_spacing((2000, 2000), pixel=pixel, imager=imager, nominal=nominal, calibration=calibration)
    assert (spacing is None) == (kind == "none")
    if spacing is not None:
        assert list(spacing) in (pixel, imager, nominal)
        assert min(spacing) > 0
