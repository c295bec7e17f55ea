"""A window that shows a module's panel beside a slice view, as Slicer's main window does.

By hand: ``python -m tests.slicer_host [IMAGE]``. In tests: the fixture ``viewer``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydicom
import slicer
from qtpy import QtCore, QtGui, QtWidgets

from tests.slicer_host import dicom_lib, scripted_module
from tests.slicer_host.application import boot
from tests.slicer_host.loop import in_event_loop, work_off
from tests.slicer_host.pythonqt import emulate
from tests.slicer_host.slice_view import SliceController, SliceView
from tests.slicer_host.watch import EventLoopWatch

ROOT = Path(__file__).resolve().parents[2]
PANEL_WIDTH = 500


class MainWindow(emulate(QtWidgets.QMainWindow)):
    """``slicer.util.mainWindow()``: a status bar, a module selector, files that are dropped on it."""

    def __init__(self, selector: ModuleSelector, drop: Callable[[str], Any]) -> None:
        super().__init__()
        self._selector = selector
        self._drop = drop
        QtWidgets.QMainWindow.setObjectName(self, "qSlicerMainWindow")
        self.setAcceptDrops(True)

    def moduleSelector(self) -> ModuleSelector:
        return self._selector

    def dragEnterEvent(self, event: Any) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: Any) -> None:
        for url in event.mimeData().urls():
            self._drop(url.toLocalFile())


class ModuleSelector:
    """``mainWindow().moduleSelector()``: remembers which module was asked for; there is one panel to show."""

    def __init__(self, module: str) -> None:
        self.selectedModule = module

    def selectModule(self, name: str) -> None:
        self.selectedModule = name


class Viewer:
    """The window, the module in it, and the watch over its event loop.

    Attributes:
        panel: the module's widget object (an instance of ``<Module>Widget``), set up.
        slice: the Red slice view.
        watch: started with the window.
    """

    def __init__(self, module: str | None = "XFlowSlicer", size: tuple[int, int] = (1440, 980)) -> None:
        """``module``: its folder's and file's name; None for the slice view alone."""
        self.application = boot(qt=True)
        self.watch = EventLoopWatch()
        self.watch.start()
        self._module = module
        red = slicer.app.layoutManager().sliceWidget("Red")
        self.slice = SliceView(red)
        self._controller = SliceController(red)
        red.attach(self.slice, self._controller)
        self.window = MainWindow(ModuleSelector(module or ""), self.load)
        self.window.setWindowTitle(f"{module or 'Slice view'} in a test host (not 3D Slicer). Not for clinical use")
        self.panel: Any = None
        splitter = QtWidgets.QSplitter()
        if module is not None:
            splitter.addWidget(self._load_module(module))
        splitter.addWidget(self._view())
        splitter.setStretchFactor(splitter.count() - 1, 1)
        splitter.setChildrenCollapsible(False)
        self.window.setCentralWidget(splitter)
        self.window.statusBar().setSizeGripEnabled(False)
        self.window.statusBar().addPermanentWidget(QtWidgets.QLabel("Test host, not 3D Slicer. Not for clinical use."))
        self.window.resize(*size)
        if module is not None:
            splitter.setSizes([PANEL_WIDTH, size[0] - PANEL_WIDTH])

    def _load_module(self, module: str) -> Any:
        folder = ROOT / module
        _, self.panel = scripted_module.load_module(folder / f"{module}.py")
        for plugin in sorted(folder.glob("*DICOMPlugin.py")):
            scripted_module.load_module(plugin)
        in_event_loop(self.panel.setup, "the panel's setup")
        area = QtWidgets.QScrollArea()
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(QtCore.Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setFrameShape(QtWidgets.QFrame.Shape.NoFrame)
        area.setMinimumWidth(360)
        area.setWidget(self.panel.parent)
        return area

    def _view(self) -> QtWidgets.QWidget:
        holder = QtWidgets.QWidget()
        column = QtWidgets.QVBoxLayout(holder)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._controller)
        column.addWidget(self.slice, 1)
        return holder

    def show(self) -> None:
        """Show the window, wait until it is drawn and has the focus, and enter the module."""
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()
        handle = QtWidgets.QWidget.windowHandle(self.window)
        self.wait(lambda: handle.isExposed() and handle.isActive(), 10, "the window to be shown")
        self.slice.forceRender()
        if self.panel is not None and hasattr(self.panel, "enter"):
            in_event_loop(self.panel.enter, "the panel's enter")
        work_off()

    def close(self) -> None:
        """Take the module down as Slicer does, and the window."""
        if self.panel is not None:
            if hasattr(self.panel, "exit"):
                self.panel.exit()
            self.application.moduleManager().unload(self._module)
            self.panel = None
        slicer.app.layoutManager().sliceWidget("Red").attach(None, None)
        self._controller.close_controller()
        self.slice.close_view()
        self.window.close()
        self.window.deleteLater()
        work_off()
        QtCore.QCoreApplication.sendPostedEvents(None, QtCore.QEvent.Type.DeferredDelete)
        self.watch.stop()

    def load(self, path: str | Path) -> Any:
        """Load an image as Slicer would: a DICOM file through the database, anything else as a file.

        Of a folder every DICOM file goes into the database and every series is loaded.

        Returns:
            The first volume node, shown in the slice view; None when there was none (a segmentation, say).
        """
        nodes = in_event_loop(lambda: self._read(Path(path)), f"loading {Path(path).name}")
        volumes = [node for node in nodes if node.IsA("vtkMRMLVolumeNode")]
        if not volumes:
            return None
        volume = volumes[0]
        slicer.util.setSliceViewerLayers(background=volume, fit=True, rotateToVolumePlane=True)
        work_off()
        return volume

    @staticmethod
    def _read(path: Path) -> list[Any]:
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if file.is_file() and pydicom.misc.is_dicom(file)]
        elif pydicom.misc.is_dicom(path):
            files = [path]
        else:
            return [slicer.util.loadNodeFromFile(str(path), None, {"singleFile": True})]
        for file in files:
            slicer.dicomDatabase.insert(file)
        series = dict.fromkeys(slicer.dicomDatabase.seriesForFile(file) for file in files)
        return [slicer.mrmlScene.GetNodeByID(node) for node in dicom_lib.loadSeriesByUID(list(series))]

    def wait(self, until: Callable[[], bool], seconds: float = 10.0, what: str = "a condition") -> float:
        """Run the event loop until a condition holds.

        Returns:
            How long it took, in seconds.

        Raises:
            TimeoutError: naming ``what``.
        """
        start = time.perf_counter()
        loop = QtCore.QEventLoop()
        while not until():
            if time.perf_counter() - start > seconds:
                raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
            # The timer ends an iteration in which nothing happens.
            QtCore.QTimer.singleShot(10, loop.quit)
            loop.exec()
        return time.perf_counter() - start

    def run_for(self, seconds: float) -> None:
        """Run the event loop for a while."""
        loop = QtCore.QEventLoop()
        QtCore.QTimer.singleShot(round(1000 * seconds), loop.quit)
        loop.exec()

    def screenshot(self, path: str | Path) -> Path:
        """Save the window as it is on the screen (PNG): panel and slice view. The VTK image is in it."""
        work_off()
        self.slice.forceRender()
        work_off()
        handle = QtWidgets.QWidget.windowHandle(self.window)
        image = handle.screen().grabWindow(handle.winId())
        if not image.save(str(path)):
            raise OSError(f"the screenshot could not be written to {path}")
        return Path(path)

    def slice_image(self) -> QtGui.QImage:
        """What the slice view shows, as an image."""
        self.slice.forceRender()
        work_off()
        return self.slice.screen().grabWindow(self.slice.winId()).toImage()
