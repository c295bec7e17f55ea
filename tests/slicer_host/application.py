"""The application object: a real MRML application (scene, logics) behind an emulated ``slicer.app``.

Order and singletons follow qSlicerCoreApplication::setMRMLScene: crosshair, application logic, colours, then the logics
of the modules. See :func:`boot`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import slicer
import vtk

from tests.slicer_host import dicom_lib, swallowed, terminologies
from tests.slicer_host.dicom_database import DicomDatabase
from tests.slicer_host.files import CoreIOManager
from tests.slicer_host.packaging import Packaging
from tests.slicer_host.translation import Translation


class Module:
    """One entry of ``slicer.modules``: ``logic()`` and, for a scripted module, ``path`` and its widget."""

    def __init__(self, name: str, logic: Any = None, path: str = "", widget: Any = None) -> None:
        self.name = name
        self.path = path
        self._logic = logic
        self._widget = widget

    def logic(self) -> Any:
        return self._logic

    def widgetRepresentation(self) -> Any:
        return self._widget


class Modules(SimpleNamespace):
    """``slicer.modules``: modules by lower-case name, and ``dicomPlugins`` (name -> class)."""

    def __init__(self) -> None:
        super().__init__(dicomPlugins={})

    def add(self, module: Module) -> None:
        setattr(self, module.name.lower(), module)

    def find(self, name: str) -> Module | None:
        module = getattr(self, name.lower(), None)
        return module if isinstance(module, Module) else None


class ModuleManager:
    """``slicer.app.moduleManager()``: finds modules; ``moduleAboutToBeUnloaded(QString)`` is its one signal."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._before_unload: list[Callable[[str], None]] = []

    def module(self, name: str) -> Module | None:
        return self._modules.find(name)

    def factoryManager(self) -> ModuleManager:
        return self

    def loadedModuleNames(self) -> tuple[str, ...]:
        return tuple(one.name for one in vars(self._modules).values() if isinstance(one, Module))

    def isLoaded(self, name: str) -> bool:
        return self._modules.find(name) is not None

    def connect(self, signal: str, slot: Callable[[str], None]) -> bool:
        if not signal.startswith("moduleAboutToBeUnloaded("):
            return False
        self._before_unload.append(slot)
        return True

    def disconnect(self, signal: str, slot: Callable[[str], None]) -> bool:
        if slot not in self._before_unload:
            return False
        self._before_unload.remove(slot)
        return True

    def unload(self, name: str) -> None:
        """Tell the module's widget that it is about to go, as Slicer does before it quits."""
        for slot in tuple(self._before_unload):
            slot(name)


class SliceWidget:
    """``layoutManager().sliceWidget("Red")``: the slice's node and logic, and its view once a viewer gave it one."""

    def __init__(self, name: str, scene: Any, logic: Any) -> None:
        self._logic = vtk_slice_logic(name, scene, logic)
        self._view: Any = None
        self._controller: Any = None

    def sliceLogic(self) -> Any:
        return self._logic

    def mrmlSliceNode(self) -> Any:
        return self._logic.GetSliceNode()

    def mrmlSliceCompositeNode(self) -> Any:
        return self._logic.GetSliceCompositeNode()

    def attach(self, view: Any, controller: Any) -> None:
        self._view, self._controller = view, controller

    def sliceView(self) -> Any:
        """The view's widget, or None without a viewer."""
        return self._view

    def sliceController(self) -> Any:
        return self._controller


def vtk_slice_logic(name: str, scene: Any, application_logic: Any) -> Any:
    """A slice's logic with its node and composite node (singletons, so that closing the scene keeps them)."""
    logic = slicer.vtkMRMLSliceLogic()
    logic.SetMRMLApplicationLogic(application_logic)
    logic.SetMRMLScene(scene)
    node = logic.AddSliceNode(name)
    node.SetOrientation("Axial")
    node.SetLayoutColor(0.952941, 0.290196, 0.2)
    application_logic.GetSliceLogics().AddItem(logic)
    return logic


