"""Emulation of ``slicer.app.coreIOManager()``: which of MRML's own readers and writers opens a file.

slicer-core has the storage nodes but not Slicer's I/O manager, which ``slicer.util.loadVolume``, ``saveScene`` and the
like call. The reading and writing itself is MRML's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import slicer
import vtk
from PIL import Image, UnidentifiedImageError

_BY_EXTENSION = {
    ".seg.nrrd": "SegmentationFile",
    ".seg.nhdr": "SegmentationFile",
    ".mrk.json": "MarkupsFile",
    ".fcsv": "MarkupsFile",
    ".mrml": "SceneFile",
    ".mrb": "SceneFile",
    ".txt": "TextFile",
    ".json": "TextFile",
    ".xml": "TextFile",
    ".csv": "TableFile",
    ".tsv": "TableFile",
    ".vtk": "ModelFile",
    ".stl": "ModelFile",
}
# Slicer's ITK reads these, slicer-core's does not (it has DICOM, NRRD, NIfTI and MetaImage only): Pillow does here.
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
_READ_BY_STORAGE = {
    "SegmentationFile": ("vtkMRMLSegmentationNode", "vtkMRMLSegmentationStorageNode"),
    "TextFile": ("vtkMRMLTextNode", "vtkMRMLTextStorageNode"),
    "TableFile": ("vtkMRMLTableNode", "vtkMRMLTableStorageNode"),
    "ModelFile": ("vtkMRMLModelNode", "vtkMRMLModelStorageNode"),
}


class CoreIOManager:
    """The calls of qSlicerCoreIOManager that ``slicer.util`` makes."""

    def __init__(self, volumes: Any, markups: Any) -> None:
        self._volumes = volumes
        self._markups = markups

    @staticmethod
    def fileType(file: str | Path) -> str:
        name = Path(file).name.lower()
        return next((kind for ending, kind in _BY_EXTENSION.items() if name.endswith(ending)), "VolumeFile")

    def loadNodes(self, kind: str, properties: dict[str, Any], loaded: Any, messages: Any = None) -> bool:
        """Read one file into the scene and add what it made to the collection ``loaded``; False when it failed."""
        file = str(properties["fileName"])
        if kind == "SceneFile":
            return _load_scene(file, bool(properties.get("clear", True)), messages)
        if not Path(file).is_file():
            if messages is not None:
                messages.AddMessage(vtk.vtkCommand.ErrorEvent, f"No such file: {file}")
            return False
        if kind == "VolumeFile":
            node = self._load_volume(file, properties)
        elif kind == "MarkupsFile":
            node = slicer.mrmlScene.GetNodeByID(self._markups.LoadMarkups(file, properties.get("name"), messages) or "")
        else:
            node = _load_with_storage(file, properties, *_READ_BY_STORAGE[kind])
        if node is None:
            return False
        loaded.AddItem(node)
        return True

    def _load_volume(self, file: str, properties: dict[str, Any]) -> Any:
        logic = self._volumes
        options = (
            logic.LabelMap * bool(properties.get("labelmap"))
            | logic.CenterImage * bool(properties.get("center"))
            | logic.SingleFile * bool(properties.get("singleFile"))
            | logic.AutoWindowLevel * bool(properties.get("autoWindowLevel", True))
            | logic.DiscardOrientation * bool(properties.get("discardOrientation"))
        )
        # The logic makes the name unique.
        name = properties.get("name") or Path(file).name.split(".")[0]
        if file.lower().endswith(_PICTURES):
            node = _load_picture(file, name)
        else:
            node = logic.AddArchetypeVolume(file, name, options)
        if node is not None and properties.get("show", True):
            selection = slicer.app.applicationLogic().GetSelectionNode()
            if node.IsA("vtkMRMLLabelMapVolumeNode"):
                selection.SetActiveLabelVolumeID(node.GetID())
            else:
                selection.SetActiveVolumeID(node.GetID())
            slicer.app.applicationLogic().PropagateVolumeSelection()
        return node

    @staticmethod
    def fileWriterFileType(node: Any) -> str:
        return "SceneFile" if node.IsA("vtkMRMLScene") else "NodeFile"

    def saveNodes(self, kind: str, properties: dict[str, Any], messages: Any = None) -> bool:
        """Write the scene (``SceneFile``: .mrb, .mrml) or one node through its own storage node."""
        file = str(properties["fileName"])
        if kind == "SceneFile":
            if file.endswith(".mrb"):
                return bool(slicer.mrmlScene.WriteToMRB(file, None, messages))
            if file.endswith(".mrml"):
                slicer.mrmlScene.SetURL(file)
                slicer.mrmlScene.SetRootDirectory(str(Path(file).parent))
                return bool(slicer.mrmlScene.Commit(file, messages))
            return bool(slicer.mrmlScene.SaveSceneToSlicerDataBundleDirectory(file, None, messages))
        node = slicer.mrmlScene.GetNodeByID(properties["nodeID"])
        if node.GetStorageNode() is None:
            node.AddDefaultStorageNode(file)
        node.GetStorageNode().SetFileName(file)
        return bool(node.GetStorageNode().WriteData(node))

    def exportNodes(
        self, nodes: list[str], files: list[str], properties: dict[str, Any], harden: bool = False, messages: Any = None
    ) -> bool:
        """Write nodes to files without touching their storage nodes."""
        done = []
        for node_id, file in zip(nodes, files, strict=True):
            node = slicer.mrmlScene.GetNodeByID(node_id)
            storage = node.CreateDefaultStorageNode()
            storage.UnRegister(None)
            storage.SetFileName(file)
            done.append(bool(storage.WriteData(node)))
        return all(done)

    @staticmethod
    def extractKnownExtension(file: str, node: Any) -> str:
        name = Path(file).name.lower()
        known = next((ending for ending in _BY_EXTENSION if name.endswith(ending)), None)
        return known or Path(file).suffix

    @staticmethod
    def fileWriterExtensions(node: Any) -> list[str]:
        storage = node.CreateDefaultStorageNode()
        storage.UnRegister(None)
        kinds = storage.GetSupportedWriteFileTypes()
        return [kinds.GetValue(i) for i in range(kinds.GetNumberOfValues())]


def _load_scene(file: str, clear: bool, messages: Any) -> bool:
    scene = slicer.mrmlScene
    if file.endswith(".mrb"):
        return bool(scene.ReadFromMRB(file, clear, messages))
    scene.SetURL(file)
    return bool(scene.Connect(messages) if clear else scene.Import(messages))


def _load_picture(file: str, name: str) -> Any:
    """A volume of a picture, as ITK gives it: row 0 on top, 1 mm pixels, columns to the left, rows to the back; colour
    as a vector volume."""
    try:
        with Image.open(file) as picture:
            pixels = np.asarray(
                picture.convert("L" if picture.mode == "1" else "RGB") if picture.mode in "1P" else picture
            )
    except UnidentifiedImageError:
        return None
    kind = "vtkMRMLScalarVolumeNode" if pixels.ndim == 2 else "vtkMRMLVectorVolumeNode"
    unique = slicer.mrmlScene.GetUniqueNameByString(name)
    node = slicer.util.addVolumeFromArray(
        np.ascontiguousarray(pixels[np.newaxis]), np.diag([-1.0, -1.0, 1.0, 1.0]), unique, kind
    )
    node.AddDefaultStorageNode(file)
    node.GetStorageNode().SetFileName(file)
    node.GetStorageNode().GetStoredTime().Modified()
    return node


def _load_with_storage(file: str, properties: dict[str, Any], node_class: str, storage_class: str) -> Any:
    scene = slicer.mrmlScene
    name = properties.get("name") or scene.GetUniqueNameByString(Path(file).name.split(".")[0])
    node = scene.AddNewNodeByClass(node_class, name)
    storage = scene.AddNewNodeByClass(storage_class)
    storage.SetFileName(file)
    if not storage.ReadData(node):
        scene.RemoveNode(storage)
        scene.RemoveNode(node)
        return None
    node.SetAndObserveStorageNodeID(storage.GetID())
    if node.IsA("vtkMRMLDisplayableNode"):
        node.CreateDefaultDisplayNodes()
    return node
