"""DICOM's grey pipeline: modality LUT, then VOI (a LUT before a window), then presentation (PS3.3 C.11, PS3.4 N.2).

A stored sample has at most 16 bits, so the readers compute each stage once for every possible sample, in float64, and
look the image up in the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .content import Window

LINEAR, LINEAR_EXACT, SIGMOID = FUNCTIONS = ("LINEAR", "LINEAR_EXACT", "SIGMOID")


@dataclass(frozen=True, eq=False)
class LookupTable:
    """A modality or VOI LUT (C.11.1.1, C.11.2.1.1).

    ``first`` is the input of the first entry: inputs below it take the first entry, inputs past the end the last one.
    ``data`` is float64 ``[n]``; its entries are meant to fill 0 .. 2**bits - 1.
    """

    first: int
    data: np.ndarray
    bits: int

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Float64 entries for float64 inputs of any shape."""
        index = np.clip(np.rint(values) - self.first, 0, len(self.data) - 1)
        return self.data[index.astype(np.intp)]

    @property
    def full_scale(self) -> float:
        """The output that stands for the brightest."""
        return float(2**self.bits - 1)


def window_is_usable(window: Window) -> bool:
    """C.11.2.1.2.1: a width is at least 1 for LINEAR and above 0 for the other functions."""
    if not (np.isfinite(window.centre) and np.isfinite(window.width)):
        return False
    return window.width >= 1.0 if window.function == LINEAR else window.width > 0.0


def apply_window(values: np.ndarray, window: Window) -> np.ndarray:
    """Float64 values of any shape through a usable window, to [0, 1] (C.11.2.1.2, C.11.2.1.3)."""
    centre, width = window.centre, window.width
    if window.function == SIGMOID:
        # Far below the centre exp() overflows to infinity, and the quotient to the 0 that it should be.
        with np.errstate(over="ignore"):
            return 1.0 / (1.0 + np.exp(-4.0 * (values - centre) / width))
    if window.function == LINEAR_EXACT:
        return np.clip((values - centre) / width + 0.5, 0.0, 1.0)
    if width == 1.0:  # a threshold, by the standard's first two cases
        return np.where(values <= centre - 0.5, 0.0, 1.0)
    return np.clip((values - (centre - 0.5)) / (width - 1.0) + 0.5, 0.0, 1.0)


def mirror_window(window: Window, total: float) -> Window:
    """The window that shows ``total - values`` as the negative of what ``window`` shows of ``values``."""
    # LINEAR is centred half a value below its centre.
    centre = total - window.centre + (1.0 if window.function == LINEAR else 0.0)
    return Window(centre, window.width, window.explanation, window.function)


def stretch(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """``low`` .. ``high`` to [0, 1], cut off beyond; zeros where nothing lies between them."""
    if not high > low:
        return np.zeros_like(values)
    return np.clip((values - low) / (high - low), 0.0, 1.0)


def to_bytes(fraction: np.ndarray) -> np.ndarray:
    """[0, 1] to uint8 0 .. 255."""
    return np.rint(np.clip(fraction, 0.0, 1.0) * 255.0).astype(np.uint8)
