"""CXAS: a folder a radiograph, a one-bit PNG a structure, named in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from xflow_core.domain.findings import LUNGS
from xflow_core.domain.geometry import Box

from .problems import Problems


def read_organ(folder: Path, dicom_id: str, label: str) -> np.ndarray | None:
    """A structure's mask, bool ``[H, W]``; None where there is no readable file (PNG, or JPG with its noise)."""
    for ending in ("png", "jpg"):
        path = folder / dicom_id / f"{label}.{ending}"
        if path.is_file():
            try:
                with Image.open(path) as picture:
                    return np.asarray(picture.convert("L")) > 127
            except OSError:
                return None
    return None


def read_lungs(
    folder: Path, dicom_id: str, problems: Problems, size: tuple[int, int] | None = None
) -> dict[str, Box] | None:
    """The tight boxes of both lungs; None, and a problem, where one cannot be had.

    Args:
        size: the radiograph's ``(height, width)``, which the masks must agree with.
    """
    boxes = {}
    for label in LUNGS:
        mask = read_organ(folder, dicom_id, label)
        if mask is None:
            problems.add("lungs_missing", folder / dicom_id, dicom_id, label)
            return None
        if size is not None and mask.shape != size:
            problems.add("size_differs", folder / dicom_id, dicom_id, f"{mask.shape}, the radiograph is {size}")
            return None
        box = Box.around(mask)
        if box is None:
            problems.add("lungs_missing", folder / dicom_id, dicom_id, f"{label} is empty")
            return None
        boxes[label] = box
    return boxes
