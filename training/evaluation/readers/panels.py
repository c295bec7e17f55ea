"""The pictures of a case: the radiograph, and each mask as an outline over a faint fill, all in one colour."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from xflow_core import NOT_FOR_CLINICAL_USE

from .design import LETTERS

LONGEST_SIDE = 900
_COLOUR = (64, 224, 255)
_FILL = 60  # of 255
_LEAST = 64  # of 255: a pixel of the smaller picture belongs to the mask from a quarter on, so that specks stay visible
_RING = 2  # pixels


@dataclass(frozen=True, eq=False)
class CasePictures:
    """One radiograph and its masks at the study's size. radiograph: uint8 ``[h, w]``; masks: bool ``[h, w]``, by the
    system's name."""

    radiograph: np.ndarray
    masks: dict[str, np.ndarray]

    @classmethod
    def of(cls, display: np.ndarray, masks: dict[str, np.ndarray], longest: int = LONGEST_SIDE) -> CasePictures:
        """From the source size: display uint8 ``[H, W]``, masks bool ``[H, W]``."""
        height, width = display.shape
        factor = min(1.0, longest / max(height, width))
        size = (max(1, round(width * factor)), max(1, round(height * factor)))
        small = np.asarray(Image.fromarray(display).resize(size, Image.Resampling.LANCZOS))
        shrunk = {}
        for name, mask in masks.items():
            grey = Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).resize(size, Image.Resampling.BOX)
            shrunk[name] = np.asarray(grey) >= _LEAST
        return cls(small, shrunk)

    @property
    def middle(self) -> tuple[float, float]:
        """Where all masks together lie, ``(x, y)`` in [0, 1]: the sheet zooms in there, alike for each letter."""
        rows, columns = np.nonzero(np.logical_or.reduce(list(self.masks.values())))
        height, width = self.radiograph.shape
        if not rows.size:
            return 0.5, 0.5
        middle = (columns.min() + columns.max() + 1) / 2 / width, (rows.min() + rows.max() + 1) / 2 / height
        return round(float(middle[0]), 4), round(float(middle[1]), 4)


def ring_of(mask: np.ndarray) -> np.ndarray:
    """The line around a mask, outside it, so that what the line hides is not the mask: bool ``[h, w]``."""
    return ndimage.binary_dilation(mask, np.ones((3, 3)), iterations=_RING) & ~mask


def jpeg_of(radiograph: np.ndarray) -> str:
    """A data address."""
    return _address(Image.fromarray(radiograph), "JPEG", quality=90)


def overlay_of(mask: np.ndarray) -> str:
    """A data address: a transparent picture with the mask's outline and fill. It holds nothing else."""
    indices = mask.astype(np.uint8)
    indices[ring_of(mask)] = 2
    picture = Image.fromarray(indices, "P")
    picture.putpalette([0, 0, 0, *_COLOUR, *_COLOUR])
    return _address(picture, "PNG", transparency=bytes((0, _FILL, 255)), optimize=True)


def panel_of(pictures: CasePictures, order: Sequence[str], title: str) -> bytes:
    """A PNG for readers of the CSV sheet: the radiograph, then each mask under its letter."""
    height, width = pictures.radiograph.shape
    font = ImageFont.load_default(22)
    head, gap = 76, 8
    page = Image.new("RGB", ((width + gap) * (len(order) + 1) - gap, height + head), (18, 20, 24))
    draw = ImageDraw.Draw(page)
    draw.text((8, 4), f"{title}   ({NOT_FOR_CLINICAL_USE})", fill=(236, 238, 242), font=font)
    plain = np.repeat(pictures.radiograph[:, :, None], 3, axis=2)
    for k, name in enumerate([None, *order]):
        shown = plain.copy()
        if name is not None:
            mask = pictures.masks[name]
            fill = _FILL / 255
            shown[mask] = np.rint(plain[mask] * (1 - fill) + np.array(_COLOUR) * fill).astype(np.uint8)
            shown[ring_of(mask)] = _COLOUR
        page.paste(Image.fromarray(shown), (k * (width + gap), head))
        label = "radiograph" if k == 0 else LETTERS[k - 1]
        draw.text((k * (width + gap) + 8, 40), label, fill=(236, 238, 242), font=font)
    buffer = io.BytesIO()
    page.save(buffer, "PNG")
    return buffer.getvalue()


def _address(picture: Image.Image, kind: str, **options: object) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
