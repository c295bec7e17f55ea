"""What a viewer shows: modality LUT, then VOI, then presentation; checked by hand and against pydicom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.sequence import Sequence
from radiograph.dresses import BIG_ENDIAN, EXPLICIT, IMPLICIT, dataset, written

from xflow_core.domain.errors import RadiographError
from xflow_core.radiograph.display import apply_window, to_bytes
from xflow_core.radiograph.reading import Radiograph, engine_grey, read_radiograph

RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)
"""All 12-bit samples, in order: the sample is its own index."""


def shown(radiograph: Radiograph, *samples: int) -> list[int]:
    """What is displayed for these samples of the ramp."""
    return [int(radiograph.display.reshape(-1)[sample]) for sample in samples]


def read(made: Dataset, syntax: str = EXPLICIT) -> Radiograph:
    return read_radiograph(written(made, syntax))


def ramp(**attributes: Any) -> Radiograph:
    return read(dataset(RAMP, **attributes))


def lut(entries: list[int] | bytes, descriptor: list[int], signed: bool = False) -> Sequence:
    item = Dataset()
    item.add_new("LUTDescriptor", "SS" if signed else "US", descriptor)
    item.add_new("LUTData", "OW" if isinstance(entries, bytes) else "US", entries)
    return Sequence([item])


# --- windows --------------------------------------------------------------------------------------------------------


def test_a_linear_window_follows_the_standards_formula():
    # C.11.2.1.2.1: ((x - (c - 0.5)) / (w - 1) + 0.5) * 255, black up to c - 0.5 - (w - 1) / 2 = 1500
    read = ramp(WindowCenter=2000, WindowWidth=1000)
    assert shown(read, 0, 1500, 1501, 1999, 2000, 2499, 4095) == [0, 0, 0, 127, 128, 255, 255]
    assert shown(read, 1600, 2400) == [26, 230]


def test_a_linear_window_of_width_one_is_a_threshold():
    read = ramp(WindowCenter=2000, WindowWidth=1)
    assert shown(read, 1998, 1999, 2000, 2001) == [0, 0, 255, 255]


def test_linear_exact_and_sigmoid():
    exact = ramp(WindowCenter=2000, WindowWidth=1000, VOILUTFunction="LINEAR_EXACT")
    assert shown(exact, 1500, 1750, 2000, 2250, 2500) == [0, 64, 128, 191, 255]
    sigmoid = ramp(WindowCenter=2000, WindowWidth=1000, VOILUTFunction="SIGMOID")
    assert shown(sigmoid, 0, 1750, 2000, 2250, 4095) == [0, 69, 128, 186, 255]


def test_the_first_usable_window_of_several_is_shown_and_all_usable_ones_are_offered():
    read = ramp(
        WindowCenter=[100, 2000, 1000],
        WindowWidth=[0, 1000, 200],
        WindowCenterWidthExplanation=["BROKEN", "LUNG", "BONE"],
    )
    assert [(window.centre, window.width, window.explanation) for window in read.windows] == [
        (2000, 1000, "LUNG"),
        (1000, 200, "BONE"),
    ]
    assert shown(read, 1500, 2000, 2499) == [0, 128, 255]
    assert any("no usable width" in warning for warning in read.record.warnings)


@pytest.mark.parametrize("width", [0, -100])
def test_without_a_usable_window_the_whole_range_is_shown(width):
    read = ramp(WindowCenter=2000, WindowWidth=width)
    assert read.windows == ()
    assert shown(read, 0, 4095) == [0, 255]


def test_windows_never_touch_the_values():
    plain, windowed = ramp(), ramp(WindowCenter=2000, WindowWidth=10)
    assert np.array_equal(plain.values, windowed.values)
    assert np.array_equal(plain.values.reshape(-1), RAMP.reshape(-1))


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_the_offered_windows_show_the_values_as_the_file_asks(photometric, function):
    read = ramp(
        PhotometricInterpretation=photometric,
        WindowCenter=[1200, 300],
        WindowWidth=[700, 50],
        VOILUTFunction=function,
        RescaleSlope="0.5",
        RescaleIntercept="-40",
    )
    again = to_bytes(apply_window(read.values.astype(np.float64), read.windows[0]))
    assert np.abs(again.astype(int) - read.display).max() <= 1


# --- the order of the stages ----------------------------------------------------------------------------------------


def test_c08_monochrome_1_is_inverted_after_its_window():
    attributes = {"RescaleSlope": "2", "RescaleIntercept": "-1000", "WindowCenter": 2000, "WindowWidth": 1000}
    light = ramp(**attributes)
    dark = ramp(PhotometricInterpretation="MONOCHROME1", **attributes)
    # The window's middle, 2000, is the sample 1500; its ends 1500 and 2499 are the samples 1250 and 1749.5.
    assert shown(light, 1250, 1500, 1750) == [0, 128, 255]
    assert shown(dark, 1250, 1500, 1750) == [255, 127, 0]
    assert dark.values.reshape(-1)[0] > dark.values.reshape(-1)[4095]


def test_the_modality_lut_comes_before_the_window():
    # Samples up to 100 give 10, 101 gives 20, from 102 on 30.
    read = ramp(ModalityLUTSequence=lut([10, 20, 30], [3, 100, 16]), WindowCenter=20.5, WindowWidth=21)
    values = read.values.reshape(-1)
    assert [values[i] for i in (0, 100, 101, 102, 4095)] == [10, 10, 20, 30, 30]
    assert shown(read, 0, 101, 4095) == [0, 128, 255]


def test_a_modality_lut_goes_before_a_rescale_slope():
    read = ramp(ModalityLUTSequence=lut([10, 20, 30], [3, 100, 16]), RescaleSlope="7", RescaleIntercept="1")
    assert read.values.max() == 30


def test_a_voi_lut_comes_before_a_window_and_leaves_the_values_alone():
    entries = [0] * 1000 + [200] * 1000 + [255] * 2096
    read = ramp(VOILUTSequence=lut(entries, [4096, 0, 8]), WindowCenter=2000, WindowWidth=1000)
    assert shown(read, 0, 999, 1000, 1999, 2000, 4095) == [0, 0, 200, 200, 255, 255]
    assert np.array_equal(read.values.reshape(-1), RAMP.reshape(-1))


@pytest.mark.parametrize("syntax", [EXPLICIT, IMPLICIT, BIG_ENDIAN])
def test_a_voi_lut_is_read_in_every_byte_order(syntax):
    entries = [0] * 1000 + [800] * 1000 + [1023] * 2096
    read = read_radiograph(written(dataset(RAMP, VOILUTSequence=lut(entries, [4096, 0, 10])), syntax))
    assert shown(read, 999, 1999, 2000) == [0, 199, 255]


@pytest.mark.parametrize("syntax", [EXPLICIT, BIG_ENDIAN])
def test_lut_data_may_be_words_packed_into_bytes(syntax):
    entries = [0] * 1000 + [800] * 1000 + [1023] * 2096
    data = np.array(entries, ">u2" if syntax == BIG_ENDIAN else "<u2").tobytes()
    read = read_radiograph(written(dataset(RAMP, VOILUTSequence=lut(data, [4096, 0, 10])), syntax))
    assert shown(read, 999, 1999, 2000) == [0, 199, 255]


def test_lut_data_of_8_bits_may_be_packed_two_to_a_word():
    entries = bytes([0] * 1000 + [200] * 1000 + [255] * 2096)
    for data in (entries, np.frombuffer(entries, "<u2").tolist()):
        read = ramp(VOILUTSequence=lut(data, [4096, 0, 8]))
        assert shown(read, 999, 1999, 2000) == [0, 200, 255]


def test_a_lut_of_no_entries_has_65536():
    entries = np.arange(65536, dtype="<u2").tobytes()
    read = ramp(VOILUTSequence=lut(entries, [0, 0, 16]), RescaleSlope="16", RescaleIntercept="0")
    assert shown(read, 0, 1024, 4095) == [0, 64, 255]


@pytest.mark.parametrize("signed_descriptor", [False, True])
def test_the_first_input_of_a_lut_may_be_negative(signed_descriptor):
    first = -1000 if signed_descriptor else 65536 - 1000
    read = ramp(
        RescaleSlope="1",
        RescaleIntercept="-2000",
        VOILUTSequence=lut([0] * 500 + [255] * 500, [1000, first, 8], signed_descriptor),
    )
    assert shown(read, 0, 1499, 1500, 4095) == [0, 0, 255, 255]


def test_an_incomplete_voi_lut_is_ignored_with_a_warning_and_the_window_taken():
    read = ramp(VOILUTSequence=lut([0, 255], [4096, 0, 8]), WindowCenter=2000, WindowWidth=1000)
    assert shown(read, 1500, 2000, 2499) == [0, 128, 255]
    assert any("VOI LUT" in warning for warning in read.record.warnings)


def test_an_incomplete_modality_lut_is_an_error():
    with pytest.raises(RadiographError, match="Modality LUT"):
        ramp(ModalityLUTSequence=lut([1, 2], [4096, 0, 16]))


def test_a_falling_voi_lut_turns_the_values_with_the_picture():
    read = ramp(VOILUTSequence=lut(list(range(4095, -1, -1)), [4096, 0, 12]))
    assert shown(read, 0, 4095) == [255, 0]
    assert np.array_equal(read.values.reshape(-1), 4095 - RAMP.reshape(-1))


@pytest.mark.parametrize("slope", ["0", "1e-30"])
def test_a_senseless_slope_is_ignored_with_a_warning(slope):
    read = ramp(RescaleSlope=slope, RescaleIntercept="0")
    assert np.array_equal(read.values.reshape(-1), RAMP.reshape(-1))
    assert any("Rescale Slope" in warning for warning in read.record.warnings)


# --- padding --------------------------------------------------------------------------------------------------------


def padded(picture: np.ndarray, **attributes: Any) -> np.ndarray:
    """The picture with 60 columns of the padding value 4095 on either side."""
    return np.pad(picture, ((0, 0), (60, 60)), constant_values=4095)


def test_padding_is_black_and_does_not_count_in_the_stretch(picture):
    plain = np.minimum(picture, 4000)
    bare = read(dataset(plain))
    read_padded = read(dataset(padded(plain), PixelPaddingValue=4095))
    assert read_padded.padding is not None
    assert read_padded.padding[:, :60].all()
    assert not read_padded.padding[:, 60:-60].any()
    assert (read_padded.values[:, :60] == plain.min()).all()
    assert (read_padded.display[:, :60] == 0).all()
    inner = engine_grey(read_padded)[:, 60:-60]
    assert np.abs(inner - engine_grey(bare)).max() < 0.01


def test_a_range_of_padding_values_and_an_inverted_picture(picture):
    plain = np.clip(picture, 100, 4000)
    made = dataset(
        padded(4095 - plain),
        PhotometricInterpretation="MONOCHROME1",
        PixelPaddingValue=4095,
        PixelPaddingRangeLimit=4050,
    )
    found = read(made)
    assert found.padding is not None
    assert found.padding.sum() == 2 * 60 * plain.shape[0]
    assert (found.display[:, :60] == 0).all()


def test_a_padding_value_that_covers_everything_is_ignored_with_a_warning():
    found = ramp(PixelPaddingValue=0, PixelPaddingRangeLimit=4095)
    assert found.padding is None
    assert any("padding" in warning for warning in found.record.warnings)


# --- the same by another implementation -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "real/vlut_04.dcm", "real/mlut_18.dcm", "derived/m2_12bit.dcm", "derived/m2_12bit_narrow_window.dcm",
        "derived/m2_12bit_voilut_sequence.dcm",
    ],
)  # fmt: skip
def test_the_display_agrees_with_pydicom(pack, name):
    path = pack / "dicom" / name
    stored = pydicom.dcmread(path)
    values = apply_modality_lut(stored.pixel_array, stored)
    seen = apply_voi_lut(values, stored, prefer_lut=True).astype(float)
    if "VOILUTSequence" in stored:
        seen /= 2 ** stored.VOILUTSequence[0].LUTDescriptor[2] - 1
    elif "WindowWidth" in stored:  # pydicom spreads a window over the stored bits
        seen /= 2**stored.BitsStored - 1
    else:
        seen = (seen - seen.min()) / (seen.max() - seen.min())
    assert np.abs(seen * 255 - read_radiograph(path).display).max() <= 1
    assert np.array_equal(read_radiograph(path).values, values.astype(np.float32))
