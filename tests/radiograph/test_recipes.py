"""The recipes that bundles name: MIMIC-CXR-JPG's, against the data set's own steps in pydicom and OpenCV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
from radiograph.dresses import dataset, written

from xflow_core.domain.errors import BundleError
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.radiograph.reading import read_radiograph
from xflow_core.radiograph.recipes import MIMIC_CXR_JPG, equalised, mimic_cxr_jpg, recipe_grey


def as_the_data_set(dataset: pydicom.Dataset) -> np.ndarray:
    """The data set's steps: stored pixels, shifted, divided, cut to 8 bits, inverted, equalised, JPEG 95."""
    pixels = dataset.pixel_array.astype(np.float64)
    pixels -= pixels.min()
    levels = (pixels / pixels.max() * 255).astype(np.uint8)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        levels = cv2.bitwise_not(levels)
    _, coded = cv2.imencode(".jpg", cv2.equalizeHist(levels), [cv2.IMWRITE_JPEG_QUALITY, 95])
    return cv2.imdecode(coded, cv2.IMREAD_GRAYSCALE)


def far(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other.astype(int)).max())


@pytest.fixture(scope="module")
def stored(rg1: Path) -> np.ndarray:
    """The 15-bit pixels of a real radiograph, a quarter of its side: uint16."""
    return np.ascontiguousarray(pydicom.dcmread(rg1).pixel_array[::4, ::4])


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("bits", [8, 10, 12, 15])
@pytest.mark.parametrize("rescale", [(1, 0), (0.25, -1024)])
def test_a_dicom_file_becomes_the_data_sets_jpeg_within_one_grey_level(
    stored: np.ndarray, photometric: str, bits: int, rescale: tuple[float, float]
) -> None:
    slope, intercept = rescale
    made = dataset(
        stored >> (15 - bits),
        BitsStored=bits,
        HighBit=bits - 1,
        PhotometricInterpretation=photometric,
        RescaleSlope=slope,
        RescaleIntercept=intercept,
    )
    grey = mimic_cxr_jpg(read_radiograph(written(made)))
    assert grey.dtype == np.uint8
    assert far(grey, as_the_data_set(made)) <= 1


def test_a_window_changes_nothing(stored: np.ndarray) -> None:
    plain = mimic_cxr_jpg(read_radiograph(written(dataset(stored))))
    windowed = written(dataset(stored, WindowCenter=9000, WindowWidth=700))
    assert np.array_equal(mimic_cxr_jpg(read_radiograph(windowed)), plain)


@pytest.mark.parametrize("case", ["ramp", "two levels", "dark and few bright", "constant", "noise"])
def test_equalisation_is_opencvs(case: str) -> None:
    random = np.random.default_rng(0)
    picture = {
        "ramp": np.tile(np.arange(20, 220, dtype=np.uint8), (70, 1)),
        "two levels": np.where(random.random((64, 65)) < 0.9, 7, 250).astype(np.uint8),
        "dark and few bright": (255 * random.random((301, 203)) ** 6).astype(np.uint8),
        "constant": np.full((64, 64), 9, np.uint8),
        "noise": random.integers(0, 256, (333, 127), np.uint8),
    }[case]
    assert np.array_equal(equalised(picture), cv2.equalizeHist(picture))


def test_a_picture_that_went_this_way_before_hardly_changes(stored: np.ndarray) -> None:
    once = mimic_cxr_jpg(read_radiograph(written(dataset(stored))))
    _, coded = cv2.imencode(".png", once)
    twice = mimic_cxr_jpg(read_radiograph(coded.tobytes()))
    assert np.abs(once.astype(int) - twice.astype(int)).mean() < 2


def test_a_constant_picture_gives_no_nan(rg1: Path) -> None:
    radiograph = read_radiograph(rg1)
    flat = replace(radiograph, values=np.full_like(radiograph.values[:64, :64], 5))
    assert mimic_cxr_jpg(flat).max() == 0


def test_a_recipe_runs_once_per_image_and_an_unknown_one_is_named(rg1: Path) -> None:
    image = EncodedRadiograph(read_radiograph(rg1))
    assert recipe_grey(image, MIMIC_CXR_JPG) is recipe_grey(image, MIMIC_CXR_JPG)
    assert image.passes == 1
    with pytest.raises(BundleError, match="nonesuch"):
        recipe_grey(image, "nonesuch")
