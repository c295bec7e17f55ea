"""A slice view as Slicer has it: slicer-core's displayable managers and interaction in a VTK window inside Qt.

What qMRMLSliceView does in C++ is done here in Python: one renderer with the slice's image behind it, the displayable
managers of 2D views, the interactor style that hands mouse and keys to them, and renders at most 60 times a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import slicer
import vtk
from qtpy import QtCore, QtGui, QtWidgets
from vtkmodules.qt.QVTKRenderWindowInteractor import QVTKRenderWindowInteractor

from tests.slicer_host.application import SliceWidget
from tests.slicer_host.watch import drawing

_MANAGERS = (
    "vtkMRMLVolumeGlyphSliceDisplayableManager",
    "vtkMRMLModelSliceDisplayableManager",
    "vtkMRMLCrosshairDisplayableManager",
    "vtkMRMLOrientationMarkerDisplayableManager",
    "vtkMRMLRulerDisplayableManager",
    "vtkMRMLScalarBarDisplayableManager",
    "vtkMRMLSegmentationsDisplayableManager2D",
    "vtkMRMLMarkupsDisplayableManager",
)
_FRAME_MS = 16


class SliceView(QVTKRenderWindowInteractor):
    """The widget. ``connect`` and the like are PySide's; the methods below are qMRMLSliceView's."""

    def __init__(self, slice_widget: SliceWidget, parent: Any = None) -> None:
        super().__init__(parent)
        self._logic = slice_widget.sliceLogic()
        self._node = slice_widget.mrmlSliceNode()
        self._image_port: Any = None
        self._paused = False
        self._timer = QtCore.QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(_FRAME_MS)
        self._timer.timeout.connect(self.forceRender)

        window = self.GetRenderWindow()
        # Software rendering (Mesa) takes four times as long with multisampling, and the image needs none.
        window.SetMultiSamples(0)
        self._renderer = vtk.vtkRenderer()
        self._renderer.GetActiveCamera().ParallelProjectionOn()
        window.AddRenderer(self._renderer)
        mapper = vtk.vtkImageMapper()
        mapper.SetColorWindow(255)
        mapper.SetColorLevel(127.5)
        self._image = vtk.vtkActor2D()
        self._image.SetMapper(mapper)
        self._image.GetProperty().SetDisplayLocationToBackground()
        self._image.VisibilityOff()
        self._renderer.AddViewProp(self._image)

        factory = slicer.vtkMRMLSliceViewDisplayableManagerFactory.GetInstance()
        factory.SetMRMLApplicationLogic(slicer.app.applicationLogic())
        for name in _MANAGERS:
            if not factory.IsDisplayableManagerRegistered(name):
                factory.RegisterDisplayableManager(name)
        self._managers = slicer.vtkMRMLDisplayableManagerGroup()
        self._managers.Initialize(factory, self._renderer)
        self._managers.SetMRMLDisplayableNode(self._node)
        self._logic.SetDisplayableManagerGroup(self._managers)

        self._style = slicer.vtkMRMLSliceViewInteractorStyle()
        self._style.SetSliceLogic(self._logic)
        self._style.SetDisplayableManagers(self._managers)
        interactor = window.GetInteractor()
        interactor.SetInteractorStyle(vtk.vtkInteractorStyleUser())
        self._style.SetInteractor(interactor)

        scene = slicer.mrmlScene
        modified = vtk.vtkCommand.ModifiedEvent
        self._observed = [
            (self._managers, self._managers.AddObserver(vtk.vtkCommand.UpdateEvent, self._on_update)),
            (self._logic, self._logic.AddObserver(modified, self._on_logic)),
            (scene, scene.AddObserver(scene.EndBatchProcessEvent, self._on_scene)),
        ]
        slicer.app.render_paused.append(self._on_paused)
        self._on_logic()

    # What scripts call

    def mrmlSliceNode(self) -> Any:
        return self._node

    def sliceLogic(self) -> Any:
        return self._logic

    def renderWindow(self) -> Any:
        return self.GetRenderWindow()

    def interactor(self) -> Any:
        return self.GetRenderWindow().GetInteractor()

    def interactorObserver(self) -> Any:
        return self._style

    def displayableManagerByClassName(self, name: str) -> Any:
        return self._managers.GetDisplayableManagerByClassName(name)

    def scheduleRender(self) -> None:
        if not self._timer.isActive():
            self._timer.start()

    def forceRender(self) -> None:
        if not self._paused and self.isVisible() and not slicer.mrmlScene.IsBatchProcessing():
            with drawing():
                self.GetRenderWindow().Render()

    # Positions

    def position_of(self, ras: Sequence[float]) -> QtCore.QPoint:
        """Where a point of the patient (mm) lies in the widget (pixels from its top left corner)."""
        inverse = vtk.vtkMatrix4x4()
        vtk.vtkMatrix4x4.Invert(self._node.GetXYToRAS(), inverse)
        x, y, _, _ = inverse.MultiplyPoint((*ras, 1.0))
        scale = self.devicePixelRatioF()
        return QtCore.QPoint(round(x / scale), round(self.height() - 1 - y / scale))

    def ras_at(self, position: QtCore.QPoint) -> tuple[float, float, float]:
        """The patient point (mm) under a position in the widget."""
        scale = self.devicePixelRatioF()
        xy = (position.x() * scale, (self.height() - 1 - position.y()) * scale, 0.0, 1.0)
        right, anterior, superior, _ = self._node.GetXYToRAS().MultiplyPoint(xy)
        return right, anterior, superior

    # Upkeep

    def close_view(self) -> None:
        """Let go of the scene, the logic and the GL context. Before the widget goes."""
        self._timer.stop()
        for subject, tag in self._observed:
            subject.RemoveObserver(tag)
        self._observed.clear()
        slicer.app.render_paused.remove(self._on_paused)
        self._style.SetInteractor(None)
        self._managers.SetMRMLDisplayableNode(None)
        self._logic.SetDisplayableManagerGroup(None)
        self.GetRenderWindow().RemoveRenderer(self._renderer)
        self.Finalize()

    def _on_update(self, *_: Any) -> None:
        self.scheduleRender()

    def _on_logic(self, *_: Any) -> None:
        port = self._logic.GetImageDataConnection()
        if port is not self._image_port:
            self._image_port = port
            self._image.GetMapper().SetInputConnection(port)
            self._image.SetVisibility(port is not None)
        self.scheduleRender()

    def _on_scene(self, *_: Any) -> None:
        # A scene that was read brings the size of the view it was saved from, and the managers read the nodes that came
        # with it when they are next asked to draw.
        self._resize_slice()
        QtCore.QTimer.singleShot(0, self._node.Modified)
        self.scheduleRender()

    def _on_paused(self, paused: bool) -> None:
        self._paused = paused
        if not paused:
            self.scheduleRender()

    def _resize_slice(self) -> None:
        width, height = self.GetRenderWindow().GetSize()
        if width > 1 and height > 1:
            self._logic.ResizeSliceNode(width, height)

    def resizeEvent(self, event: Any) -> None:
        super().resizeEvent(event)
        self._resize_slice()

    def paintEvent(self, event: Any) -> None:
        self.forceRender()

    def sizeHint(self) -> QtCore.QSize:
        return QtCore.QSize(800, 800)


class SliceController(QtWidgets.QWidget):
    """The coloured bar above a slice view: which view, which volume, fit to window."""

    def __init__(self, slice_widget: SliceWidget, parent: Any = None) -> None:
        super().__init__(parent)
        self._logic = slice_widget.sliceLogic()
        self._node = slice_widget.mrmlSliceNode()
        red, green, blue = (round(255 * one) for one in self._node.GetLayoutColor())
        self.setAutoFillBackground(True)
        palette = self.palette()
        palette.setColor(QtGui.QPalette.ColorRole.Window, QtGui.QColor(red, green, blue))
        palette.setColor(QtGui.QPalette.ColorRole.WindowText, QtCore.Qt.GlobalColor.black)
        self.setPalette(palette)
        row = QtWidgets.QHBoxLayout(self)
        row.setContentsMargins(8, 2, 4, 2)
        self._label = QtWidgets.QLabel()
        fit = QtWidgets.QToolButton()
        fit.setText("Fit")
        fit.setToolTip("Fit the slice to the image")
        fit.setAutoRaise(True)
        fit.clicked.connect(self.fitSliceToBackground)
        row.addWidget(self._label, 1)
        row.addWidget(fit)
        self._composite = slice_widget.mrmlSliceCompositeNode()
        modified, scene = vtk.vtkCommand.ModifiedEvent, slicer.mrmlScene
        events = ((self._node, modified), (self._composite, modified), (scene, scene.EndBatchProcessEvent))
        self._observed = [(subject, subject.AddObserver(event, self._on_change)) for subject, event in events]
        self._on_change()

    def sliceLogic(self) -> Any:
        return self._logic

    def fitSliceToBackground(self) -> None:
        self._logic.FitSliceToBackground()

    def close_controller(self) -> None:
        for subject, tag in self._observed:
            subject.RemoveObserver(tag)
        self._observed.clear()

    def _on_change(self, *_: Any) -> None:
        volume = slicer.mrmlScene.GetNodeByID(self._composite.GetBackgroundVolumeID() or "")
        text = f"{self._node.GetLayoutName()}  {self._node.GetOrientation()}"
        if volume is not None:
            text += f"   {volume.GetName()}"
        if self._label.text() != text:
            self._label.setText(text)
