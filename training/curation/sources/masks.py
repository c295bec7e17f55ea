"""MIMIC-ILS's mask files, in the radiograph's frame."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from .problems import Problems

# Aspect ratios may differ by the rounding of a smaller side to whole pixels, not by more.
_ASPECT = 0.02


def read_mask(path: Path, size: tuple[int, int], problems: Problems, enlarged: bool = True) -> np.ndarray | None:
    """A lesion mask, bool ``[H, W]`` of the radiograph's ``size`` ``(height, width)``; as stored without ``enlarged``.

    The set stores 0 and 255, at sizes of its own: a mask of the radiograph's aspect ratio is enlarged by the nearest
    pixel, any other cannot be placed. None for what cannot be used, which is added to ``problems``.
    """
    stored = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) if path.is_file() else None
    if stored is None:
        problems.add("mask_missing", path, path.stem)
        return None
    height, width = stored.shape
    if abs((width / height) / (size[1] / size[0]) - 1) > _ASPECT:
        problems.add("mask_aspect", path, path.stem, f"{height} x {width} on a radiograph of {size[0]} x {size[1]}")
        return None
    if not (stored == 255).any():
        problems.add("mask_empty", path, path.stem)
        return None
    if enlarged and stored.shape != size:
        stored = cv2.resize(stored, (size[1], size[0]), interpolation=cv2.INTER_NEAREST)
    return np.asarray(stored == 255)
