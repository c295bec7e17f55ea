"""The DICOM results of ``xflow segment``: for every DICOM image, named in the output, refused where they cannot be."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pacs.conftest import IDENTITY, phantom_radiograph
from phantom import phantom_engine
from PIL import Image

from xflow_core.cli.app import main
from xflow_core.export.dicom_source import read_source
from xflow_core.export.seg_reading import read_seg

ASK = ("-i", "Segment the opacity in the left lung")


class Ended:
    """How a call of the command ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def results(self) -> list[dict[str, Any]]:
        return json.loads(self.out.splitlines()[-1])["results"]

    @property
    def one_line(self) -> bool:
        return self.err.count("\n") == 1 and self.err.startswith("xflow: ")


@pytest.fixture
def xflow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The command, answering with the small third backend of the tests."""
    monkeypatch.setattr("xflow_core.bundles.loading.load_engine", lambda name, device: phantom_engine()[0])

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["segment", *(str(argument) for argument in arguments)])
        said = capsys.readouterr()
        return Ended(int(ended.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def chest(tmp_path: Path) -> Path:
    """A small DX that the backend finds an opacity in, of a patient with a name."""
    path = tmp_path / "in" / "chest.dcm"
    path.parent.mkdir()
    path.write_bytes(phantom_radiograph("2.25.77"))
    return path


def edited(path: Path, **attributes: Any) -> Path:
    made = pydicom.dcmread(path)
    for keyword, value in attributes.items():
        if value is None:
            made.pop(keyword, None)
        else:
            setattr(made, keyword, value)
    made.save_as(path)
    return path


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_a_dicom_image_gets_seg_sr_and_pr_and_they_are_said(chest: Path, tmp_path: Path, xflow) -> None:
    ended = xflow(chest, *ASK, "-o", tmp_path / "out")
    assert (ended.status, ended.err) == (0, "")
    folder = tmp_path / "out" / "chest"
    assert files_of(folder) == ["pr.dcm", "seg.dcm", "sr.dcm"]
    for name in ("seg.dcm", "sr.dcm", "pr.dcm"):
        assert f"dicom: {folder / name}" in ended.out
    assert "warning: The header gives no pixel spacing" in ended.out
    (segment,) = read_seg(folder / "seg.dcm", read_source(chest)).segments
    mask = np.asarray(Image.open(folder / "opacity" / "mask.png")) > 0
    assert np.array_equal(segment.mask, mask)
    assert (segment.finding, segment.regions, segment.review) == ("opacity", ("left lung",), "not reviewed")


def test_the_json_names_the_files_and_a_second_call_replaces_them(chest: Path, tmp_path: Path, xflow) -> None:
    call = (chest, "-i", "opacity and cardiomegaly", "-o", tmp_path / "out", "--json")
    ended = xflow(*call, "--secondary-capture", "--dicom-geometry", "none")
    folder = tmp_path / "out" / "chest"
    assert ended.status == 0
    for result in ended.results:
        named = result["dicom"]
        assert (named["folder"], named["seg"], named["sr"], named["pr"], named["sc"]) == (
            str(folder),
            "seg.dcm",
            "sr.dcm",
            "pr.dcm",
            "sc.dcm",
        )
    made = pydicom.dcmread(folder / "seg.dcm")
    assert "FrameOfReferenceUID" not in made
    assert len(made.SegmentSequence) == sum(result["present"] for result in ended.results)
    overlays = [Image.open(folder / result["finding"] / "overlay.png") for result in ended.results]
    picture = pydicom.dcmread(folder / "sc.dcm").pixel_array
    assert picture.shape[0] == sum(overlay.height for overlay in overlays)
    again = xflow(*call)
    assert files_of(folder) == ["pr.dcm", "seg.dcm", "sr.dcm"]
    assert again.results[0]["dicom"]["sc"] is None
    assert pydicom.dcmread(folder / "seg.dcm").SOPInstanceUID != made.SOPInstanceUID
    assert "FrameOfReferenceUID" in pydicom.dcmread(folder / "seg.dcm")


def test_what_a_killed_call_left_half_made_goes_and_other_peoples_files_stay(
    chest: Path, tmp_path: Path, xflow
) -> None:
    folder = tmp_path / "out" / "chest"
    for name, inside in ((".dicom.0123456789ab.part", "seg.dcm"), (".opacity.0123456789ab.part", "trace.json")):
        (folder / name).mkdir(parents=True)
        (folder / name / inside).write_text("half")
    (folder / ".effusion.0123456789ab.part").mkdir()
    (folder / ".effusion.0123456789ab.part" / "notes.txt").write_text("mine")
    assert xflow(chest, *ASK, "-o", tmp_path / "out").status == 0
    assert [path.name for path in folder.glob(".*")] == [".effusion.0123456789ab.part"]
    assert (folder / ".effusion.0123456789ab.part" / "notes.txt").read_text() == "mine"


def test_several_images_get_one_segmentation_each(chest: Path, tmp_path: Path, xflow) -> None:
    other = tmp_path / "in" / "other.dcm"
    other.write_bytes(phantom_radiograph("2.25.78"))
    xflow(chest, other, *ASK, "-o", tmp_path / "out")
    for path in (chest, other):
        image = read_source(path)
        assert len(read_seg(tmp_path / "out" / path.stem / "seg.dcm", image).segments) == 1


def test_an_absent_finding_has_a_report_and_no_segmentation(chest: Path, tmp_path: Path, xflow) -> None:
    xflow(chest, *ASK, "-o", tmp_path / "out")
    # Under the same name an image without anything bright, so that the older results are in the way.
    made = pydicom.dcmread(chest)
    rows = np.indices((made.Rows, made.Columns))[0]
    made.PixelData = (rows % 2).astype(np.uint16).tobytes()
    made.RescaleSlope, made.RescaleIntercept = "0.5", "0"
    made.save_as(chest)
    ended = xflow(chest, *ASK, "-o", tmp_path / "out", "--accept-image", "--json")
    assert ended.results[0]["status"] == "absent"
    assert files_of(tmp_path / "out" / "chest") == ["pr.dcm", "sr.dcm"]
    assert ended.results[0]["dicom"]["seg"] is None


def test_a_refused_image_has_a_report_that_says_so_and_one_line_of_error(chest: Path, tmp_path: Path, xflow) -> None:
    edited(chest, BodyPartExamined="KNEE")
    ended = xflow(chest, *ASK, "-o", tmp_path / "out")
    assert ended.status == 3
    assert ended.one_line
    assert files_of(tmp_path / "out" / "chest") == ["sr.dcm"]
    assert "refused" in pydicom.dcmread(tmp_path / "out" / "chest" / "sr.dcm").to_json()


@pytest.mark.parametrize("option", [("--secondary-capture",), ("--dicom-geometry", "none")])
def test_what_only_dicom_images_have_is_refused_for_others(option, chest: Path, tmp_path: Path, xflow) -> None:
    picture = tmp_path / "in" / "chest.png"
    Image.fromarray((pydicom.dcmread(chest).pixel_array / 16).astype(np.uint8)).save(picture)
    ended = xflow(picture, *ASK, "-o", tmp_path / "out", *option)
    assert ended.status == 3
    assert ended.one_line
    assert "chest.png is no DICOM file" in ended.err
    assert not (tmp_path / "out").exists()


def test_a_picture_gets_no_dicom_and_is_not_asked_for_any(chest: Path, tmp_path: Path, xflow) -> None:
    picture = tmp_path / "in" / "chest.png"
    Image.fromarray((pydicom.dcmread(chest).pixel_array / 16).astype(np.uint8)).save(picture)
    ended = xflow(picture, *ASK, "-o", tmp_path / "out", "--json")
    assert (ended.status, ended.err) == (0, "")
    assert ended.results[0]["dicom"] is None
    assert files_of(tmp_path / "out" / "chest") == []


def test_an_unknown_geometry_is_refused_before_any_image_is_read(tmp_path: Path, xflow) -> None:
    ended = xflow(tmp_path / "none.dcm", *ASK, "-o", tmp_path / "out", "--dicom-geometry", "guess")
    assert ended.status == 2
    assert ended.one_line


@pytest.mark.parametrize("keyword", ["SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"])
def test_a_source_without_its_uids_keeps_its_mask_and_ends_with_one_line(
    keyword, chest: Path, tmp_path: Path, xflow
) -> None:
    edited(chest, **{keyword: None})
    ended = xflow(chest, *ASK, "-o", tmp_path / "out")
    assert ended.status == 4
    assert ended.one_line
    assert "has no" in ended.err
    assert (tmp_path / "out" / "chest" / "opacity" / "mask.png").is_file()
    assert files_of(tmp_path / "out" / "chest") == []


def test_of_several_frames_the_mask_is_written_and_the_missing_dicom_is_said(
    chest: Path, tmp_path: Path, xflow
) -> None:
    made = pydicom.dcmread(chest)
    edited(chest, NumberOfFrames=2, PixelData=made.PixelData * 2)
    ended = xflow(chest, *ASK, "-o", tmp_path / "out", "--accept-image")
    assert (ended.status, ended.err) == (0, "")
    assert "no DICOM results: chest.dcm holds 2 frames" in ended.out
    asked = xflow(chest, *ASK, "-o", tmp_path / "out", "--accept-image", "--secondary-capture")
    assert asked.status == 4
    assert asked.one_line


@pytest.mark.skipif(os.name != "posix", reason="needs /proc, where no folder can be made")
def test_a_folder_that_cannot_be_written_ends_with_one_line(chest: Path, xflow) -> None:
    ended = xflow(chest, *ASK, "-o", "/proc/xflow-out")
    assert ended.status == 4
    assert ended.one_line


def test_a_folder_in_the_place_of_a_dicom_file_loses_no_mask(chest: Path, tmp_path: Path, xflow) -> None:
    (tmp_path / "out" / "chest" / "seg.dcm" / "inside").mkdir(parents=True)
    ended = xflow(chest, *ASK, "-o", tmp_path / "out")
    assert ended.status == 4
    assert ended.one_line
    assert (tmp_path / "out" / "chest" / "opacity" / "mask.png").is_file()


def test_nothing_but_the_dicom_objects_names_the_patient(chest: Path, tmp_path: Path, xflow) -> None:
    said = ""
    for options in ((), ("--json",), ("--secondary-capture",)):
        ended = xflow(chest, *ASK, "-o", tmp_path / "out", *options)
        said += ended.out + ended.err
    edited(chest, SOPInstanceUID=None)
    ended = xflow(chest, *ASK, "-o", tmp_path / "out2")
    said += ended.out + ended.err
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.suffix != ".dcm"]
    assert {path.name for path in files} == {"mask.png", "overlay.png", "trace.json"}
    for value in IDENTITY:
        assert value not in said
        assert not any(value.encode() in path.read_bytes() for path in files)
        assert not any(value in str(path) for path in files)
    held = io.BytesIO((tmp_path / "out" / "chest" / "seg.dcm").read_bytes())
    assert pydicom.dcmread(held).PatientID in IDENTITY


def test_the_command_loads_highdicom_for_dicom_images_alone(chest: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, xflow_core.cli.segment; sys.exit('highdicom' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
