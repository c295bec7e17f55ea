"""What the readers of the file formats hand on: one grey image, and what its header says of it (no patient data)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from xflow_core.domain.errors import RadiographRefused

MIN_SIDE = 64
"""Smaller images hold no readable chest."""

MAX_SIDE = 8192
MAX_PIXELS = 36_000_000
"""Twice the pixels of the largest chest detectors (about 4300 x 4300); it also bounds the memory and time of a read."""

COLOUR_TOLERANCE = 12 / 255
"""How far the channels of a grey picture may lie apart: what JPEG's chroma coding leaves, as a share of full scale."""

COLOURED_SHARE = 0.001
"""The share of pixels that may be coloured all the same: a side marker, a stamp."""


@dataclass(frozen=True)
class Window:
    """A window that the file offers to viewers, in units of ``Radiograph.values``; ``function`` is DICOM's name."""

    centre: float
    width: float
    explanation: str = ""
    function: str = "LINEAR"


@dataclass(frozen=True)
class HeaderEvidence:
    """What the header says that tells whether this is one frontal chest radiograph; None where it says nothing.

    Free text is left out, it may name the patient. ``orientation`` is Patient Orientation (0020,0020): where the rows
    and where the columns lead. ``colour`` is true when grey pixels were stored as colour or through a palette.
    """

    modality: str | None = None
    sop_class_uid: str | None = None
    body_part: str | None = None
    view_position: str | None = None
    view_code: str | None = None
    orientation: tuple[str, str] | None = None
    presentation_intent: str | None = None
    colour: bool = False


@dataclass(frozen=True, eq=False)
class Content:
    """One image as the reader of its format gives it; the fields mean what they mean in ``Radiograph``."""

    source: str
    values: np.ndarray
    display: np.ndarray
    padding: np.ndarray | None = None
    header: HeaderEvidence = field(default_factory=HeaderEvidence)
    photometric: str | None = None
    sop_instance_uid: str | None = None
    spacing_mm: tuple[float, float] | None = None
    spacing_kind: str = "none"
    windows: tuple[Window, ...] = ()
    warnings: tuple[str, ...] = ()


def check_size(rows: int, columns: int, name: str) -> None:
    """Refuse, from the header alone and before any pixel is decoded, a size that no radiograph has.

    Raises:
        RadiographRefused: a side is under :data:`MIN_SIDE` or over :data:`MAX_SIDE`, or all is over :data:`MAX_PIXELS`.
    """
    if rows < MIN_SIDE or columns < MIN_SIDE:
        raise RadiographRefused(f"{name} is {rows} x {columns} pixels; a radiograph has at least {MIN_SIDE} a side.")
    if rows > MAX_SIDE or columns > MAX_SIDE or rows * columns > MAX_PIXELS:
        raise RadiographRefused(
            f"{name} is {rows} x {columns} pixels; XFlow reads at most {MAX_SIDE} a side and {MAX_PIXELS // 10**6} "
            "million in all: make it smaller first."
        )


def grey_of_colour(pixels: np.ndarray, full_scale: int, name: str, accept: bool = False) -> np.ndarray:
    """The grey picture in an ``[H, W, 3]`` red-green-blue array whose channels are equal, as float32 ``[H, W]``.

    Raises:
        RadiographRefused: the channels differ by more than coding noise: a colour picture; not when ``accept`` is true.
    """
    highest = pixels.max(axis=2)
    lowest = pixels.min(axis=2)
    if (
        not accept
        and np.count_nonzero(highest - lowest > COLOUR_TOLERANCE * full_scale) > COLOURED_SHARE * highest.size
    ):
        raise RadiographRefused(f"{name} is a colour picture; a radiograph is grey.")
    return pixels.mean(axis=2, dtype=np.float32)
