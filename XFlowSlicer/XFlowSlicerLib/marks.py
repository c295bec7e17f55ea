"""Boxes and clicks of a picture as markups in the scene.

They are a view of a step and nothing more: not saved with the scene, not offered to editors. The session keeps what
they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import slicer

from xflow_core.domain.geometry import Box, Point

from . import nodes
from .image_frame import ImageFrame, RoiBox
from .steps import SIGNS, Picture, ShownBox, ShownClick
from .volumes import in_place

BOX, CLICKS, LABELS = "box", "clicks", "labels"
"""The roles of the markups, see :data:`nodes.ROLE`."""

# To be seen over lung and over bone: no greys. Positive and negative differ in shape, and in blue and orange, which all
# kinds of colour vision tell apart.
_BOX_COLOURS = {"lung": (0.20, 0.80, 0.65), "lesion": (1.0, 0.73, 0.19)}
_CLICK_COLOURS = {"positive": (0.34, 0.71, 0.91), "negative": (1.0, 0.47, 0.22)}
_CLICK_SHAPES = {"positive": "ThickCross2D", "negative": "Dash2D"}

_TEXT = 2.5
"""The size of labels, in percent of the view."""

_ABOVE = 0.006
"""How far over its box's top left corner a label begins, as part of the image's height; beneath its bottom left corner
room for the line of text is left, too. A lung's stands over its box, a lesion's beneath, so that they do not meet."""

_MOVED_PIXELS = 0.01
"""A mark that lies nearer to its place was not moved; numbers go from the image to RAS and back."""


@dataclass(frozen=True)
class _Shown:
    """What the nodes were made to show, and where: ``transform`` is the ID of the one that the volume is under."""

    frame: ImageFrame
    transform: str | None
    boxes: tuple[ShownBox, ...]
    clicks: tuple[ShownClick, ...]

    def clicks_of(self, polarity: str) -> list[ShownClick]:
        return [click for click in self.clicks if click.polarity == polarity]


class Marks:
    """Boxes as ROI nodes, clicks as two point lists, one of the positive and one of the negative.

    A box's name stands outside, at a corner, by a point list of its own: a ROI's own label would stand in its middle,
    under the handle and over the lesion.
    """

    def __init__(self, volume: Any, frame: ImageFrame) -> None:
        self._volume = volume
        self._made_frame = frame
        self._shown: _Shown | None = None
        self._boxes: list[Any] = []
        self._points: dict[str, Any] = {}
        self._labels: dict[str, Any] = {}
        self._displays: list[tuple[Any, Any]] = []
        self._on_box: Callable[[ShownBox, Box], object] | None = None
        self._on_click: Callable[[ShownClick, Point], object] | None = None
        self._observers = nodes.Observers()

    def show(
        self,
        picture: Picture,
        on_box: Callable[[ShownBox, Box], object] | None = None,
        on_click: Callable[[ShownClick, Point], object] | None = None,
    ) -> None:
        """Show the picture's boxes and clicks, and no others. One that is shown already costs nothing.

        Args:
            on_box: called with the box as shown, and as the user left it, when a drag of it ends; what lies outside
                the image is cut off. The box stays where it was dropped until the next :meth:`show`.
            on_click: the same for a click; one dropped outside goes to the image's edge.

        Both are called from within the view's event. They may call :meth:`show`; a node must not be removed there
        (:meth:`clear`), for the view is not done with it: put that off with a timer.
        """
        if not nodes.alive(self._volume):
            return
        self._on_box, self._on_click = on_box, on_click
        frame = in_place(self._volume, self._made_frame)
        shown = _Shown(frame, self._volume.GetTransformNodeID(), picture.boxes, picture.clicks)
        if shown == self._shown and self._is_shown(shown):
            return
        if not all(map(nodes.alive, self._nodes)):
            self.clear()
        if not self._points:
            self._begin()
        self._shown = shown
        while len(self._boxes) < len(picture.boxes):
            self._boxes.append(self._new_box(len(self._boxes)))
        for number, node in enumerate(self._boxes):
            # Nodes to spare are hidden: making one takes longer than moving it, and this may be an event of its view.
            node.GetDisplayNode().SetVisibility(number < len(picture.boxes))
            if number < len(picture.boxes):
                self._place_box(node, picture.boxes[number], frame)
        for polarity, node in self._points.items():
            several = len({click.component for click in picture.clicks}) > 1
            self._place_clicks(node, shown.clicks_of(polarity), frame, several)
        for role, node in self._labels.items():
            self._place_labels(node, [box for box in picture.boxes if box.role == role], frame)

    def clear(self) -> None:
        """Remove all nodes and observers."""
        self._observers.clear()
        for node, display in self._displays:
            for one in (display, node):
                if nodes.alive(one):
                    one.GetScene().RemoveNode(one)
        self._boxes, self._points, self._labels, self._displays, self._shown = [], {}, {}, [], None

    def _sweep(self) -> None:
        """Take the display nodes of marks that the user deleted along: the views would go on drawing them."""
        for node, display in self._displays:
            if not nodes.alive(node) and nodes.alive(display) and not display.GetScene().IsClosing():
                display.GetScene().RemoveNode(display)

    # Nodes.

    @property
    def _nodes(self) -> tuple[Any, ...]:
        return (*self._boxes, *self._points.values(), *self._labels.values())

    def _begin(self) -> None:
        self._observers.when_gone(self._volume, self.clear)
        self._observers.add(self._volume.GetScene(), slicer.vtkMRMLScene.NodeRemovedEvent, self._sweep)
        for polarity in SIGNS:
            node = self._add("vtkMRMLMarkupsFiducialNode", CLICKS, f"{polarity} clicks")
            display = node.GetDisplayNode()
            display.SetGlyphTypeFromString(_CLICK_SHAPES[polarity])
            display.SetGlyphScale(4.0)
            display.SetPointLabelsVisibility(True)
            _paint(display, _CLICK_COLOURS[polarity])
            self._points[polarity] = node
            self._observers.add(node, node.PointEndInteractionEvent, partial(self._clicks_dropped, polarity))
        for role, colour in _BOX_COLOURS.items():
            node = self._add("vtkMRMLMarkupsFiducialNode", LABELS, f"{role} labels")
            node.SetLocked(True)
            display = node.GetDisplayNode()
            display.SetGlyphScale(0.01)
            display.SetPointLabelsVisibility(True)
            _paint(display, colour)
            self._labels[role] = node

    def _new_box(self, number: int) -> Any:
        node = self._add("vtkMRMLMarkupsROINode", BOX, "box")
        display = node.GetDisplayNode()
        display.SetFillVisibility(False)
        display.SetPropertiesLabelVisibility(False)
        display.SetRotationHandleVisibility(False)
        self._observers.add(node, node.PointEndInteractionEvent, partial(self._box_dropped, number))
        return node

    def _add(self, kind: str, role: str, name: str) -> Any:
        with _place_kept(self._volume.GetScene()):
            node = nodes.add(self._volume, kind, role, name, transient=True)
        node.CreateDefaultDisplayNodes()
        display = node.GetDisplayNode()
        display.SetSaveWithScene(False)
        display.SetVisibility3D(False)
        display.SetTextScale(_TEXT)
        self._displays.append((node, display))
        return node

    def _place_box(self, node: Any, shown: ShownBox, frame: ImageFrame) -> None:
        display = node.GetDisplayNode()
        changing = (node, display)
        before = [one.StartModify() for one in changing]
        nodes.follow(node, self._volume)
        node.SetName(shown.name)
        _put_roi(node, frame.roi(shown.box))
        node.SetLocked(not shown.editable)
        node.SetNthControlPointVisibility(0, shown.editable)  # of a locked box, a dot in its middle would be a riddle
        display.SetHandlesInteractive(shown.editable)
        _paint(display, _BOX_COLOURS[shown.role])
        for one, state in zip(changing, before, strict=True):
            one.EndModify(state)

    def _place_clicks(self, node: Any, clicks: list[ShownClick], frame: ImageFrame, several: bool) -> None:
        """``several``: the picture's clicks are of several components, and each says of which."""
        before = node.StartModify()
        nodes.follow(node, self._volume)
        node.SetFixedNumberOfControlPoints(False)
        while node.GetNumberOfControlPoints() > len(clicks):
            node.RemoveNthControlPoint(node.GetNumberOfControlPoints() - 1)
        for n, click in enumerate(clicks):
            place = frame.ras(click.point)
            if n == node.GetNumberOfControlPoints():
                node.AddControlPoint(*place)
            elif not np.allclose(node.GetNthControlPointPosition(n), place):
                node.SetNthControlPointPosition(n, *place)
            label = f"{SIGNS[click.polarity]}{click.turn}"
            node.SetNthControlPointLabel(n, f"{click.component + 1}: {label}" if several else label)
            node.SetNthControlPointLocked(n, not click.editable)
        # Neither the Markups module nor a key adds or deletes one: that is an edit of the session.
        node.SetFixedNumberOfControlPoints(True)
        node.SetLocked(not any(click.editable for click in clicks))
        node.EndModify(before)

    def _place_labels(self, node: Any, boxes: list[ShownBox], frame: ImageFrame) -> None:
        before = node.StartModify()
        nodes.follow(node, self._volume)
        node.RemoveAllControlPoints()
        for box in boxes:
            y = box.box.y1 - _ABOVE if box.role == "lung" else box.box.y2 + _ABOVE + _TEXT / 100
            node.AddControlPoint(*frame.ras(Point(box.box.x1, min(max(y, 0.0), 1.0))), box.name)
        node.SetLocked(True)
        node.EndModify(before)

    # Drags.

    def _box_dropped(self, number: int) -> None:
        if self._shown is None or number >= len(self._shown.boxes):
            return
        shown, node, frame = self._shown.boxes[number], self._boxes[number], self._shown.frame
        height, width = frame.size
        before, now = np.array(shown.box.to_json()), np.array(frame.box(_corners(node)).to_json())
        moved = np.abs(now - before) * (width, height, width, height) > _MOVED_PIXELS
        if not shown.editable or not moved.any():
            self._place_box(node, shown, frame)
            return
        box = Box(*np.where(moved, now, before).tolist())  # sides that the user left alone stay as they were, exactly
        _put_roi(node, frame.roi(box))
        if self._on_box is not None:
            self._on_box(shown, box)

    def _clicks_dropped(self, polarity: str) -> None:
        if self._shown is None:
            return
        node, frame = self._points[polarity], self._shown.frame
        dropped = []
        for n, shown in enumerate(self._shown.clicks_of(polarity)[: node.GetNumberOfControlPoints()]):
            point = frame.point(node.GetNthControlPointPosition(n))
            moved = np.abs(np.subtract(point.to_json(), shown.point.to_json())) * frame.size[::-1] > _MOVED_PIXELS
            if shown.editable and moved.any():
                dropped.append((shown, point))
            else:
                point = shown.point
            node.SetNthControlPointPosition(n, *frame.ras(point))
        for shown, point in dropped:
            if self._on_click is not None:
                self._on_click(shown, point)

    def _is_shown(self, shown: _Shown) -> bool:
        """Whether the nodes are as they were put; the user may have dragged or deleted them since."""
        if not all(map(nodes.alive, self._nodes)):
            return False
        boxes = zip(self._boxes, shown.boxes, strict=False)
        if not all(_is_at(node, shown.frame.roi(box.box)) for node, box in boxes):
            return False
        for polarity, node in self._points.items():
            places = [shown.frame.ras(click.point) for click in shown.clicks_of(polarity)]
            there = [node.GetNthControlPointPosition(n) for n in range(node.GetNumberOfControlPoints())]
            if len(places) != len(there) or not np.allclose(places, there):
                return False
        return True


