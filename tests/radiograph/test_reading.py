"""Reading a file: what comes back, what is said when nothing does, and what is never said."""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from radiograph.dresses import dataset, pillow, with_codestream, written

from xflow_core.domain.errors import RadiographError
from xflow_core.radiograph.reading import engine_grey, read_radiograph


def test_the_demo_radiograph(rg1, demo):
    assert demo.size == (1955, 1841)
    assert demo.record.photometric == "MONOCHROME1"
    assert demo.record.view == "PA"
    assert demo.record.sha256 == hashlib.sha256(rg1.read_bytes()).hexdigest()
    assert demo.record.sop_instance_uid == "1.3.6.1.4.1.5962.1.1.9.1.3.20040826185059.5457"
    assert demo.path == rg1
    assert demo.values.dtype == np.float32
    assert demo.display.dtype == np.uint8
    # Bright is dense: the spine is brighter than the air beside the neck and the lungs.
    grey = engine_grey(demo)
    assert grey[1000:1900, 850:1000].mean() > grey[600:1100, 350:600].mean() + 0.2
    assert grey[:60, :60].mean() < 0.3


def test_a_path_and_its_bytes_give_the_same(rg1, demo):
    from_bytes = read_radiograph(rg1.read_bytes())
    assert from_bytes.record == demo.record
    assert np.array_equal(from_bytes.values, demo.values)
    assert from_bytes.path is None


def test_what_a_file_is_is_told_by_its_bytes_and_not_by_its_name(picture_8bit, tmp_path):
    path = tmp_path / "chest.dcm"
    path.write_bytes(pillow(picture_8bit, "PNG"))
    assert read_radiograph(path).record.source == "png"


def test_a_dicom_with_the_start_of_a_tiff_in_its_preamble_is_a_dicom(picture):
    data = b"II*\0" + written(dataset(picture))[4:]
    assert read_radiograph(data).record.source == "dicom"


