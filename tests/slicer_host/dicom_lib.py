"""Emulation of ``DICOMLib``, the Python half of Slicer's DICOM module: of the plugins, the one that is surest loads.

Of the subject hierarchy only the series is made, without its patient and study.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import slicer


class DICOMLoadable:
    """One way to load some files, as a plugin offers it."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.name = "Unknown"
        self.tooltip = "No further information available"
        self.warning = ""
        self.selected = False
        self.confidence = 0.5


class DICOMPlugin:
    """What a plugin derives from."""

    def __init__(self) -> None:
        self.loadType = "Generic DICOM"
        self.tags = {
            "seriesDescription": "0008,103E",
            "seriesNumber": "0020,0011",
            "frameOfReferenceUID": "0020,0052",
            "seriesInstanceUID": "0020,000E",
            "modality": "0008,0060",
            "instanceUID": "0008,0018",
            "sopClassUID": "0008,0016",
        }

    def examineForImport(self, lists: Iterable[Sequence[str]]) -> list[DICOMLoadable]:
        return [loadable for files in lists for loadable in self.examineFiles(files)]

    def examineFiles(self, files: Sequence[str]) -> list[DICOMLoadable]:
        return []

    def load(self, loadable: DICOMLoadable) -> bool:
        return True

    def examineForExport(self, item: int) -> list[Any]:
        return []

    def export(self, exportables: Any) -> str:
        return ""

    def defaultSeriesNodeName(self, series: str) -> str:
        """``3: PA``: the series' number and description."""
        files = slicer.dicomDatabase.filesForSeries(series, 1)
        if not files:
            return "Unnamed Series"
        name = slicer.dicomDatabase.fileValue(files[0], self.tags["seriesDescription"]) or "Unnamed Series"
        number = slicer.dicomDatabase.fileValue(files[0], self.tags["seriesNumber"])
        return f"{number}: {name}" if number else name

    def addSeriesInSubjectHierarchy(self, loadable: DICOMLoadable, dataNode: Any) -> None:
        hierarchy = slicer.vtkMRMLSubjectHierarchyNode.GetSubjectHierarchyNode(slicer.mrmlScene)
        constants = slicer.vtkMRMLSubjectHierarchyConstants
        item = hierarchy.CreateItem(hierarchy.GetSceneItemID(), dataNode)
        series = slicer.dicomDatabase.fileValue(loadable.files[0], self.tags["seriesInstanceUID"])
        hierarchy.SetItemUID(item, constants.GetDICOMUIDName(), series)
        instances = " ".join(slicer.dicomDatabase.instanceForFile(file) for file in loadable.files)
        hierarchy.SetItemUID(item, constants.GetDICOMInstanceUIDName(), instances)
        references = " ".join(getattr(loadable, "referencedInstanceUIDs", ()))
        if references:
            hierarchy.SetItemAttribute(item, constants.GetDICOMReferencedInstanceUIDsAttributeName(), references)


class DICOMScalarVolumePluginClass(DICOMPlugin):
    """Slicer's plugin for images: one volume of each series."""

    def examineFiles(self, files: Sequence[str]) -> list[DICOMLoadable]:
        if slicer.dicomDatabase.fileValue(files[0], self.tags["modality"]) in ("SEG", "SR", "PR"):
            return []
        loadable = DICOMLoadable()
        loadable.files = list(files)
        loadable.name = self.defaultSeriesNodeName(
            slicer.dicomDatabase.fileValue(files[0], self.tags["seriesInstanceUID"])
        )
        loadable.selected = True
        return [loadable]

    def load(self, loadable: DICOMLoadable) -> bool:
        options = {"name": loadable.name, "singleFile": len(loadable.files) == 1}
        volume = slicer.util.loadVolume(loadable.files[0], options)
        instances = [slicer.dicomDatabase.instanceForFile(file) for file in loadable.files]
        volume.SetAttribute("DICOM.instanceUIDs", " ".join(instances))
        self.addSeriesInSubjectHierarchy(loadable, volume)
        return True


def loadByInstanceUID(instance: str) -> list[str]:
    """Load the series of an instance with the plugin that is surest of it.

    Returns:
        The IDs of the data nodes (those that can be saved) that came into the scene.
    """
    database = slicer.dicomDatabase
    return loadSeriesByUID([database.seriesForFile(database.fileForInstance(instance))])


def loadSeriesByUID(series: Sequence[str]) -> list[str]:
    """The same for series."""
    before = set(_data_nodes())
    plugins = [kind() for kind in slicer.modules.dicomPlugins.values()]
    for uid in series:
        files = slicer.dicomDatabase.filesForSeries(uid)
        offers = [(one.confidence, plugin, one) for plugin in plugins for one in plugin.examineForImport([files])]
        if not offers:
            raise RuntimeError(f"no plugin can load the series {uid}")
        _, plugin, loadable = max(offers, key=lambda offer: offer[0])
        plugin.load(loadable)
    return [node for node in _data_nodes() if node not in before]


def _data_nodes() -> list[str]:
    return [
        node.GetID() for node in slicer.util.getNodesByClass("vtkMRMLStorableNode") if not node.GetHideFromEditors()
    ]


class qSlicerDICOMExportable:
    """What a plugin offers to export: attributes and DICOM tags."""

    def __init__(self) -> None:
        self.name = ""
        self.tooltip = ""
        self.directory = ""
        self.pluginClass = ""
        self.subjectHierarchyItemID = 0
        self.confidence = 0.0
        self._tags: dict[str, str] = {}

    def setTag(self, name: str, value: str = "") -> None:
        self._tags[name] = value

    def tag(self, name: str) -> str:
        return self._tags.get(name, "")


def install() -> None:
    """Make ``import DICOMLib`` work and register Slicer's plugin for images."""
    utilities = ModuleType("DICOMLib.DICOMUtils", __doc__)
    utilities.loadByInstanceUID = loadByInstanceUID
    utilities.loadSeriesByUID = loadSeriesByUID
    module = ModuleType("DICOMLib", __doc__)
    module.DICOMLoadable = DICOMLoadable
    module.DICOMPlugin = DICOMPlugin
    module.DICOMUtils = utilities
    sys.modules["DICOMLib"] = module
    sys.modules["DICOMLib.DICOMUtils"] = utilities
    slicer.qSlicerDICOMExportable = qSlicerDICOMExportable
    slicer.modules.dicomPlugins["DICOMScalarVolumePlugin"] = DICOMScalarVolumePluginClass
