"""All DICOM results of an image in one call, and the picture for viewers without SEG."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
import pytest
from export.dicom_headers import BUNDLE, answer, blob, source, validated, without_answer

from xflow_core.domain.codes import ABSENT, FINDING_CODES, PRESENCE, PRESENT
from xflow_core.domain.errors import CallError, ExportError, NotWritten, ValueRefused
from xflow_core.export.dicom import write_dicom
from xflow_core.export.dicom_source import read_source
from xflow_core.export.equipment import dicom_code
from xflow_core.export.files import DICOM_FILES, remove_dicom, sweep
from xflow_core.export.secondary_capture import stacked, write_secondary_capture
from xflow_core.export.seg_reading import read_seg

OVERLAY = np.random.default_rng(0).integers(0, 256, (33, 21, 3)).astype(np.uint8)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_one_call_writes_what_there_is_reason_to_write(tmp_path: Path) -> None:
    image = source()
    present, absent = answer(image, "effusion", blob(image.size, 1)), answer(image, "edema", None)
    files = write_dicom(tmp_path / "image", [present, absent], image, overlay=OVERLAY)
    assert [path.name for path in files.paths] == ["seg.dcm", "sr.dcm", "pr.dcm", "sc.dcm"]
    assert all(path.parent == tmp_path / "image" and path.is_file() for path in files.paths)
    assert sorted(snapshot(tmp_path / "image")) == ["pr.dcm", "sc.dcm", "seg.dcm", "sr.dcm"]
    assert files.written_seg is not None
    assert files.written_seg.path == files.seg
    made = [pydicom.dcmread(path) for path in files.paths]
    assert {dataset.StudyInstanceUID for dataset in made} == {image.study_uid}
    assert {str(dataset.PatientID) for dataset in made} == {"SECRET-17"}
    assert len({dataset.SeriesInstanceUID for dataset in made} | {image.series_uid}) == 5
    assert len({dataset.SOPInstanceUID for dataset in made} | {image.sop_instance_uid}) == 5
    assert all("not for clinical use" in dataset.SeriesDescription for dataset in made)
    assert all(dataset.DeviceSerialNumber == BUNDLE.sha256 for dataset in made)
    sr = made[1].to_json()
    assert files.written_seg.sop_instance_uid in sr

    files = write_dicom(tmp_path / "image", [absent], image)
    assert [path.name for path in files.paths] == ["sr.dcm", "pr.dcm"]
    assert sorted(snapshot(tmp_path / "image")) == ["pr.dcm", "sr.dcm"]

    files = write_dicom(tmp_path / "image", [without_answer(image, "edema", "refused")], image)
    assert [path.name for path in files.paths] == ["sr.dcm"]
    assert sorted(snapshot(tmp_path / "image")) == ["sr.dcm"]


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    image = source()
    (tmp_path / "notes.txt").write_text("mine")
    write_dicom(tmp_path, [answer(image, "edema", None)], image)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_warnings_of_the_segmentation_are_handed_on(tmp_path: Path) -> None:
    image = source()
    assert "1 mm" in write_dicom(tmp_path, [answer(image, "edema", blob(image.size, 1))], image).warnings[0]


def test_when_one_object_fails_the_earlier_files_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = source()
    write_dicom(tmp_path, [answer(image, "edema", blob(image.size, 1))], image, overlay=OVERLAY)
    before = snapshot(tmp_path)
    synced = os.fsync
    left = [None] * 2

    def full(file: int) -> None:
        left.pop()
        if not left:
            raise OSError(28, "No space left on device")
        synced(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotWritten, match=r"cannot be written to .*: No space left on device; choose another"):
        write_dicom(tmp_path, [answer(image, "edema", blob(image.size, 2))], image, overlay=OVERLAY)
    assert snapshot(tmp_path) == before


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(("call", "at"), [("fsync", 2), *(("replace", place) for place in range(4, 10))])
def test_a_process_killed_while_writing_leaves_whole_files_of_one_call(call, at, tmp_path: Path) -> None:
    image = source()
    write_dicom(tmp_path, [answer(image, "edema", blob(image.size, 1))], image)
    before = snapshot(tmp_path)
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2])\n"
        "from export.dicom_headers import *\nfrom xflow_core.export.dicom import write_dicom\n"
        f"left, real = [None] * {at}, os.{call}\n"
        "def dying(*arguments):\n left.pop()\n if not left: os.kill(os.getpid(), signal.SIGKILL)\n real(*arguments)\n"
        f"os.{call} = dying\nimage = source()\n"
        "write_dicom(sys.argv[1], [answer(image, 'edema', blob(image.size, 2))], image)"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path, Path(__file__).parents[1]], check=False)
    assert ran.returncode == -signal.SIGKILL
    files = {path.name: path for path in tmp_path.glob("*.dcm")}
    new = {name for name, path in files.items() if path.read_bytes() != before[name]}
    assert new in (set(), set(files))
    assert "sr.dcm" not in files or files.keys() == before.keys(), "where there is a report, there is all of it"
    assert all(pydicom.dcmread(path).PatientID == "SECRET-17" for path in files.values())
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == files.keys()


def test_when_a_file_cannot_take_its_place_the_earlier_ones_are_back(tmp_path: Path) -> None:
    image = source()
    write_dicom(tmp_path, [answer(image, "edema", blob(image.size, 1))], image)
    before = snapshot(tmp_path)
    (tmp_path / "sc.dcm" / "inside").mkdir(parents=True)
    with pytest.raises(NotWritten, match="cannot be written to"):
        write_dicom(tmp_path, [answer(image, "edema", blob(image.size, 2))], image, overlay=OVERLAY)
    (tmp_path / "sc.dcm" / "inside").rmdir()
    (tmp_path / "sc.dcm").rmdir()
    assert snapshot(tmp_path) == before


def test_c05_c06_an_absent_verdict_is_still_there_when_the_files_are_opened_again(tmp_path: Path) -> None:
    image = source()
    traces = [answer(image, "effusion", blob(image.size, 1)), answer(image, "edema", None)]
    files = write_dicom(tmp_path, traces, image)
    assert files.seg is not None
    assert [(segment.finding, segment.empty) for segment in read_seg(files.seg, image).segments] == [
        ("effusion", False)
    ]
    report = hd.sr.MeasurementReport.from_sequence(list(hd.sr.srread(files.sr).content))
    groups = [*report.get_planar_roi_measurement_groups(), *report.get_image_measurement_groups()]
    verdicts = {}
    for group in groups:
        (verdict,) = group.get_qualitative_evaluations(name=dicom_code(PRESENCE))
        verdicts[group.finding_type.value] = verdict.value.value
    assert verdicts == {
        FINDING_CODES["effusion"].code.value: PRESENT.value,
        FINDING_CODES["edema"].code.value: ABSENT.value,
    }


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    image = source()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotWritten, match=r"cannot be written to .*; choose another output folder") as refused:
        write_dicom(tmp_path / "file", [answer(image, "edema", None)], image)
    assert refused.value.exit_status == 4


def test_a_wrong_call_writes_nothing(tmp_path: Path) -> None:
    image = source()
    with pytest.raises(CallError, match="synthetic, none"):
        write_dicom(tmp_path, [answer(image, "edema", None)], image, geometry="other")
    with pytest.raises(ExportError, match="belong to one image"):
        write_dicom(tmp_path, [answer(image, "edema", None, uid="2.25.9")], image)
    assert snapshot(tmp_path) == {}


# The secondary capture.


@pytest.mark.parametrize("reviewed", [False, True])
def test_a_secondary_capture_shows_the_overlay_in_the_sources_study(reviewed, tmp_path: Path) -> None:
    image = source(ImagerPixelSpacing=[2.0, 1.0])
    write_secondary_capture(tmp_path / "sc.dcm", OVERLAY, image, bundle=BUNDLE, reviewed=reviewed)
    made = pydicom.dcmread(tmp_path / "sc.dcm")
    assert np.array_equal(made.pixel_array, OVERLAY)
    assert made.SOPClassUID.name == "Secondary Capture Image Storage"
    assert made.StudyInstanceUID == image.study_uid
    assert made.SourceImageSequence[0].ReferencedSOPInstanceUID == image.sop_instance_uid
    assert "PixelSpacing" not in made and "NominalScannedPixelSpacing" not in made
    assert made.PatientOrientation == ["L", "F"]
    assert made.DerivationDescription.startswith("AI result, reviewed" if reviewed else "AI result, not reviewed")
    assert "not for clinical use" in made.DerivationDescription
    assert validated(tmp_path / "sc.dcm") == []


@pytest.mark.parametrize("name", ["derived/m1_12bit_rle.dcm", "derived/m2_12bit.dcm", "real/siim_jpeg_baseline.dcm"])
def test_dciodvfy_finds_no_error_in_a_secondary_capture(name, pack: Path, tmp_path: Path) -> None:
    image = read_source(pack / "dicom" / name)
    write_secondary_capture(tmp_path / "sc.dcm", OVERLAY, image, bundle=BUNDLE)
    assert validated(tmp_path / "sc.dcm") == []


def test_several_overlays_stand_one_below_the_other() -> None:
    wide = np.full((2, 30, 3), 7, np.uint8)
    both = stacked([OVERLAY, wide])
    assert both.shape == (35, 30, 3)
    assert np.array_equal(both[:33, :21], OVERLAY)
    assert not both[:33, 21:].any()
    assert np.array_equal(both[33:], wide)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    for picture in (OVERLAY[..., 0], OVERLAY.astype(float), np.zeros((0, 3, 3), np.uint8)):
        with pytest.raises(ValueRefused):
            write_secondary_capture(tmp_path / "sc.dcm", picture, source(), bundle=BUNDLE)
    with pytest.raises(ValueRefused):
        stacked([])


def test_results_of_an_earlier_image_of_that_name_are_removed(tmp_path: Path) -> None:
    for name in (*DICOM_FILES, "kept.txt"):
        (tmp_path / name).write_bytes(b"old")
    remove_dicom(tmp_path)
    remove_dicom(tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
