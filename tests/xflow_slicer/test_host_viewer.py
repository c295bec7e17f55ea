"""The viewer shows what slicer-core draws, takes a person's mouse and keys, and times its event loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def picture(slice_viewer: Any, tmp_path: Path) -> Any:
    """A 200 x 300 mm picture, left half dark, right half bright, shown."""
    import slicer

    pixels = np.zeros((1, 200, 300), np.uint8)
    pixels[:, :, 150:] = 200
    volume = slicer.util.addVolumeFromArray(pixels, np.diag([-1.0, -1.0, 1.0, 1.0]), "picture")
    volume.CreateDefaultDisplayNodes()
    volume.GetDisplayNode().AutoWindowLevelOff()
    volume.GetDisplayNode().SetWindowLevelMinMax(0, 200)
    slicer.util.setSliceViewerLayers(background=volume, fit=True)
    slice_viewer.run_for(0.1)
    return volume


def color_at(viewer: Any, ras: tuple[float, float, float]) -> tuple[int, int, int]:
    image = viewer.slice_image()
    return image.pixelColor(viewer.slice.position_of(ras) * image.devicePixelRatio()).getRgb()[:3]


def test_the_image_is_drawn_where_it_lies(slice_viewer: Any, picture: Any) -> None:
    assert color_at(slice_viewer, (-100.0, -100.0, 0.0)) == (0, 0, 0)
    assert color_at(slice_viewer, (-200.0, -100.0, 0.0)) == (255, 255, 255)


def add_segment(picture: Any, scene: Any) -> None:
    """A red square, 80 to 120 mm to the left and to the back."""
    import slicer

    node = scene.AddNewNodeByClass("vtkMRMLSegmentationNode", "segmentation")
    node.CreateDefaultDisplayNodes()
    node.SetReferenceImageGeometryParameterFromVolumeNode(picture)
    segment = node.GetSegmentation().AddEmptySegment("effusion", "Effusion", (1.0, 0.0, 0.0))
    mask = np.zeros((1, 200, 300), np.uint8)
    mask[:, 80:120, 80:120] = 1
    slicer.util.updateSegmentBinaryLabelmapFromArray(mask, node, segment, picture)


def test_a_segment_is_drawn_over_it(slice_viewer: Any, picture: Any, scene: Any) -> None:
    add_segment(picture, scene)
    slice_viewer.run_for(0.1)
    red, green, _ = color_at(slice_viewer, (-100.0, -100.0, 0.0))
    assert red > 100 > green
    assert color_at(slice_viewer, (-60.0, -100.0, 0.0)) == (0, 0, 0)


def test_a_point_is_dragged_with_the_mouse(slice_viewer: Any, picture: Any, scene: Any) -> None:
    import vtk

    from tests.slicer_host import hands

    points = scene.AddNewNodeByClass("vtkMRMLMarkupsFiducialNode", "points")
    points.AddControlPoint(vtk.vtkVector3d(-100, -100, 0), "+1")
    ended: list[float] = []
    points.AddObserver(points.PointEndInteractionEvent, lambda *_: ended.append(time.monotonic()))
    slice_viewer.run_for(0.1)
    hands.drag(slice_viewer.slice, (-100, -100, 0), (-150, -60, 0))
    where = np.zeros(3)
    points.GetNthControlPointPositionWorld(0, where)
    assert np.abs(where - (-150, -60, 0)).max() < 2.0
    assert len(ended) == 1


def test_a_box_is_dragged_by_its_corner(slice_viewer: Any, picture: Any, scene: Any) -> None:
    from tests.slicer_host import hands

    box = scene.AddNewNodeByClass("vtkMRMLMarkupsROINode", "box")
    box.SetCenter(-150, -100, 0)
    box.SetSize(80, 60, 10)
    box.GetDisplayNode().SetScaleHandleVisibility(True)
    slice_viewer.run_for(0.2)
    hands.drag(slice_viewer.slice, (-110, -70, 0), (-100, -50, 0))
    size = np.array(box.GetSize())
    assert np.abs(size - (90, 80, 10)).max() < 3.0


def test_the_crosshair_knows_the_cursor(slice_viewer: Any, picture: Any, scene: Any) -> None:
    from tests.slicer_host import hands

    hands.hover(slice_viewer.slice, (-120.0, -90.0, 0.0))
    where = [0.0, 0.0, 0.0]
    assert scene.GetFirstNodeByClass("vtkMRMLCrosshairNode").GetCursorPositionRAS(where)
    assert np.abs(np.array(where) - (-120, -90, 0)).max() < 1.0


def test_keys_reach_shortcuts(slice_viewer: Any, application: Any) -> None:
    import qt

    from tests.slicer_host import hands

    pressed: list[str] = []
    for keys in ("[", "]", "Ctrl+Z"):
        shortcut = qt.QShortcut(qt.QKeySequence(keys), slice_viewer.window)
        shortcut.connect("activated()", lambda keys=keys: pressed.append(keys))
    for keys in ("]", "[", "Ctrl+Z"):
        hands.key(slice_viewer.slice, keys)
    assert pressed == ["]", "[", "Ctrl+Z"]


def test_a_screenshot_holds_the_drawn_image(slice_viewer: Any, picture: Any, tmp_path: Path) -> None:
    from PIL import Image

    shot = np.asarray(Image.open(slice_viewer.screenshot(tmp_path / "window.png")).convert("L"))
    scale = slice_viewer.slice.devicePixelRatio()
    assert shot.shape == (700 * scale, 900 * scale)
    assert (shot == 255).mean() > 0.1


def test_the_view_goes_on_after_the_scene_is_closed_and_reopened(
    slice_viewer: Any, picture: Any, scene: Any, tmp_path: Path
) -> None:
    import slicer

    add_segment(picture, scene)
    assert slicer.util.saveScene(str(tmp_path / "scene.mrb"))
    scene.Clear(0)
    slice_viewer.run_for(0.1)
    assert color_at(slice_viewer, (-200.0, -100.0, 0.0)) == (0, 0, 0)
    slicer.util.loadScene(str(tmp_path / "scene.mrb"))
    slice_viewer.run_for(0.2)
    red, green, _ = color_at(slice_viewer, (-100.0, -100.0, 0.0))
    assert red > 100 > green
    assert color_at(slice_viewer, (-200.0, -100.0, 0.0)) == (255, 255, 255)


def test_the_watch_catches_a_sleep_of_100_ms(slice_viewer: Any) -> None:
    import qt

    slice_viewer.run_for(0.2)
    slice_viewer.watch.reset()
    timer = qt.QTimer()
    timer.name = "sleeper"
    timer.singleShot = True
    timer.connect("timeout()", lambda: time.sleep(0.1))
    timer.start(1)
    slice_viewer.run_for(0.3)
    assert 0.1 <= slice_viewer.watch.longest_call < 0.15
    assert "QTimer sleeper" in slice_viewer.watch.longest_call_event
    assert slice_viewer.watch.over(0.05)


def test_a_dialogue_that_waits_is_not_a_frozen_window(slice_viewer: Any) -> None:
    import qt

    slice_viewer.run_for(0.2)
    slice_viewer.watch.reset()
    dialogue = qt.QDialog()
    qt.QTimer.singleShot(0, dialogue.exec)
    qt.QTimer.singleShot(250, dialogue.accept)
    slice_viewer.run_for(0.4)
    assert slice_viewer.watch.longest_call < 0.1


def test_a_widget_that_nobody_could_click_cannot_be_clicked(slice_viewer: Any) -> None:
    import qt

    from tests.slicer_host import hands

    button = qt.QPushButton("Ask", slice_viewer.window)
    with pytest.raises(RuntimeError, match="not visible"):
        hands.click(button)
    button.show()
    button.enabled = False
    with pytest.raises(RuntimeError, match="disabled"):
        hands.click(button)


def test_text_is_typed_and_a_button_clicked(slice_viewer: Any) -> None:
    import qt

    from tests.slicer_host import hands

    line, button = qt.QLineEdit(slice_viewer.window), qt.QPushButton("Ask", slice_viewer.window)
    line.setGeometry(20, 40, 200, 30)
    button.setGeometry(20, 80, 100, 30)
    line.show()
    button.show()
    clicked: list[str] = []
    button.connect("clicked()", lambda: clicked.append(line.text))
    hands.type(line, "effusion, left?")
    hands.click(button)
    assert clicked == ["effusion, left?"]


def test_a_study_is_loaded_from_its_folder(slice_viewer: Any, scene: Any, rg1: Path, tmp_path: Path) -> None:
    import pydicom
    import slicer
    from pydicom.uid import generate_uid

    for number in (1, 2):
        header = pydicom.dcmread(rg1)
        header.SeriesInstanceUID, header.SeriesNumber = generate_uid(), number
        header.SOPInstanceUID = header.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        header.save_as(tmp_path / f"{number}.dcm")
    slice_viewer.load(tmp_path)
    volumes = slicer.util.getNodesByClass("vtkMRMLScalarVolumeNode")
    assert [volume.GetName()[0] for volume in volumes] == ["1", "2"]
    assert slice_viewer.slice.sliceLogic().GetBackgroundLayer().GetVolumeNode() is volumes[0]


def test_the_viewer_can_be_started_by_hand(application: Any, rg1: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    from tests.slicer_host.viewer import ROOT

    command = [sys.executable, "-m", "tests.slicer_host", str(rg1), "--screenshot", str(tmp_path / "window.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "window.png").stat().st_size > 100_000


def test_an_event_is_timed_in_processor_time_too(slice_viewer: Any) -> None:
    import qt

    def compute() -> None:
        end = time.thread_time() + 0.06
        while time.thread_time() < end:
            pass

    slice_viewer.run_for(0.2)
    slice_viewer.watch.reset()
    qt.QTimer.singleShot(0, compute)
    qt.QTimer.singleShot(1, lambda: time.sleep(0.06))
    slice_viewer.run_for(0.3)
    computed, slept = slice_viewer.watch.over(0.05)
    assert computed.processor > 0.05 > slept.processor


def test_a_row_is_clicked_and_an_entry_chosen(slice_viewer: Any, scene: Any) -> None:
    import qt
    import slicer

    from tests.slicer_host import hands

    table = qt.QTableWidget(50, 2, slice_viewer.window)
    table.setGeometry(20, 40, 300, 120)
    combo = slicer.qMRMLNodeComboBox(slice_viewer.window)
    combo.nodeTypes = ["vtkMRMLTextNode"]
    combo.setGeometry(20, 200, 300, 30)
    combo.setMRMLScene(scene)
    for widget in (table, combo):
        widget.show()
    scene.AddNewNodeByClass("vtkMRMLTextNode", "first")
    second = scene.AddNewNodeByClass("vtkMRMLTextNode", "second")
    hands.click_row(table, 40, 1)
    assert (table.currentRow(), table.currentColumn()) == (40, 1)
    hands.choose(combo, "second")
    assert combo.currentNode() is second
    with pytest.raises(LookupError, match="not 'third'"):
        hands.choose(combo, "third")
