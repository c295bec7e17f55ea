"""XFlow's own nodes in the scene: found by what they are and which volume they refer to, never by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import slicer

ROLE = "XFlow.role"
"""The attribute that tells XFlow's nodes from all others; its value says what the node holds."""

VOLUME = "XFlow.volume"
"""The role of the node reference to the radiograph. It survives saving, importing twice and renaming."""


def add(volume: Any, kind: str, role: str, name: str, *, transient: bool = False) -> Any:
    """A new node of class ``kind`` that belongs to ``volume``, in its scene and under its transform.

    Args:
        transient: not saved with the scene, and not offered in selectors or in the subject hierarchy.
    """
    scene = volume.GetScene()
    node = scene.CreateNodeByClass(kind)
    node.UnRegister(None)  # the scene's factory gives a reference away
    node.SetAttribute(ROLE, role)
    node.SetName(name if transient else scene.GenerateUniqueName(name))
    if transient:
        node.SetSaveWithScene(False)
        node.SetHideFromEditors(True)
        node.SetAttribute("SubjectHierarchy.ExcludeFromTree", "1")
    scene.AddNode(node)
    node.SetNodeReferenceID(VOLUME, volume.GetID())
    if node.IsA("vtkMRMLTransformableNode"):
        follow(node, volume)
    return node


def find(volume: Any, kind: str, role: str) -> tuple[Any, ...]:
    """The nodes that belong to ``volume``, in the order of the scene."""
    if not alive(volume):
        return ()
    nodes = slicer.util.getNodesByClass(kind, volume.GetScene())
    return tuple(
        node for node in nodes if node.GetAttribute(ROLE) == role and node.GetNodeReferenceID(VOLUME) == volume.GetID()
    )


def alive(node: Any) -> bool:
    """Whether a node is in a scene still: the user may delete any, and close the scene, at any time."""
    return node is not None and node.GetScene() is not None


def follow(node: Any, volume: Any) -> None:
    """Put a node under the volume's transform, so that it lies where the volume is shown."""
    if node.GetTransformNodeID() != volume.GetTransformNodeID():
        node.SetAndObserveTransformNodeID(volume.GetTransformNodeID())


def put_beside(node: Any, volume: Any) -> None:
    """Show a node in the volume's study of the subject hierarchy."""
    hierarchy = slicer.vtkMRMLSubjectHierarchyNode.GetSubjectHierarchyNode(volume.GetScene())
    if hierarchy is None:
        return
    item, beside = hierarchy.GetItemByDataNode(node), hierarchy.GetItemByDataNode(volume)
    if hierarchy.GetInvalidItemID() not in (item, beside):
        hierarchy.SetItemParent(item, hierarchy.GetItemParent(beside))


class Observers:
    """Observers that are removed together."""

    def __init__(self) -> None:
        self._tags: list[tuple[Any, int]] = []

    def add(self, subject: Any, event: Any, call: Callable[[], None]) -> None:
        self._tags.append((subject, subject.AddObserver(event, lambda *_: call())))

    def clear(self) -> None:
        tags, self._tags = self._tags, []
        for subject, tag in tags:
            subject.RemoveObserver(tag)

    def when_gone(self, volume: Any, call: Callable[[], None]) -> None:
        """Call when the volume is removed, or its scene closed (then once that is done)."""
        scene = volume.GetScene()

        def look() -> None:
            if not alive(volume) and not scene.IsClosing():
                call()

        self.add(scene, slicer.vtkMRMLScene.NodeRemovedEvent, look)
        self.add(scene, slicer.vtkMRMLScene.EndCloseEvent, look)
