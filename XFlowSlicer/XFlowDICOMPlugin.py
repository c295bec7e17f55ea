"""XFlow in Slicer's DICOM module and "Add data": segmentations of radiographs, reports and PNG masks; and the export.

Slicer's own way to a DICOM SEG goes through dcmqi, which fails without a Frame of Reference; so of a SEG of radiographs
this plugin is the surest. Of any other (CT, MR, ..) it has nothing to say. The work is done in ``XFlowSlicerLib``,
which is imported when there is something to do: Slicer makes every plugin at its start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import slicer
import vtk
from DICOMLib import DICOMLoadable, DICOMPlugin
from slicer.i18n import tr as _

CONFIDENCE = 0.99
"""Above the 0.95 of QuantitativeReporting's plugins: where two can load a series, Slicer takes the surer one."""


class XFlowDICOMPluginClass(DICOMPlugin):
    """What Slicer's DICOM module asks."""

    def __init__(self) -> None:
        super().__init__()
        self.loadType = "XFlow"
        self.tags["modality"] = "0008,0060"
        self.tags["manufacturer"] = "0008,0070"
        self.tags["instanceUID"] = "0008,0018"

    # Import.

    def examineForImport(self, fileLists: Iterable[Sequence[str]]) -> list[DICOMLoadable]:
        """What can be loaded of each list of files: the segmentations of radiographs, and XFlow's reports."""
        return [loadable for files in fileLists for file in files for loadable in self._examine(file)]

    def load(self, loadable: DICOMLoadable) -> bool:
        """Load what was offered; what stands against it is shown as one sentence."""
        from XFlowSlicerLib import dicom_import

        from xflow_core.domain.errors import XFlowError

        file = loadable.files[0]
        try:
            if self._value(file, "modality") == "SR":
                nodes = [dicom_import.load_report(file)]
            else:
                nodes = dicom_import.load_segmentation(file)
        except XFlowError as problem:
            slicer.util.errorDisplay(str(problem))
            return False
        for node in nodes:
            self.addSeriesInSubjectHierarchy(loadable, node)
        return True

    # Export.

    def examineForExport(self, subjectHierarchyItemID: int) -> list[Any]:
        """The results of a radiograph can be exported; any other item is left to other plugins."""
        node = _hierarchy().GetItemDataNode(subjectHierarchyItemID)
        if node is None or node.GetAttribute("XFlow.role") != "results":
            return []
        exportable = slicer.qSlicerDICOMExportable()
        exportable.name = _("XFlow results")
        exportable.tooltip = _("Write the segmentation, the report and the presentation state of XFlow's answers")
        exportable.subjectHierarchyItemID = subjectHierarchyItemID
        exportable.pluginClass = self.__module__
        exportable.confidence = 1.0
        exportable.setTag("Modality", "SEG")
        return [exportable]

    def export(self, exportables: Iterable[Any]) -> str:
        """Write what was chosen, and add it to the DICOM database; a sentence when it failed, else nothing."""
        from XFlowSlicerLib import dicom_export

        from xflow_core.domain.errors import XFlowError

        for exportable in exportables:
            node = _hierarchy().GetItemDataNode(exportable.subjectHierarchyItemID)
            try:
                collected = dicom_export.collect_saved(node)
                written = dicom_export.write(collected, exportable.directory)
            except XFlowError as problem:
                return str(problem)
            sentences = (*written.sentences, *map(dicom_export.add_to_database, written.dicom))
            for sentence in filter(None, sentences):
                logging.info("XFlow: %s", sentence)
        return ""

    def _examine(self, file: str) -> list[DICOMLoadable]:
        modality = self._value(file, "modality")
        if modality == "SEG":
            return self._segmentation(file)
        if modality == "SR" and self._value(file, "manufacturer") == "XFlow":
            return self._report(file)
        return []

    def _segmentation(self, file: str) -> list[DICOMLoadable]:
        from XFlowSlicerLib import dicom_import

        from xflow_core.domain.errors import ExportError

        try:
            header = dicom_import.read_seg_header(file)
        except ExportError as problem:
            logging.warning("XFlow: %s", problem)
            return []
        if header is None or not header.of_radiographs:
            return []
        loadable = _loadable(file, header.name, _("DICOM SEG of a radiograph, loaded in the radiograph's pixels"))
        loadable.referencedInstanceUIDs = list(header.images)
        if not any(map(dicom_import.radiograph_is_known, header.images)):
            loadable.warning = _("Its radiograph is neither in the scene nor in the DICOM database; import it first.")
        return [loadable]

    def _report(self, file: str) -> list[DICOMLoadable]:
        from XFlowSlicerLib import dicom_import

        from xflow_core.domain.errors import ExportError

        try:
            report = dicom_import.read_report(file)
        except ExportError as problem:
            logging.warning("XFlow: %s", problem)
            return []
        if report is None:
            return []
        loadable = _loadable(file, _("XFlow report"), _("What XFlow was asked, and what it found present and absent"))
        loadable.referencedInstanceUIDs = list(report.images)
        return [loadable]

    def _value(self, file: str, tag: str) -> str:
        return str(slicer.dicomDatabase.fileValue(file, self.tags[tag]))


