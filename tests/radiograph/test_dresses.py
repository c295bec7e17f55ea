"""One picture gives one engine input, whatever dress it comes in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom.data import get_testdata_file
from radiograph.dresses import (
    BIG_ENDIAN,
    DEFLATED,
    EXPLICIT,
    IMPLICIT,
    JPEG,
    RLE,
    compressed_by_gdcm,
    compressed_by_pydicom,
    dataset,
    itk,
    jpeg_baseline,
    pillow,
    with_codestream,
    written,
)

from xflow_core.radiograph.reading import engine_grey, grey_range, read_radiograph


def difference(data: bytes, reference: np.ndarray) -> float:
    """The greatest difference of two engine inputs, in grey levels of a picture's 255.

    (The stretch between percentiles makes a step of an 8-bit file a little wider than 1/255 of the engine's range.)
    """
    radiograph = read_radiograph(data)
    grey = engine_grey(radiograph)
    assert grey.shape == reference.shape
    bottom, top = grey_range(radiograph)
    stretched = (top - bottom) / float(radiograph.values.max() - radiograph.values.min())
    return float(np.abs(grey - reference).max()) * 255 * stretched


@pytest.fixture(scope="module")
def expected(picture: np.ndarray) -> np.ndarray:
    return engine_grey(read_radiograph(written(dataset(picture))))


@pytest.fixture(scope="module")
def expected_8bit(picture_8bit: np.ndarray) -> np.ndarray:
    return engine_grey(read_radiograph(pillow(picture_8bit, "PNG")))


# --- DICOM transfer syntaxes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("syntax", [EXPLICIT, IMPLICIT, DEFLATED, BIG_ENDIAN])
def test_uncompressed_and_deflated_syntaxes_are_exact(picture, expected, syntax):
    assert difference(written(dataset(picture), syntax), expected) == 0


@pytest.mark.parametrize("syntax", [EXPLICIT, IMPLICIT, BIG_ENDIAN])
def test_uncompressed_8_bit_is_exact(picture_8bit, expected_8bit, syntax):
    assert difference(written(dataset(picture_8bit), syntax), expected_8bit) == 0


def test_big_endian_8_bit_pixels_written_as_words_are_put_in_order(picture_8bit, expected_8bit):
    made = dataset(picture_8bit)
    made.PixelData = np.frombuffer(picture_8bit.tobytes(), np.uint16).byteswap().tobytes()
    made["PixelData"].VR = "OW"
    assert np.array_equal(read_radiograph(written(made, BIG_ENDIAN)).values, picture_8bit)


LOSSLESS = [RLE, *(JPEG + number for number in ("57", "70", "80", "81", "90", "91"))]


@pytest.mark.parametrize("syntax", LOSSLESS)
@pytest.mark.parametrize("bits", [8, 10, 12, 16])
def test_losslessly_compressed_syntaxes_are_exact(picture, syntax, bits):
    stored = np.rint(picture / 4095 * (2**bits - 1)).astype(np.uint8 if bits == 8 else np.uint16)
    read = read_radiograph(compressed_by_gdcm(dataset(stored, BitsStored=bits), syntax))
    assert np.array_equal(read.values, stored)


@pytest.mark.parametrize("syntax", LOSSLESS)
def test_signed_samples_survive_every_codec(picture, syntax):
    stored = picture.astype(np.int16) - 2048
    if syntax.startswith(JPEG + "9"):
        data = compressed_by_pydicom(dataset(stored), JPEG + "90")
    else:  # these codecs know no sign: the two's complement of the stored bits is coded
        unsigned = (stored & 0xFFF).astype(np.uint16)
        data = compressed_by_gdcm(dataset(unsigned), syntax)
        data = data.replace(b"\x28\x00\x03\x01US\x02\x00\x00\x00", b"\x28\x00\x03\x01US\x02\x00\x01\x00")
    assert np.array_equal(read_radiograph(data).values, stored)


@pytest.mark.parametrize("shape", [(97, 101), (64, 65), (65, 64)])
@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("syntax", [RLE, JPEG + "90"])
def test_odd_sizes_are_exact(picture, shape, bits, syntax):
    stored = np.ascontiguousarray((picture >> (12 - bits))[: shape[0], : shape[1]]).astype(f"u{(bits + 7) // 8}")
    assert np.array_equal(read_radiograph(compressed_by_pydicom(dataset(stored), syntax)).values, stored)


@pytest.mark.parametrize("name", ["JPGExtended.dcm", "JPEG-lossy.dcm"])
def test_real_jpegs_of_12_bits(name):
    path = get_testdata_file(name, download=False)
    assert path is not None
    read = read_radiograph(path)
    # By libjpeg, another decoder, JPGExtended.dcm has these; the other is the same picture, oddly coded.
    assert read.values.max() == 264
    assert read.values.mean() == pytest.approx(14.38, abs=0.05)


def test_lossy_jpeg_2000_stays_within_a_grey_level(picture, expected):
    assert difference(compressed_by_pydicom(dataset(picture), JPEG + "91", j2k_cr=[3]), expected) <= 1


def test_a_lossy_overshoot_beyond_the_stored_bits_is_cut_and_does_not_wrap(picture):
    stored = np.minimum(picture * np.uint16(2), np.uint16(5000))  # as if a 16-bit codestream overshot 12 bits
    data = compressed_by_pydicom(dataset(stored, BitsStored=16), JPEG + "91", j2k_cr=[2])
    data = data.replace(b"\x28\x00\x01\x01US\x02\x00\x10\x00", b"\x28\x00\x01\x01US\x02\x00\x0c\x00")
    read = read_radiograph(data)
    assert read.values.max() == 4095
    assert np.abs(read.values - np.minimum(stored, 4095)).max() < 100


def test_jpeg_baseline_is_what_its_codec_made_of_it(picture_8bit):
    data = jpeg_baseline(picture_8bit, quality=90)
    stream = pillow(picture_8bit, "JPEG", quality=90, subsampling=0)
    assert np.array_equal(read_radiograph(data).values, read_radiograph(stream).values)


def test_jpeg_baseline_at_its_best_stays_within_a_grey_level(picture_8bit, expected_8bit):
    assert difference(jpeg_baseline(picture_8bit), expected_8bit) < 1.01


@pytest.mark.parametrize(("number", "off_by"), [("201_lossless", 0), ("202_lossless_rpcl", 0), ("203_lossy", 2)])
def test_high_throughput_jpeg_2000(number, off_by):
    # The codestreams were made once with imagecodecs (OpenJPH) from this formula.
    y, x = np.mgrid[:96, :128]
    drawn = (2048 + 1500 * np.sin(x / 19) * np.cos(y / 23) + ((x * 7 + y * 13) % 3)).astype(np.uint16)
    codestream = (Path(__file__).parent / "htj2k" / f"{number}.j2c").read_bytes()
    made = dataset(drawn, BitsStored=16)
    read = read_radiograph(with_codestream(made, JPEG + number[:3], codestream))
    assert np.abs(read.values - drawn).max() <= off_by


# --- how a DICOM sample may be stored -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_samples_may_lie_anywhere_in_the_word_and_have_any_sign(data):
    bits = data.draw(st.integers(8, 16), "bits stored")
    allocated = data.draw(st.sampled_from([8, 16, 32] if bits == 8 else [16, 32]), "bits allocated")
    high_bit = data.draw(st.integers(bits - 1, allocated - 1), "high bit")
    signed = data.draw(st.booleans(), "signed")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    rng = np.random.default_rng(seed)
    samples = rng.integers(0, 2**bits, (64, 70)) - (2 ** (bits - 1) if signed else 0)
    garbage = rng.integers(0, 2**allocated, samples.shape, dtype=np.int64)
    low_bit = high_bit + 1 - bits
    mask = ((1 << bits) - 1) << low_bit
    words = ((samples << low_bit) & mask) | (garbage & ~mask)
    made = dataset(
        words.astype(f"u{allocated // 8}"), BitsStored=bits, HighBit=high_bit, PixelRepresentation=int(signed)
    )
    assert np.array_equal(read_radiograph(written(made)).values, samples)


def test_c18_twelve_bits_in_sixteen_do_not_wrap(picture):
    read = read_radiograph(written(dataset(picture, BitsStored=12, HighBit=11)))
    assert (read.values.min(), read.values.max()) == (0, 4095)
    assert read.display.min() == 0
    assert read.display.max() == 255


def test_signed_and_rescaled_samples_give_the_same_input(picture, expected):
    made = dataset(picture.astype(np.int16) - 2048, RescaleSlope="2.5", RescaleIntercept="-1000")
    assert difference(written(made), expected) <= 1e-3


@pytest.mark.parametrize("syntax", [EXPLICIT, IMPLICIT, BIG_ENDIAN])
def test_c07_monochrome_1_and_2_give_the_same_input(picture, expected, syntax):
    made = dataset(4095 - picture, PhotometricInterpretation="MONOCHROME1")
    assert difference(written(made, syntax), expected) <= 1e-3


@pytest.mark.parametrize(
    ("photometric", "shape", "inverted", "warned"),
    [
        ("MONOCHROME2", None, False, False),
        ("MONOCHROME2", "IDENTITY", False, False),
        ("MONOCHROME1", None, True, False),
        ("MONOCHROME1", "INVERSE", True, False),  # the two say one thing: once, not twice
        ("MONOCHROME2", "INVERSE", True, True),
        ("MONOCHROME1", "IDENTITY", True, True),
    ],
)
def test_the_presentation_inverts_once(picture, expected, photometric, shape, inverted, warned):
    made = dataset(
        4095 - picture if inverted else picture, PhotometricInterpretation=photometric, PresentationLUTShape=shape
    )
    assert difference(written(made), expected) <= 1e-3
    warnings = read_radiograph(written(made)).record.warnings
    assert any("contradicts" in warning for warning in warnings) == warned


def test_a_negative_slope_turns_the_picture(picture, expected):
    made = dataset(4095 - picture, RescaleSlope="-1", RescaleIntercept="4095")
    assert difference(written(made), expected) == 0


@pytest.mark.parametrize("planar", [0, 1])
@pytest.mark.parametrize("syntax", [EXPLICIT, RLE, JPEG + "70", JPEG + "80", JPEG + "90"])
def test_grey_in_colour_is_grey(picture_8bit, syntax, planar):
    colour = np.stack([picture_8bit] * 3, axis=2)
    made = dataset(colour, PlanarConfiguration=planar)
    if planar:
        made.PixelData = np.moveaxis(colour, 2, 0).tobytes()
    data = written(made) if syntax == EXPLICIT else compressed_by_gdcm(made, syntax)
    read = read_radiograph(data)
    assert np.array_equal(read.values, picture_8bit)
    assert read.header.colour


@pytest.mark.parametrize("photometric", ["RGB", "YBR_FULL", "YBR_FULL_422"])
def test_grey_in_colour_jpeg_is_grey_whatever_the_header_says_of_its_colours(picture_8bit, photometric):
    colour = np.stack([picture_8bit] * 3, axis=2)
    read = read_radiograph(jpeg_baseline(colour, PhotometricInterpretation=photometric))
    assert np.abs(read.values - picture_8bit).max() <= 2


def test_grey_as_uncompressed_luminance_and_chroma(picture_8bit):
    even = picture_8bit
    chroma = np.full_like(even, 128)
    full = dataset(np.stack([even, chroma, chroma], axis=2), PhotometricInterpretation="YBR_FULL")
    assert np.array_equal(read_radiograph(written(full)).values, even)
    pairs = np.stack([even.reshape(-1, 2), np.full((even.size // 2, 2), 128, np.uint8)], axis=1)
    half = dataset(np.stack([even] * 3, axis=2), PhotometricInterpretation="YBR_FULL_422")
    half.PixelData = pairs.tobytes()
    assert np.array_equal(read_radiograph(written(half)).values, even)


def test_a_grey_palette(picture_8bit):
    made = dataset(picture_8bit, PhotometricInterpretation="PALETTE COLOR")
    for colour in ("Red", "Green", "Blue"):
        setattr(made, f"{colour}PaletteColorLookupTableDescriptor", [256, 0, 16])
        setattr(made, f"{colour}PaletteColorLookupTableData", (np.arange(256, dtype="<u2") * 257).tobytes())
    assert np.array_equal(read_radiograph(written(made)).values, picture_8bit)


def test_a_file_without_preamble_and_meta_header_is_read_when_it_is_plainly_dicom(picture, expected):
    data = written(dataset(picture), IMPLICIT)
    start = data.index(b"\x08\x00\x16\x00")
    assert difference(data[start:], expected) == 0


# --- other formats --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P"])
@pytest.mark.parametrize("fmt", ["PNG", "TIFF"])
def test_8_bit_pictures(picture_8bit, fmt, mode):
    read = read_radiograph(pillow(picture_8bit, fmt, mode if mode != "L" else None))
    assert np.array_equal(read.values, picture_8bit)
    assert np.array_equal(read.display, picture_8bit)


def test_8_bits_are_within_a_grey_level_of_12(picture_8bit, expected):
    assert difference(pillow(picture_8bit, "PNG"), expected) <= 1


@pytest.mark.parametrize(
    ("fmt", "options"),
    [("PNG", {}), *(("TIFF", {"compression": name}) for name in ("raw", "tiff_lzw", "tiff_deflate", "packbits"))],
)
def test_16_bit_pictures(picture, expected, fmt, options):
    assert difference(pillow(picture, fmt, **options), expected) == 0


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_grey_in_16_bit_colour_keeps_its_16_bits(picture, expected, suffix):
    assert difference(itk(np.stack([picture] * 3, axis=2), suffix), expected) == 0


@pytest.mark.parametrize("mode", ["1", "L", "I;16", "F"])
def test_tiff_that_is_white_at_zero_is_turned(picture, picture_8bit, mode):
    stored = {"1": picture_8bit > 99, "L": picture_8bit, "I;16": picture, "F": picture.astype(np.float32)}[mode]
    data = bytearray(pillow(stored, "TIFF", compression="raw"))
    tag = data.index(b"\x06\x01\x03\x00\x01\x00\x00\x00\x01\x00")  # PhotometricInterpretation: BlackIsZero
    black = read_radiograph(bytes(data)).values
    data[tag + 8] = 0
    white = read_radiograph(bytes(data)).values
    assert np.array_equal(white, black.max() - black if mode in ("I;16", "F") else 255 - black)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_jpeg_pictures_are_what_their_codec_made_of_them(picture_8bit, mode, options):
    data = pillow(picture_8bit, "JPEG", mode, quality=95, **options)
    read = read_radiograph(data)
    assert read.record.source == "jpeg"
    assert np.abs(read.values - picture_8bit).mean() < 1


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd", ".mha"])
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_volumes_of_one_slice_keep_rows_and_columns(picture, picture_8bit, suffix, kind, slices, compress):
    stored = picture_8bit if kind is np.uint8 else picture.astype(kind)
    read = read_radiograph(itk(stored[None] if slices else stored, suffix, compress))
    assert np.array_equal(read.values, stored)


@pytest.mark.parametrize("suffix", [".nii", ".nrrd", ".mha"])
def test_volumes_of_grey_in_colour(picture_8bit, suffix):
    read = read_radiograph(itk(np.stack([picture_8bit] * 3, axis=2), suffix))
    assert np.array_equal(read.values, picture_8bit)


def test_every_format_tells_its_name(picture, picture_8bit):
    files = {
        "dicom": written(dataset(picture)),
        "png": pillow(picture_8bit, "PNG"),
        "jpeg": pillow(picture_8bit, "JPEG"),
        "tiff": pillow(picture, "TIFF"),
        "nifti": itk(picture, ".nii.gz"),
        "nrrd": itk(picture, ".nrrd"),
        "mha": itk(picture, ".mha"),
    }
    assert {name: read_radiograph(data).record.source for name, data in files.items()} == {name: name for name in files}


# --- the open pack --------------------------------------------------------------------------------------------------


def test_derived_files_of_one_picture_give_one_input(pack):
    files = sorted(path for path in (pack / "dicom" / "derived").glob("m[12]_*.dcm"))
    assert len(files) == 7
    inputs = {path.name: engine_grey(read_radiograph(path)) for path in files}
    reference = inputs["m2_12bit.dcm"]
    for name, grey in inputs.items():
        assert np.abs(grey - reference).max() * 255 <= 1, name


def test_the_reference_png_has_the_geometry_of_the_derived_files(pack):
    folder = pack / "dicom" / "derived"
    reference = np.asarray(Image.open(folder / "reference_frontal_8bit.png")).astype(float)
    grey = engine_grey(read_radiograph(folder / "m2_12bit.dcm"))
    assert np.corrcoef(reference.ravel(), grey.ravel())[0, 1] > 0.9
