"""A session in the scene: saved with it, found by what it refers to, gone with its volume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

slicer = pytest.importorskip("slicer", reason="slicer-core is not installed")

from XFlowSlicerLib import nodes, record, volumes  # noqa: E402
from XFlowSlicerLib.segments import RadiographSegments  # noqa: E402

from tests.xflow_slicer.answers import answer  # noqa: E402
from xflow_core.domain.trace import Mask  # noqa: E402

TEXT = json.dumps(
    {"answers": ["Erguß, 胸水", 'quoted "text"', "<xml> & more"], "lines": "one\ntwo"}, ensure_ascii=False
)


@pytest.fixture
def volume(scene: Any) -> Any:
    return slicer.util.addVolumeFromArray(np.zeros((1, 8, 9), np.int16), name="chest")


def test_a_session_is_kept_once_and_found_by_its_volume(scene: Any, volume: Any) -> None:
    other = slicer.util.addVolumeFromArray(np.zeros((1, 8, 9), np.int16), name="chest")
    assert record.load(volume) is None
    first = record.save(volume, "one")
    assert record.save(volume, TEXT) is first
    record.save(other, "other")
    assert (record.load(volume), record.load(other)) == (TEXT, "other")
    record.remove(volume)
    assert (record.load(volume), record.load(other)) == (None, "other")


def test_a_users_text_of_the_same_name_is_not_taken_for_it(scene: Any, volume: Any) -> None:
    theirs = scene.AddNewNodeByClass("vtkMRMLTextNode", "chest session")
    theirs.SetText("my notes")
    record.save(volume, TEXT)
    record.remove(volume)
    assert theirs.GetText() == "my notes"
    assert nodes.alive(theirs)


@pytest.mark.parametrize("text", ["{}", TEXT, json.dumps({"long": "x" * 300_000})])
def test_it_survives_saving_and_reopening_with_all_nodes_renamed(
    scene: Any, volume: Any, tmp_path: Path, text: str
) -> None:
    results = RadiographSegments(volume, volumes.frame_of(volume))
    node = record.save(volume, text)
    node.SetName("something else")
    volume.SetName("also renamed")
    results.close()
    for turn in range(2):
        file = str(tmp_path / f"{turn}.mrb")
        assert scene.WriteToMRB(file)
        scene.Clear(0)
        assert scene.ReadFromMRB(file, True)
        volume = slicer.util.getNode("also renamed")
        assert record.load(volume) == text
    assert record.save(volume, "later") is slicer.util.getNode("something else")
    file = str(tmp_path / "later.mrb")
    assert scene.WriteToMRB(file)
    scene.Clear(0)
    assert scene.ReadFromMRB(file, True)
    assert record.load(slicer.util.getNode("also renamed")) == "later"
    assert scene.GetNumberOfNodesByClass("vtkMRMLTextNode") == 1


def test_a_scene_imported_twice_keeps_two_sessions_apart(scene: Any, volume: Any, tmp_path: Path) -> None:
    record.save(volume, TEXT)
    file = str(tmp_path / "scene.mrb")
    assert scene.WriteToMRB(file)
    assert scene.ReadFromMRB(file, False)
    first, second = slicer.util.getNodesByClass("vtkMRMLScalarVolumeNode")
    assert record.load(first) == record.load(second) == TEXT
    record.save(second, "second")
    assert (record.load(first), record.load(second)) == (TEXT, "second")


def test_it_refers_to_the_results(scene: Any, volume: Any) -> None:
    results = RadiographSegments(volume, volumes.frame_of(volume))
    assert record.save(volume, "{}").GetNodeReference(record.SEGMENTATION) is None
    mask = np.zeros((8, 9), bool)
    mask[2:4, 3:5] = True
    results.write(answer(mask, size=(8, 9)))
    assert record.save(volume, "{}").GetNodeReference(record.SEGMENTATION) is results.node
    scene.RemoveNode(results.node)
    assert record.save(volume, "{}").GetNodeReference(record.SEGMENTATION) is None
    results.close()


def test_a_volume_that_is_gone_keeps_nothing(scene: Any, volume: Any) -> None:
    scene.RemoveNode(volume)
    assert record.save(volume, "{}") is None
    assert record.load(volume) is None
    record.remove(volume)
    assert scene.GetNumberOfNodesByClass("vtkMRMLTextNode") == 0


def test_the_session_of_a_deleted_volume_is_taken_out(scene: Any, volume: Any) -> None:
    other = slicer.util.addVolumeFromArray(np.zeros((1, 8, 9), np.int16), name="other")
    record.save(volume, "{}")
    record.save(other, "{}")
    scene.RemoveNode(volume)
    record.sweep(scene)
    (left,) = slicer.util.getNodesByClass("vtkMRMLTextNode")
    assert left.GetNodeReference(nodes.VOLUME) is other


def test_a_closed_scene_keeps_nothing(scene: Any, volume: Any) -> None:
    record.save(volume, "{}")
    scene.Clear(0)
    assert record.save(volume, "{}") is None
    assert record.load(volume) is None


def test_a_session_of_many_masks_stays_small(scene: Any, volume: Any, tmp_path: Path) -> None:
    """Seven answers with ten masks each, of a 3000 x 3000 image: what a long session holds."""
    rows, columns = np.mgrid[:3000, :3000]
    masks = [
        Mask.of((rows - 1800) ** 2 + (columns - 900) ** 2 + 40_000 * np.sin(columns / (7 + n)) < 400_000)
        for n in range(5)
    ]
    text = json.dumps([[mask.to_json() for mask in masks * 2] for _ in range(7)])
    record.save(volume, text)
    file = tmp_path / "scene.mrb"
    assert scene.WriteToMRB(str(file))
    print(f"{len(text) / 1024:.0f} KB of text, {file.stat().st_size / 1024:.0f} KB of scene")
    assert len(text) < 1_000_000
    assert file.stat().st_size < 500_000
