"""The host finds, shows and takes down a scripted module, and loads DICOM through its plugins, as Slicer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SAMPLE = """
import slicer
from slicer.ScriptedLoadableModule import *
from slicer.i18n import tr as _
from slicer.util import VTKObservationMixin


class Sample(ScriptedLoadableModule):
    def __init__(self, parent):
        ScriptedLoadableModule.__init__(self, parent)
        parent.title = _("Sample")


class SampleWidget(ScriptedLoadableModuleWidget, VTKObservationMixin):
    def __init__(self, parent=None):
        ScriptedLoadableModuleWidget.__init__(self, parent)
        VTKObservationMixin.__init__(self)
        self.closed = 0

    def setup(self):
        import qt
        ScriptedLoadableModuleWidget.setup(self)
        self.layout.addWidget(qt.QLabel("Sample"))
        self.logic = SampleLogic()
        self.addObserver(slicer.mrmlScene, slicer.mrmlScene.EndCloseEvent, self.onClose)

    def onClose(self, caller, event):
        self.closed += 1

    def cleanup(self):
        self.removeObservers()
        self.cleaned = True


class SampleLogic(ScriptedLoadableModuleLogic):
    pass


class SampleTest(ScriptedLoadableModuleTest):
    ran = []

    def test_sample(self):
        self.delayDisplay("running")
        self.ran.append("sample")
"""


@pytest.fixture
def sample(application: Any, scene: Any, tmp_path: Path) -> Any:
    from tests.slicer_host.scripted_module import load_module

    (tmp_path / "Resources").mkdir()
    (tmp_path / "Sample.py").write_text(SAMPLE, encoding="utf-8")
    description, panel = load_module(tmp_path / "Sample.py")
    panel.setup()
    yield description, panel
    panel.parent.delete()


def test_a_module_is_found_and_set_up(sample: Any, tmp_path: Path) -> None:
    import slicer

    description, panel = sample
    assert description.title == "Sample"
    assert slicer.modules.sample.path == str(tmp_path / "Sample.py")
    assert panel.resourcePath("UI/Sample.ui") == str(tmp_path / "Resources" / "UI" / "Sample.ui")
    assert slicer.util.getModule("Sample").widgetRepresentation() is panel
    assert panel.parent.mrmlScene() is slicer.mrmlScene


def test_a_parameter_node_stays_one_over_a_closed_scene(sample: Any, scene: Any) -> None:
    _, panel = sample
    node = panel.logic.getParameterNode()
    assert panel.logic.getParameterNode() is node
    scene.Clear(0)
    assert panel.closed == 1
    assert panel.logic.getParameterNode().GetAttribute("ModuleName") == "Sample"


def test_a_module_is_told_before_it_goes(sample: Any, application: Any, scene: Any) -> None:
    _, panel = sample
    application.moduleManager().unload("Sample")
    scene.Clear(0)
    assert panel.cleaned
    assert panel.closed == 0


def test_a_modules_own_test_runs(sample: Any) -> None:
    import sys

    import slicer

    slicer.selfTests["Sample"]()
    assert sys.modules["Sample"].SampleTest.ran == ["sample"]


def test_the_surest_plugin_loads_a_dicom_series(scene: Any, rg1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import slicer
    from DICOMLib import DICOMLoadable, DICOMPlugin, DICOMUtils

    class Sure(DICOMPlugin):
        def examineForImport(self, fileLists: Any) -> list[Any]:
            loadable = DICOMLoadable()
            loadable.files = list(fileLists[0])
            loadable.confidence = 0.9
            return [loadable]

        def load(self, loadable: Any) -> bool:
            slicer.mrmlScene.AddNewNodeByClass("vtkMRMLTextNode", "sure")
            return True

    slicer.dicomDatabase.initializeDatabase()
    slicer.dicomDatabase.insert(rg1)
    instance = slicer.dicomDatabase.instanceForFile(rg1)
    (image,) = DICOMUtils.loadByInstanceUID(instance)
    assert scene.GetNodeByID(image).GetAttribute("DICOM.instanceUIDs") == instance
    monkeypatch.setitem(slicer.modules.dicomPlugins, "Sure", Sure)
    (note,) = DICOMUtils.loadByInstanceUID(instance)
    assert scene.GetNodeByID(note).GetName() == "sure"
