"""The slice views: show a radiograph in them, where the cursor is, and one click in the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import slicer
import vtk

from xflow_core.domain.geometry import Point

from .image_frame import ImageFrame

_FIRST = 10.0
"""A priority over that of Slicer's own interaction, so that the awaited click does not draw or drag anything."""


def is_shown(volume: Any) -> bool:
    """Whether a slice view shows the volume; true without slice views."""
    layout = slicer.app.layoutManager()
    if layout is None:  # Slicer without a main window
        return True
    nodes = [layout.sliceWidget(name).sliceLogic().GetSliceCompositeNode() for name in layout.sliceViewNames()]
    shown = {node.GetBackgroundVolumeID() for node in nodes} | {node.GetForegroundVolumeID() for node in nodes}
    return not nodes or volume.GetID() in shown


def show_radiograph(volume: Any) -> None:
    """Put a volume behind the slice views, turned to its plane and fitted, unless it stands there already."""
    layout = slicer.app.layoutManager()
    if layout is None:  # Slicer without a main window
        return
    shown = {
        layout.sliceWidget(name).sliceLogic().GetSliceCompositeNode().GetBackgroundVolumeID()
        for name in layout.sliceViewNames()
    }
    if shown != {volume.GetID()}:
        slicer.util.setSliceViewerLayers(background=volume, fit=True, rotateToVolumePlane=True)


def cursor(volume: Any, frame: ImageFrame) -> Point | None:
    """The image point under the mouse; None when it is not over the image in a slice view."""
    node = slicer.mrmlScene.GetFirstNodeByClass("vtkMRMLCrosshairNode")
    world = [0.0, 0.0, 0.0]
    if node is None or not node.GetCursorPositionRAS(world):
        return None
    ras = _of_volume(volume, world)
    return frame.point(ras) if frame.holds(ras) else None


def _of_volume(volume: Any, world: list[float]) -> list[float]:
    """A world position in the volume's own space, before the transform that it stands under."""
    parent = volume.GetParentTransformNode()
    if parent is None:
        return world
    transform = vtk.vtkGeneralTransform()
    slicer.vtkMRMLTransformNode.GetTransformBetweenNodes(None, parent, transform)
    return list(transform.TransformPoint(world))


class AwaitedClick:
    """One click of the left button in any slice view, taken before Slicer's own interaction sees it."""

    def __init__(self) -> None:
        self._observed: list[tuple[Any, int]] = []

    @property
    def waiting(self) -> bool:
        return bool(self._observed)

    def wait(self, clicked: Callable[[], None]) -> None:
        """Call ``clicked`` at the next click, inside its event; the crosshair node says where it was."""
        self.stop()
        for interactor in _interactors():
            tag = interactor.AddObserver("LeftButtonPressEvent", self._taken(interactor, clicked), _FIRST)
            self._observed.append((interactor, tag))

    def stop(self) -> None:
        """Wait no longer."""
        for interactor, tag in self._observed:
            interactor.RemoveObserver(tag)
        self._observed = []

    def _taken(self, interactor: Any, clicked: Callable[[], None]) -> Callable[[Any, str], None]:
        def take(_caller: Any, _event: str) -> None:
            for observed, tag in self._observed:
                if observed is interactor:
                    observed.GetCommand(tag).AbortFlagOn()
            clicked()

        return take


def _interactors() -> Iterator[Any]:
    layout = slicer.app.layoutManager()
    for name in () if layout is None else layout.sliceViewNames():
        view = layout.sliceWidget(name).sliceView()
        if view is not None:
            yield view.interactor()