@contextmanager
def _place_kept(scene: Any) -> Iterator[None]:
    """Keep what the user's next click in "place" mode adds to: a new list would take that over."""
    selection = scene.GetFirstNodeByClass("vtkMRMLSelectionNode")
    if selection is None:
        yield
        return
    node_id, class_name = selection.GetActivePlaceNodeID(), selection.GetActivePlaceNodeClassName()
    yield
    selection.SetReferenceActivePlaceNodeClassName(class_name)
    selection.SetActivePlaceNodeID(node_id)


def _paint(display: Any, colour: tuple[float, float, float]) -> None:
    display.SetColor(*colour)
    display.SetSelectedColor(*colour)


def _matrix(roi: RoiBox) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = roi.axes, roi.centre
    return matrix


def _is_at(node: Any, roi: RoiBox) -> bool:
    there = slicer.util.arrayFromVTKMatrix(node.GetObjectToNodeMatrix())
    return np.allclose(there, _matrix(roi)) and np.allclose(node.GetSize(), roi.size)


def _put_roi(node: Any, roi: RoiBox) -> None:
    if not _is_at(node, roi):
        node.SetAndObserveObjectToNodeMatrix(slicer.util.vtkMatrixFromArray(_matrix(roi)))
        node.SetSize(*roi.size)


def _corners(roi: Any) -> np.ndarray:
    """The eight corners of a region of interest, ``[8, 3]`` in the node's RAS."""
    half = np.array(roi.GetSize()) / 2
    matrix = slicer.util.arrayFromVTKMatrix(roi.GetObjectToNodeMatrix())
    signs = np.array(list(product((-1.0, 1.0), repeat=3)))
    return signs * half @ matrix[:3, :3].T + matrix[:3, 3]