def _remote_io(application_logic: Any, scene: Any, cache: Path) -> tuple[Any, Any]:
    """What reading a scene bundle asks for: a cache folder and the logics that own it. Returned to keep them alive."""
    remote = slicer.vtkMRMLRemoteIOLogic()
    remote.GetCacheManager().SetRemoteCacheDirectory(str(cache))
    data_io = slicer.vtkDataIOManagerLogic()
    data_io.SetMRMLApplicationLogic(application_logic)
    data_io.SetAndObserveDataIOManager(remote.GetDataIOManager())
    application_logic.SetMRMLSceneDataIO(scene, remote, data_io)
    return remote, data_io


class StartupEnvironment:
    """The calls of QProcessEnvironment that ``slicer.util.startupEnvironment`` makes."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def keys(self) -> list[str]:
        return list(self._variables)

    def value(self, name: str, default: str = "") -> str:
        return self._variables.get(name, default)


class LayoutManager:
    """``slicer.app.layoutManager()``: one slice view, Red."""

    def __init__(self, widgets: dict[str, SliceWidget]) -> None:
        self._widgets = widgets

    def sliceViewNames(self) -> tuple[str, ...]:
        return tuple(self._widgets)

    def sliceWidget(self, name: str) -> SliceWidget | None:
        return self._widgets.get(name)

    def mrmlSliceLogics(self) -> Any:
        return slicer.app.applicationLogic().GetSliceLogics()

    def setLayout(self, layout: int) -> None:
        """There is one layout; the call is accepted."""

    @property
    def threeDViewCount(self) -> int:
        return 0


class Application:
    """``slicer.app``: what qSlicerApplication offers to scripts, as far as the module and ``slicer.util`` use it.

    Whatever is not here is looked up at the QApplication, once :meth:`use_qt` has made one.
    """

    applicationName = "XFlow host (not 3D Slicer)"
    mainApplicationName = "Slicer"
    applicationVersion = "5.12.4"
    majorVersion = 5
    minorVersion = 12
    documentationBaseUrl = ""
    os = "linux"
    arch = "amd64"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="xflow-host-")
        self.temporaryPath = str(self._made("tmp"))
        self.slicerHome = str(self._made("home"))
        self.slicerUserSettingsFilePath = str(self._made("settings") / "Slicer.ini")
        self.defaultTemporaryPath = self.temporaryPath
        self._testing = True
        self._qt: Any = None
        self._paused = 0
        self.render_paused: list[Callable[[bool], None]] = []

        scene = slicer.vtkMRMLScene()
        crosshair = slicer.vtkMRMLCrosshairNode()
        crosshair.SetCrosshairName("default")
        scene.AddNode(crosshair)
        logic = slicer.vtkSlicerApplicationLogic()
        logic.SetTemporaryPath(self.temporaryPath)
        logic.SetMRMLScene(scene)
        scene.SetRootDirectory(self.temporaryPath)
        self._remote = _remote_io(logic, scene, self._made("cache"))
        logic.SetSliceLogics(vtk.vtkCollection())
        logic.SetViewLogics(vtk.vtkCollection())
        logic.GetColorLogic().SetMRMLScene(scene)
        logic.GetColorLogic().AddDefaultColorNodes()
        logic.SetModuleLogic("Colors", logic.GetColorLogic())
        slicer.vtkMRMLSliceNode.AddDefaultSliceOrientationPresets(scene, True)
        self._scene, self._logic = scene, logic

        self.modules = Modules()
        volumes = self._add_logic("Volumes", slicer.vtkSlicerVolumesLogic())
        markups = self._add_logic("Markups", slicer.vtkSlicerMarkupsLogic())
        self._add_logic("Terminologies", slicer.vtkSlicerTerminologiesModuleLogic())
        self._add_logic("Segmentations", slicer.vtkSlicerSegmentationsModuleLogic())
        self._add_logic("SubjectHierarchy", slicer.vtkSlicerSubjectHierarchyModuleLogic())
        self._add_logic("Texts", slicer.vtkSlicerTextsLogic())
        self._add_logic("Tables", slicer.vtkSlicerTablesLogic())
        self.modules.add(Module("Colors", logic.GetColorLogic()))
        self._files = CoreIOManager(volumes, markups)
        self._module_manager = ModuleManager(self.modules)
        self._layout = LayoutManager({"Red": SliceWidget("Red", scene, logic)})

    def _made(self, name: str) -> Path:
        folder = Path(self._folder.name) / name
        folder.mkdir()
        return folder

    def _add_logic(self, name: str, logic: Any) -> Any:
        # Before the scene: some logics read their share folder (terminologies, presets) when they get one.
        share = Path(self._folder.name) / "share" / name
        share.mkdir(parents=True)
        if name == "Terminologies":
            terminologies.write_defaults(share)
        if hasattr(logic, "SetModuleShareDirectory"):
            logic.SetModuleShareDirectory(str(share))
        logic.SetMRMLApplicationLogic(self._logic)
        logic.SetMRMLScene(self._scene)
        self._logic.SetModuleLogic(name, logic)
        self.modules.add(Module(name, logic))
        return logic

    # What scripts call

    def applicationLogic(self) -> Any:
        return self._logic

    def mrmlScene(self) -> Any:
        return self._scene

    def coreIOManager(self) -> CoreIOManager:
        return self._files

    ioManager = coreIOManager

    def moduleManager(self) -> ModuleManager:
        return self._module_manager

    def layoutManager(self) -> LayoutManager:
        return self._layout

    def testingEnabled(self) -> bool:
        """In testing mode ``slicer.util``'s message boxes log and answer for themselves."""
        return self._testing

    def setTestingEnabled(self, testing: bool) -> None:
        self._testing = testing

    def startupEnvironment(self) -> StartupEnvironment:
        """The variables that this process was started with."""
        return StartupEnvironment(os.environ)

    def translate(self, context: str, text: str) -> str:
        return text

    def pauseRender(self) -> None:
        self._paused += 1
        self._tell_renderers()

    def resumeRender(self) -> None:
        self._paused -= 1
        self._tell_renderers()

    def _tell_renderers(self) -> None:
        for view in self.render_paused:
            view(self._paused > 0)

    def processEvents(self, *flags: object) -> None:
        if self._qt is not None:
            self._qt.processEvents()

    def topLevelWidgets(self) -> list[Any]:
        return [] if self._qt is None else self._qt.topLevelWidgets()

    def userSettings(self) -> Any:
        """Slicer.ini of this run (a ``qt.QSettings``)."""
        import qt

        return qt.QSettings()

    settings = revisionUserSettings = userSettings

    def moduleDocumentationUrl(self, module: str) -> str:
        return self.documentationBaseUrl + module

    def use_qt(self, application: Any) -> None:
        """Give the application its QApplication."""
        self._qt = application

    def __getattr__(self, name: str) -> Any:
        application = self.__dict__.get("_qt")
        if application is None:
            raise AttributeError(f"slicer.app has no {name} in this host (without Qt)")
        return getattr(application, name)


_application: Application | None = None


def boot(qt: bool = False) -> Application:
    """Start the host once per process and give its application object.

    ``slicer`` then has ``mrmlScene``, ``app``, ``modules``, ``dicomDatabase``, ``i18n``, ``packaging`` and
    ``selfTests``, and ``DICOMLib`` can be imported.
    With ``qt`` there are one QApplication, the modules ``qt`` and ``ctk`` and Slicer's Python classes for scripted
    modules, too; that needs a display (or ``QT_QPA_PLATFORM=offscreen``, which draws no slice view).
    """
    global _application
    if _application is None:
        swallowed.install()
        _application = Application()
        slicer.app = _application
        slicer.mrmlScene = _application.mrmlScene()
        slicer.modules = _application.modules
        slicer.dicomDatabase = DicomDatabase()
        slicer.selfTests = {}
        for name, module in (("i18n", Translation()), ("packaging", Packaging())):
            setattr(slicer, name, module)
            sys.modules[f"slicer.{name}"] = module
        dicom_lib.install()
    if qt:
        from tests.slicer_host import pythonqt, scripted_module

        _application.use_qt(pythonqt.install(_application.slicerUserSettingsFilePath))
        scripted_module.install()
    return _application