def test_the_arrays_are_read_only(demo):
    with pytest.raises(ValueError, match="read-only"):
        demo.values[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        demo.display[0, 0] = 1


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
def test_an_orientation_tag_is_not_applied_but_warned_of(picture_8bit, fmt, orientation):
    from PIL import Image

    exif = Image.Exif()
    exif[274] = orientation
    read = read_radiograph(pillow(picture_8bit, fmt, exif=exif))
    assert np.abs(read.values - picture_8bit).mean() < 2
    assert any(f"orientation {orientation}" in warning for warning in read.record.warnings)


def test_transparency_is_ignored_with_a_warning(picture_8bit):
    alpha = np.full_like(picture_8bit, 255)
    alpha[:50] = 0
    rgba = np.dstack([picture_8bit] * 3 + [alpha])
    read = read_radiograph(pillow(rgba, "PNG"))
    assert np.array_equal(read.values, picture_8bit)
    assert any("transparen" in warning for warning in read.record.warnings)


# --- the engine's input ---------------------------------------------------------------------------------------------


def test_a_constant_image_gives_zeros(picture):
    assert not engine_grey(read_radiograph(written(dataset(np.full_like(picture, 7))))).any()


def test_the_percentiles_are_cut_off(picture):
    grey = engine_grey(read_radiograph(written(dataset(picture))), 10, 90)
    assert (grey == 0).mean() == pytest.approx(0.1, abs=0.01)
    assert (grey == 1).mean() == pytest.approx(0.1, abs=0.01)


def test_a_nearly_constant_image_keeps_what_little_differs(picture):
    stored = np.full_like(picture, 100)
    stored[200, 200] = 900
    grey = engine_grey(read_radiograph(written(dataset(stored))))
    assert grey[200, 200] == 1
    assert grey.sum() == 1


@settings(max_examples=50, deadline=None)
@given(scale=st.floats(1e-3, 1e3), offset=st.floats(-1e4, 1e4))
def test_a_positive_linear_map_of_the_values_changes_nothing(demo, scale, offset):
    small = replace(demo, values=demo.values[::8, ::8])
    mapped = replace(demo, values=(small.values.astype(np.float64) * scale + offset).astype(np.float32))
    assert np.abs(engine_grey(small) - engine_grey(mapped)).max() < 1 / 255


# --- messages -------------------------------------------------------------------------------------------------------


def message(source, **options) -> str:
    with pytest.raises(RadiographError) as caught:
        read_radiograph(source, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.rstrip().endswith((".", "these."))
    return text


def test_what_cannot_be_opened_is_named(tmp_path):
    assert "missing.dcm does not exist" in message(tmp_path / "missing.dcm")
    assert "is a folder" in message(tmp_path)
    (tmp_path / "empty.dcm").touch()
    assert "empty.dcm is empty" in message(tmp_path / "empty.dcm")
    (tmp_path / "note.txt").write_text("Dear colleague, the film is attached.")
    assert "note.txt is none of DICOM, PNG" in message(tmp_path / "note.txt")
    assert "path" in message("bad\0name")


def test_an_unreadable_file_is_named(tmp_path):
    path = tmp_path / "closed.dcm"
    path.write_bytes(b"DICM")
    path.chmod(0)
    root = os.geteuid() == 0
    if root:  # root may read everything: be someone else for a moment
        os.seteuid(65534)
    try:
        assert "closed.dcm cannot be read (Permission denied)" in message(path)
    finally:
        if root:
            os.seteuid(0)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is no ordinary file" in message(tmp_path / "pipe")


def test_the_name_given_is_the_name_used():
    assert message(b"nothing", name="upload 3").startswith("upload 3 is none of")
    assert message(b"nothing").startswith("The image is none of")


def test_an_unknown_transfer_syntax_is_named(picture):
    data = with_codestream(dataset(picture), "1.2.840.10008.1.2.4.100", b"\0\0\1\xb3")
    assert "transfer syntax 1.2.840.10008.1.2.4.100" in message(data)


def test_a_file_that_does_not_tell_its_polarity_is_not_guessed_at(picture):
    assert "Photometric Interpretation" in message(written(dataset(picture, PhotometricInterpretation=None)))


def test_a_truncated_file_says_how_much_is_missing(picture):
    made = dataset(picture)
    made.PixelData = made.PixelData[:1000]
    assert f"1000 bytes of pixel data where {2 * picture.size} belong" in message(written(made))


def test_a_dicom_without_pixels_is_named(picture):
    made = dataset(picture)
    del made.PixelData
    assert "no integer pixel data" in message(written(made))


# --- privacy --------------------------------------------------------------------------------------------------------


def test_nothing_of_the_patient_is_kept_logged_or_warned_of(picture, caplog, capfd):
    made = dataset(
        picture,
        PatientBirthDate="19700101",
        StudyDescription="Doe^Jane follow-up",
        WindowCenterWidthExplanation="VOI",
        InstitutionName="Doe^Jane clinic",
    )
    data = written(made).replace(b"19700101", b"1970Jane")  # a value that pydicom would complain about, and quote
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read = read_radiograph(data)
    kept = " ".join([repr(read.record), repr(asdict(read.header)), repr(read.windows)])
    for text in (kept, caplog.text, " ".join(str(warning.message) for warning in caught), *capfd.readouterr()):
        assert "Jane" not in text
        assert "SECRET-17" not in text


def test_a_coded_attribute_that_holds_a_sentence_is_not_kept(picture):
    read = read_radiograph(written(dataset(picture, BodyPartExamined="CHEST of J. Döe; born 1970")))
    assert read.header.body_part is None


def test_reading_leaves_the_loggers_and_standard_error_as_they_were(picture, capfd):
    read_radiograph(written(dataset(picture)))
    assert not logging.getLogger("pydicom").disabled
    os.write(2, b"still here\n")
    assert capfd.readouterr().err == "still here\n"
