"""Emulation of Slicer's Python classes for scripted modules (``slicer.ScriptedLoadableModule``), and their loading.

Same names and contracts as Slicer's; the developer section (Reload & Test) is left out.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

import slicer

from tests.slicer_host.application import Module


class ScriptedLoadableModule:
    """Describes a module to Slicer: title, categories, help, icon."""

    def __init__(self, parent: Any) -> None:
        super().__init__()
        import qt

        self.parent = parent
        self.moduleName = type(self).__name__
        parent.title = ""
        parent.categories = []
        parent.dependencies = []
        parent.contributors = []
        parent.helpText = ""
        parent.acknowledgementText = ""
        for ending in (".svg", ".png"):
            icon = Path(parent.path).parent / "Resources" / "Icons" / (self.moduleName + ending)
            if icon.is_file():
                parent.icon = qt.QIcon(str(icon))
                break
        slicer.selfTests[self.moduleName] = self.runTest

    def resourcePath(self, name: str) -> str:
        return str(Path(self.parent.path).parent / "Resources" / name)

    def getDefaultModuleDocumentationLink(self, page: str | None = None) -> str:
        return ""

    def runTest(self, msec: int = 100, **options: Any) -> None:
        case = getattr(sys.modules[type(self).__module__], self.moduleName + "Test")()
        case.messageDelay = msec
        case.runTest(**options)


class ScriptedLoadableModuleWidget:
    """A module's panel; ``parent`` is the widget it lives in, ``layout`` that widget's layout."""

    def __init__(self, parent: Any = None) -> None:
        super().__init__()
        import qt

        self.moduleName = type(self).__name__.removesuffix("Widget")
        self.developerMode = False
        if parent is None:
            self.parent = slicer.qMRMLWidget()
            self.parent.setLayout(qt.QVBoxLayout())
            self.parent.setMRMLScene(slicer.mrmlScene)
        else:
            self.parent = parent
        self.layout = self.parent.layout()
        if parent is None:
            self.setup()
            self.parent.show()
        slicer.app.moduleManager().connect("moduleAboutToBeUnloaded(QString)", self._onModuleAboutToBeUnloaded)

    def resourcePath(self, name: str) -> str:
        return str(Path(slicer.util.modulePath(self.moduleName)).parent / "Resources" / name)

    def setup(self) -> None:
        """Build the panel. A module's widget extends this."""

    def cleanup(self) -> None:
        """Called before the module goes."""

    def _onModuleAboutToBeUnloaded(self, name: str) -> None:
        if name == self.moduleName:
            self.cleanup()
            slicer.app.moduleManager().disconnect("moduleAboutToBeUnloaded(QString)", self._onModuleAboutToBeUnloaded)


class ScriptedLoadableModuleLogic:
    """A module's logic; ``getParameterNode`` gives the scene's one parameter node of the module."""

    def __init__(self, parent: Any = None) -> None:
        super().__init__()
        self.moduleName = type(self).__name__.removesuffix("Logic")
        self.isSingletonParameterNode = True

    def getParameterNode(self) -> Any:
        if self.isSingletonParameterNode:
            node = slicer.mrmlScene.GetSingletonNode(self.moduleName, "vtkMRMLScriptedModuleNode")
            if node is not None:
                # Closing the scene resets the attribute.
                if node.GetAttribute("ModuleName") != self.moduleName:
                    node.SetAttribute("ModuleName", self.moduleName)
                return node
        else:
            for node in self.getAllParameterNodes():
                return node
        return slicer.mrmlScene.AddNode(self.createParameterNode())

    def getAllParameterNodes(self) -> list[Any]:
        nodes = slicer.util.getNodesByClass("vtkMRMLScriptedModuleNode")
        return [node for node in nodes if node.GetAttribute("ModuleName") == self.moduleName]

    def createParameterNode(self) -> Any:
        node = slicer.mrmlScene.CreateNodeByClass("vtkMRMLScriptedModuleNode")
        node.UnRegister(None)
        if self.isSingletonParameterNode:
            node.SetSingletonTag(self.moduleName)
        node.SetAttribute("ModuleName", self.moduleName)
        node.SetName(slicer.mrmlScene.GenerateUniqueName(self.moduleName))
        return node


class ScriptedLoadableModuleTest(unittest.TestCase):
    """A module's self-test: ``runTest`` runs every ``test*`` method."""

    messageDelay = 100

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*(arguments or ("runTest",)), **named)
        self.moduleTestNames = [name for name in dir(self) if name.startswith("test") and callable(getattr(self, name))]

    def delayDisplay(self, message: str, requestedDelay: int | None = None, msec: int | None = None) -> None:
        logging.info(message)
        slicer.app.processEvents()

    def takeScreenshot(self, name: str, description: str, type: int = -1) -> None:
        self.delayDisplay(description)

    def runTest(self) -> None:
        self.setUpClass()
        for name in self.moduleTestNames:
            self.setUp()
            logging.info("Running %s", name)
            getattr(self, name)()
            self.tearDown()
        self.tearDownClass()


class ModuleDescription:
    """What Slicer hands a module as ``parent``: any attribute may be set on it. ``path`` is the module's file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.title = ""
        self.hidden = False


_CLASSES = (
    ScriptedLoadableModule,
    ScriptedLoadableModuleWidget,
    ScriptedLoadableModuleLogic,
    ScriptedLoadableModuleTest,
)


def install() -> None:
    """Make ``from slicer.ScriptedLoadableModule import *`` work, and the widget classes known to ``slicer``."""
    if "slicer.ScriptedLoadableModule" in sys.modules:
        return
    from tests.slicer_host import widgets

    module = ModuleType("slicer.ScriptedLoadableModule", __doc__)
    module.__all__ = [one.__name__ for one in _CLASSES]
    for one in _CLASSES:
        setattr(module, one.__name__, one)
    sys.modules["slicer.ScriptedLoadableModule"] = module
    slicer.ScriptedLoadableModule = module
    for name in ("qMRMLWidget", "qMRMLNodeComboBox"):
        setattr(slicer, name, getattr(widgets, name))
    # slicer.util asks for these two by isinstance; no object of this host is one.
    slicer.qSlicerScriptedLoadableModule = type("qSlicerScriptedLoadableModule", (), {})
    slicer.qSlicerScriptedLoadableModuleWidget = type("qSlicerScriptedLoadableModuleWidget", (), {})


def load_module(file: Path) -> tuple[Any, Any]:
    """Load a scripted module's file as Slicer's module manager does.

    Its folder goes onto ``sys.path``; ``slicer.modules`` then has it, and the file's DICOM plugin if it is one.

    Returns:
        The module's description (``parent``) and, where the file has a ``<Name>Widget``, the panel: not yet set up.
    """
    name = file.stem
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script
    spec.loader.exec_module(script)
    description = ModuleDescription(file)
    module = Module(name, path=str(file))
    slicer.modules.add(module)
    getattr(script, name)(description)
    kind = getattr(script, f"{name}Widget", None)
    if kind is None:
        return description, None
    import qt

    holder = slicer.qMRMLWidget()
    holder.setObjectName(f"{name}ModuleWidget")
    holder.setLayout(qt.QVBoxLayout())
    holder.setMRMLScene(slicer.mrmlScene)
    panel = kind(holder)
    module._widget = panel
    setattr(slicer.modules, f"{name}Widget", panel)
    return description, panel
