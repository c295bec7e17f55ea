"""The host's MRML half: scene, logics, files, DICOM database, and what nobody raised."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_a_dicom_file_loads_and_is_shown_in_red(radiograph: Any) -> None:
    import slicer

    red = slicer.app.layoutManager().sliceWidget("Red")
    assert slicer.util.arrayFromVolume(radiograph).shape == (1, 1955, 1841)
    assert red.mrmlSliceCompositeNode().GetBackgroundVolumeID() == radiograph.GetID()


def test_a_scene_survives_a_bundle(scene: Any, tmp_path: Path) -> None:
    import slicer

    volume = slicer.util.addVolumeFromArray(np.arange(12, dtype=np.int16).reshape(1, 3, 4), name="picture")
    note = scene.AddNewNodeByClass("vtkMRMLTextNode", "note")
    note.SetText("kept")
    assert slicer.util.saveScene(str(tmp_path / "all.mrb"))
    before = slicer.util.arrayFromVolume(volume).copy()
    scene.Clear(0)
    slicer.util.loadScene(str(tmp_path / "all.mrb"))
    assert slicer.util.getNode("note").GetText() == "kept"
    np.testing.assert_array_equal(slicer.util.arrayFromVolume(slicer.util.getNode("picture")), before)


@pytest.mark.parametrize("ending", ["png", "tif", "bmp"])
def test_a_picture_loads_the_right_way_up(scene: Any, tmp_path: Path, ending: str) -> None:
    import slicer
    import vtk
    from PIL import Image

    pixels = np.arange(20 * 12, dtype=np.uint8).reshape(12, 20)
    Image.fromarray(pixels).save(tmp_path / f"chest.{ending}")
    volume = slicer.util.loadVolume(str(tmp_path / f"chest.{ending}"))
    np.testing.assert_array_equal(slicer.util.arrayFromVolume(volume)[0], pixels)
    matrix = vtk.vtkMatrix4x4()
    volume.GetIJKToRASMatrix(matrix)
    np.testing.assert_array_equal(slicer.util.arrayFromVTKMatrix(matrix), np.diag([-1, -1, 1, 1]))
    assert volume.GetStorageNode().GetFileName() == str(tmp_path / f"chest.{ending}")


def test_a_colour_picture_is_a_vector_volume(scene: Any, tmp_path: Path) -> None:
    import slicer
    from PIL import Image

    Image.new("RGB", (8, 6), "red").save(tmp_path / "photo.png")
    volume = slicer.util.loadVolume(str(tmp_path / "photo.png"))
    assert volume.IsA("vtkMRMLVectorVolumeNode")
    assert slicer.util.arrayFromVolume(volume).shape == (1, 6, 8, 3)


def test_a_missing_file_is_an_error(scene: Any) -> None:
    import slicer

    with pytest.raises(RuntimeError, match="No such file"):
        slicer.util.loadVolume("nowhere.png")


def test_the_dicom_database_answers_by_uid(radiograph: Any, rg1: Path) -> None:
    import slicer

    database = slicer.dicomDatabase
    uid = radiograph.GetAttribute("DICOM.instanceUIDs")
    assert database.fileForInstance(uid) == str(rg1.resolve())
    assert database.instanceValue(uid, "0008,0060") == "CR"
    series = database.instanceValue(uid, "0020,000e")
    assert database.filesForSeries(series) == [str(rg1.resolve())]
    assert database.seriesForStudy(database.studyForSeries(series)) == [series]
    assert database.fileForInstance("1.2.3") == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_an_observer_or_a_thread_swallows_is_kept(mrml: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import vtk

    from tests.slicer_host import clear_faults, faults

    def fail(*args: object) -> None:
        raise ValueError("from nowhere")

    clear_faults()
    subject = vtk.vtkObject()
    subject.AddObserver(vtk.vtkCommand.ModifiedEvent, fail)
    subject.Modified()
    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()
    found = faults()
    clear_faults()
    assert [str(fault.error) for fault in found] == ["from nowhere", "from nowhere"]
    assert "worker" in found[1].where


def test_an_install_is_written_down_and_nothing_is_installed(mrml: Any) -> None:
    import slicer
    from slicer.packaging import pip_ensure

    slicer.packaging.calls.clear()
    pip_ensure(["torch==2.13.0", "scipy"])
    assert slicer.packaging.calls == [("torch==2.13.0", "scipy")]


def test_torch_computes_beside_slicer_core(mrml: Any) -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(1, 1, 5, 5)
    assert torch.nn.functional.conv2d(ones, torch.ones(1, 1, 3, 3)).unique().tolist() == [9.0]
