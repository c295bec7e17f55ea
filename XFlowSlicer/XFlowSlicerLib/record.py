"""A radiograph's session in the scene: a text node that is saved with it, and says which volume it belongs to."""

from __future__ import annotations

from typing import Any

import slicer

from . import nodes
from .segments import RESULTS

RECORD = "record"
"""The role of the text node, see :data:`nodes.ROLE`."""

SEGMENTATION = "XFlow.segmentation"
"""The role of its reference to the results."""


def save(volume: Any, json_text: str) -> Any:
    """Keep the session of a volume in the scene; what was kept of it before is replaced.

    Returns:
        The text node; None when the volume is in no scene any more.
    """
    if not nodes.alive(volume):
        return None
    sweep(volume.GetScene())
    node = _node(volume)
    if node is None:
        node = nodes.add(volume, "vtkMRMLTextNode", RECORD, f"{volume.GetName()} session")
        nodes.put_beside(node, volume)
    if node.GetText() != json_text:
        node.SetText(json_text)
    results = nodes.find(volume, "vtkMRMLSegmentationNode", RESULTS)
    node.SetNodeReferenceID(SEGMENTATION, results[0].GetID() if results else None)
    return node


def load(volume: Any) -> str | None:
    """The session that the scene keeps for a volume; None when there is none."""
    node = _node(volume)
    return (node.GetText() or None) if node is not None else None


def remove(volume: Any) -> None:
    """Take the session of a volume out of the scene."""
    for node in nodes.find(volume, "vtkMRMLTextNode", RECORD):
        node.GetScene().RemoveNode(node)


def sweep(scene: Any) -> None:
    """Take out the sessions of volumes that were deleted: nothing could go on from them."""
    for node in slicer.util.getNodesByClass("vtkMRMLTextNode", scene):
        if node.GetAttribute(nodes.ROLE) == RECORD and node.GetNodeReference(nodes.VOLUME) is None:
            scene.RemoveNode(node)


def _node(volume: Any) -> Any:
    return next(iter(nodes.find(volume, "vtkMRMLTextNode", RECORD)), None)
