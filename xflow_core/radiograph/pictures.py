"""PNG, JPEG and TIFF through Pillow: the stored pixel matrix as it is, grey only."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from xflow_core.domain.errors import RadiographError, RadiographRefused

from .content import Content, HeaderEvidence, check_size, grey_of_colour
from .display import stretch, to_bytes
from .quiet import quiet_native

_BITS_PER_SAMPLE, _PHOTOMETRIC, _ORIENTATION = 258, 262, 274
_WHITE_IS_ZERO = 0
_TURNED_BACK = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
"""For each orientation, the number of the Pillow transposition that undoes Pillow's own."""
_GREY = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N", "I", "F")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa")


def read_picture(data: bytes, source: str, name: str, accept: bool = False) -> Content:
    """The image in the bytes of a ``source`` ("png", "jpeg" or "tiff") file.

    Bright is taken as dense: these formats cannot say otherwise (but for TIFF's WhiteIsZero, which is honoured). An
    orientation tag is not applied, since masks and boxes belong to the stored matrix; a warning names it.

    Raises:
        RadiographRefused: colour, several pages, or a size that no radiograph has.
        RadiographError: damaged, or stored in a way that XFlow does not read.
    """
    warnings: list[str] = []
    try:
        with quiet_native():
            image = _open(data, source)
            check_size(image.height, image.width, name)
            if getattr(image, "is_animated", False) and not accept:
                raise RadiographRefused(f"{name} holds several pages; XFlow reads single radiographs.")
            values, colour = _grey(image, data, source, name, warnings, accept)
    except RadiographError:
        raise
    # Pillow's readers raise what they like (OSError, SyntaxError, ValueError, struct.error, ..) on a damaged file.
    except Exception as problem:
        raise RadiographError(
            f"{name} is damaged, or a {source.upper()} of a kind that XFlow cannot read; get it again or export a PNG."
        ) from problem
    return Content(
        source=source,
        values=values.astype(np.float32),
        display=shown(values),
        header=HeaderEvidence(colour=colour),
        warnings=tuple(warnings),
    )


def shown(values: np.ndarray) -> np.ndarray:
    """What a viewer shows of pixels without a window: 8-bit ones as they are, others from the least to the greatest."""
    if values.dtype == np.uint8:
        return values
    return to_bytes(stretch(values.astype(np.float32), float(values.min()), float(values.max())))


def _open(data: bytes, source: str) -> Any:
    """The image, its header read and no pixel decoded.

    The plugins are called by name: ``Image.open`` would try others, and print a warning before the size is checked.
    """
    from PIL import JpegImagePlugin, PngImagePlugin, TiffImagePlugin

    plugins: dict[str, Any] = {
        "png": PngImagePlugin.PngImageFile,
        "jpeg": JpegImagePlugin.JpegImageFile,
        "tiff": TiffImagePlugin.TiffImageFile,
    }
    return plugins[source](io.BytesIO(data))


def _grey(
    image: Any, data: bytes, source: str, name: str, warnings: list[str], accept: bool
) -> tuple[np.ndarray, bool]:
    """The grey pixels ``[H, W]``, and whether they were stored as colour."""
    deep = _is_deep_colour(image, data, source)
    # Pillow itself inverts those of up to 8 bits.
    white_is_zero = source == "tiff" and image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    inverse = white_is_zero and image.mode not in ("1", "L")
    orientation = image.getexif().get(_ORIENTATION, 1)
    if orientation != 1:
        warnings.append(
            f"The file asks viewers to turn the picture (orientation {orientation}); it was read as stored, not turned."
        )
    if image.mode not in _GREY + _COLOUR:
        raise RadiographRefused(f"{name} is a {image.mode} colour picture; a radiograph is grey.")
    if deep:
        pixels, full_scale = _deep_colour(data, source), 65535
    else:
        image.load()
        if source == "tiff" and orientation in _TURNED_BACK:  # Pillow turns TIFF, and only TIFF, by itself
            image = image.transpose(_TURNED_BACK[orientation])
        colour_mode = "RGBA" if image.mode in ("PA", "RGBA", "RGBa") or "transparency" in image.info else "RGB"
        pixels, full_scale = np.asarray(image.convert(colour_mode) if image.mode in _COLOUR else image), 255
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        if pixels[..., -1].min() < full_scale:
            warnings.append("The picture has transparent parts; its transparency was ignored.")
        pixels = pixels[..., :-1]
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    colour = pixels.ndim == 3
    if colour:
        grey = np.rint(grey_of_colour(pixels, full_scale, name, accept)).astype(pixels.dtype)
    else:
        grey = pixels
    if grey.dtype.kind == "f" and not np.isfinite(grey).all():
        raise RadiographError(f"{name} holds pixels that are no numbers (NaN or infinite); export it again.")
    return (grey.max() - grey if inverse else grey), colour


def _is_deep_colour(image: Any, data: bytes, source: str) -> bool:
    """Whether this has several 16-bit channels, which Pillow would cut to 8 bits."""
    if source == "png":
        return data[24] == 16 and data[25] != 0
    if source == "tiff":
        bits = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))
        return isinstance(bits, tuple) and len(bits) > 1 and max(bits) > 8
    return False


def _deep_colour(data: bytes, source: str) -> np.ndarray:
    """The channels of a 16-bit colour PNG or TIFF as uint16 ``[H, W, channels]``."""
    from .volumes import read_through_itk

    pixels = read_through_itk(data, f".{source}")
    if pixels.dtype != np.uint16 or pixels.ndim != 3:
        raise ValueError("not a 16-bit colour picture")
    return pixels
