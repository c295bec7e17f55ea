"""The grey pictures that bundles were trained on, by the name that a bundle's manifest gives (``preprocessing``).

A recipe is a function of the radiograph alone: the same picture for every instruction, made once per image.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from xflow_core.domain.errors import BundleError

from .display import to_bytes
from .encoded import EncodedRadiograph
from .reading import Radiograph, engine_grey

MIMIC_CXR_JPG = "mimic-cxr-jpg"
ENGINE_GREY = "engine-grey"

_JPEG_QUALITY = 95


def recipe_grey(image: EncodedRadiograph, recipe: str) -> np.ndarray:
    """The radiograph as the named recipe makes it, once per image: uint8 ``[H, W]``, the source image frame.

    Raises:
        BundleError: no such recipe.
    """
    grey: np.ndarray = image.feature(f"recipe.{recipe}", check_recipe(recipe))
    return grey


def check_recipe(recipe: str) -> Callable[[Radiograph], np.ndarray]:
    """The named recipe's function.

    Raises:
        BundleError: no such recipe.
    """
    if recipe not in RECIPES:
        raise BundleError(f"There is no preprocessing recipe {recipe!r}; known: {', '.join(sorted(RECIPES))}.")
    return RECIPES[recipe]


def mimic_cxr_jpg(radiograph: Radiograph) -> np.ndarray:
    """MIMIC-CXR-JPG's way from DICOM to JPEG (Johnson et al. 2019, section "DICOM to JPEG"): uint8 ``[H, W]``.

    From the least to the greatest pixel to 0 .. 255, cut to whole numbers; MONOCHROME1 inverted; the histogram
    equalised as OpenCV does; JPEG of quality 95, whose traces the models saw too. The data set's authors took stored
    pixels; here the modality LUT stands before, which changes nothing where it is a line that rises, and padding is the
    darkest pixel. A picture that went this way before (a JPEG of that data set) hardly changes.
    """
    values = radiograph.values.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if high > low:
        # Equalising can spread two levels far apart, so each pixel must be cut to the very level that the data set has:
        # MONOCHROME1 as it was stored, and inverted then.
        if radiograph.record.photometric == "MONOCHROME1":
            levels = 255 - ((high - values) / (high - low) * 255).astype(np.uint8)
        else:
            levels = ((values - low) / (high - low) * 255).astype(np.uint8)
    else:
        levels = np.zeros(values.shape, np.uint8)
    return _through_jpeg(equalised(levels))


def equalised(levels: np.ndarray) -> np.ndarray:
    """Histogram equalisation as OpenCV's ``equalizeHist`` computes it: uint8 ``[H, W]`` to the same.

    The darkest level that occurs becomes 0, and every other one 255 times the share of the remaining pixels that are
    not brighter. A constant picture stays as it is.
    """
    counts = np.bincount(levels.ravel(), minlength=256)
    first = int(np.flatnonzero(counts)[0])
    others = levels.size - int(counts[first])
    if others == 0:
        return levels
    below = np.cumsum(counts) - counts[first]
    scale = np.float32(255.0) / np.float32(others)
    table = np.rint(np.clip(below, 0, None).astype(np.float32) * scale)
    return np.clip(table, 0, 255).astype(np.uint8)[levels]


def _through_jpeg(grey: np.ndarray) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return np.array(Image.open(buffer))


def _engine_grey(radiograph: Radiograph) -> np.ndarray:
    """What the compact bundle sees, in whole grey levels."""
    return to_bytes(engine_grey(radiograph))


RECIPES: dict[str, Callable[[Radiograph], np.ndarray]] = {
    MIMIC_CXR_JPG: mimic_cxr_jpg,
    ENGINE_GREY: _engine_grey,
}
