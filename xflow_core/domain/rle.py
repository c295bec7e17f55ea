"""COCO run lengths: column-major runs, background first, as the compressed string that pycocotools reads and writes.

Written with numpy alone, so that reading a trace needs no compiled extension; the tests hold it against pycocotools.
"""

from __future__ import annotations

import numpy as np

from .errors import ValueRefused


def _runs(mask: np.ndarray) -> np.ndarray:
    flat = np.asarray(mask, bool).ravel(order="F")
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff(np.concatenate(([0], edges, [flat.size])))
    return np.concatenate(([0], runs)) if flat[0] else runs


def encode(mask: np.ndarray) -> str:
    """The compressed string of a non-empty ``[H, W]`` bool mask."""
    runs = _runs(mask).tolist()
    text = bytearray()
    for index, run in enumerate(runs):
        value = run - runs[index - 2] if index > 2 else run
        while True:
            five = value & 0x1F
            value >>= 5
            more = value != (-1 if five & 0x10 else 0)
            text.append((five | 0x20 if more else five) + 48)
            if not more:
                break
    return text.decode("ascii")


def runs_of(counts: str) -> list[int]:
    """The run lengths behind a compressed string, background first."""
    runs: list[int] = []
    value, shift = 0, 0
    for char in map(ord, counts):
        char -= 48
        if not 0 <= char < 64 or shift > 60:
            raise ValueRefused("The mask's run lengths are not a COCO compressed string.")
        value |= (char & 0x1F) << shift
        shift += 5
        if not char & 0x20:
            if char & 0x10:
                value |= -1 << shift
            if len(runs) > 2:
                value += runs[-2]
            if value < 0:
                raise ValueRefused("The mask's run lengths hold a negative run.")
            runs.append(value)
            value, shift = 0, 0
    if shift:
        raise ValueRefused("The mask's run lengths end in the middle of a number.")
    return runs


def check(counts: str, size: tuple[int, int]) -> list[int]:
    """The run lengths, refused unless they fill an image of ``size`` ``(height, width)`` exactly."""
    height, width = size
    if height < 1 or width < 1:
        raise ValueRefused(f"A mask of {height} x {width} pixels cannot be.")
    runs = runs_of(counts)
    if sum(runs) != height * width:
        raise ValueRefused(f"The mask's run lengths cover {sum(runs)} pixels, the image has {height * width}.")
    return runs


def decode(counts: str, size: tuple[int, int]) -> np.ndarray:
    """The ``[H, W]`` bool mask behind a compressed string."""
    runs = check(counts, size)
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return np.ascontiguousarray(flat.reshape(size, order="F"))


def area(counts: str) -> int:
    """The number of true pixels."""
    return sum(runs_of(counts)[1::2])