def _hierarchy() -> Any:
    return slicer.vtkMRMLSubjectHierarchyNode.GetSubjectHierarchyNode(slicer.mrmlScene)


def _loadable(file: str, name: str, tooltip: str) -> DICOMLoadable:
    loadable = DICOMLoadable()
    loadable.files = [file]
    loadable.name = name
    loadable.tooltip = tooltip
    loadable.selected = True
    loadable.confidence = CONFIDENCE
    return loadable


class XFlowDICOMPluginFileReader:
    """Slicer's "Add data" and drag and drop: PNG masks onto their radiograph. Slicer finds the class by its name."""

    def __init__(self, parent: Any) -> None:
        self.parent = parent

    def description(self) -> str:
        return _("Radiograph mask (XFlow)")

    def fileType(self) -> str:
        return "XFlowMask"

    def extensions(self) -> list[str]:
        return [_("Radiograph mask") + " (*.png)"]

    def canLoadFileConfidence(self, filePath: str) -> float:
        """The default for a mask of a loaded radiograph; offered for any other PNG once there is a radiograph."""
        if not filePath.lower().endswith(".png") or not slicer.util.getNodesByClass("vtkMRMLScalarVolumeNode"):
            return 0.0
        from XFlowSlicerLib import dicom_import

        return dicom_import.mask_confidence(filePath)

    def load(self, properties: dict[str, Any]) -> bool:
        from XFlowSlicerLib import dicom_import

        from xflow_core.domain.errors import XFlowError

        file = properties["fileName"]
        try:
            node = dicom_import.load_mask(file, dicom_import.radiograph_of_mask(file))
        except XFlowError as problem:
            self.parent.userMessages().AddMessage(vtk.vtkCommand.ErrorEvent, str(problem))
            return False
        self.parent.loadedNodes = [node.GetID()]
        return True


class XFlowDICOMPlugin:
    """Slicer finds the plugin as a scripted module without a panel."""

    def __init__(self, parent: Any) -> None:
        parent.title = _("XFlow DICOM plugin")
        parent.categories = ["Developer Tools.DICOM Plugins"]
        parent.contributors = ["The XFlow developers"]
        parent.dependencies = ["DICOM"]
        parent.hidden = True
        parent.helpText = _(
            "Loads DICOM segmentations of radiographs, XFlow's reports and PNG masks. Research software, not for "
            "clinical use."
        )
        parent.acknowledgementText = ""
        # Slicer may find this module before its DICOM module, which makes the table otherwise.
        if not hasattr(slicer.modules, "dicomPlugins"):
            slicer.modules.dicomPlugins = {}
        slicer.modules.dicomPlugins["XFlowDICOMPlugin"] = XFlowDICOMPluginClass
