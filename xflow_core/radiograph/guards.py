"""Is this one frontal chest radiograph? What the header says, and what the pixels alone rule out.

A refusal is for what is plainly something else; a warning is for what the reader should check. A header may lie (a
lateral labelled PA), so a bundle's learned guard looks at the picture besides.
"""

from __future__ import annotations

import re

import numpy as np

from .content import HeaderEvidence
from .display import stretch
from .reading import Radiograph, grey_range

_RADIOGRAPHY = {"CR", "DX", "DR", "RG", "RF"}
_UNTOLD = {"OT", "SC"}
"""Modalities of converted pictures (Other, and a common misuse of the SOP class's name): they say nothing."""

_OTHER_MODALITIES = {"CT", "MR", "US", "MG", "NM", "PT", "XA", "IO", "PX", "ES", "OP", "SM", "XC", "BMD", "DXA", "SEG"}

_IMAGE_CLASSES = (
    "1.2.840.10008.5.1.4.1.1.1",  # CR, and beneath it DX for presentation and for processing
    "1.2.840.10008.5.1.4.1.1.7",  # secondary capture, single and multi-frame
    "1.2.840.10008.5.1.4.1.1.12.2",  # X-ray radiofluoroscopic
)

_CHEST = ("CHEST", "THORA", "TORAX", "TORACE", "LUNG", "PULM", "BRUST", "POITRINE", "RIB")
_ELSEWHERE = (
    "ABDOM", "ACJOINT", "ANKLE", "ARM", "BLADDER", "BRAIN", "BREAST", "CALCAN", "CALF", "CLAVIC", "COCCYX", "COLON",
    "ELBOW", "EXTREM", "EYE", "FACE", "FACIAL", "FEMUR", "FINGER", "FIBULA", "FOOT", "FOREARM", "HAND", "HEAD", "HIP",
    "HUMER", "JAW", "KIDNEY", "KNEE", "LEG", "LIVER", "MANDIB", "MAXILLA", "NECK", "NOSE", "ORBIT", "PATELLA", "PELVI",
    "RADIUS", "SACRUM", "SCAPULA", "SHOULDER", "SINUS", "SKULL", "SPINE", "STERNUM", "TEETH", "THIGH", "THUMB", "TIBIA",
    "TOE", "TOOTH", "ULNA", "WRIST", "ZYGOMA",
)  # fmt: skip
"""Beginnings of the words by which DICOM (PS3.16 annex L) and stations name other parts of the body."""

_QUALIFIERS = {"UPPER", "LOWER", "LEFT", "RIGHT"}

_SIDEWAYS = re.compile(r"\b(LL|RL|LLAT|RLAT|LAT|LATERAL\w*)\b")
_OBLIQUE = re.compile(r"\b(LLO|RLO|LAO|RAO|LPO|RPO|OBL\w*)\b")
_DECUBITUS = re.compile(r"\b(LLD|RLD|DECUB\w*)\b")
_FRONTAL = re.compile(r"\b(AP|PA|FRONTAL|(ANTERO|POSTERO)[ -]?(ANTERIOR|POSTERIOR)|(ANTERIOR|POSTERIOR)\b.*)")

# Beside each limit, the extreme among the 837 frontal radiographs of the open chest X-ray pack, then the OFFIS test
# patterns' (and noise's) value.
MAX_ASPECT = 2.5  # 1.2
MIN_GREY_SHARE = 0.1  # 0.53
MIN_GREY_LEVELS = 16.0  # 48; 4.3
MAX_FLAT_SHARE = 0.35  # 0.21; 0.48
MIN_STRUCTURE = 0.6  # 0.87; 0.51 (0.00)
MAX_PADDING_SHARE = 0.8


def inspect_header_and_pixels(radiograph: Radiograph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why the image should be refused, and what to be warned of: plain sentences, each list empty when all is well."""
    refusals, warnings = inspect_header(radiograph.header, radiograph.record.source)
    refusals += _of_pixels(radiograph)
    return tuple(refusals), tuple(warnings)


def inspect_header(header: HeaderEvidence, source: str = "dicom") -> tuple[list[str], list[str]]:
    """Refusals and warnings as in :func:`inspect_header_and_pixels`, by the header alone, before any pixel is had."""
    if source != "dicom":
        return [], ["The file does not say what it shows; it is taken for a frontal chest, bright where dense."]
    refusals: list[str] = []
    warnings: list[str] = []
    modality, image_class = header.modality, header.sop_class_uid or ""
    if modality is None or modality in _UNTOLD:
        if not any(image_class == known or image_class.startswith(f"{known}.") for known in _IMAGE_CLASSES):
            refusals.append(f"Its image class ({image_class}) is not one of radiographs.")
        warnings.append("The header does not say that this is a radiograph.")
    elif modality not in _RADIOGRAPHY:
        named = modality if modality in _OTHER_MODALITIES else "another one"
        refusals.append(f"Its modality is {named}, not radiography (CR, DX).")

    part = header.body_part
    if part is None:
        warnings.append("The header does not name the body part.")
    elif not any(word in re.sub(r"[^A-Z]", "", part) for word in _CHEST):
        words = re.findall("[A-Z]+", part)
        known = [word for word in words if word.startswith(_ELSEWHERE) or word.endswith("SPINE")]
        if known:
            # Nothing but known words is repeated: stations let people type here, names too.
            said = " ".join(word for word in words if word in known or word in _QUALIFIERS)
            refusals.append(f"Its header says that it shows another part of the body ({said}).")
        else:
            warnings.append("The header names a body part that XFlow does not know.")

    _of_view(header, refusals, warnings)
    return refusals, warnings


def says_frontal(header: HeaderEvidence) -> bool:
    """Whether the header names a frontal view; false also where it names none."""
    return bool(_FRONTAL.search(_view(header))) and not inspect_header(header)[0]


def _view(header: HeaderEvidence) -> str:
    return " ".join(word for word in (header.view_position, header.view_code) if word)


def _of_view(header: HeaderEvidence, refusals: list[str], warnings: list[str]) -> None:
    view = _view(header)
    row, column = header.orientation or ("", "")
    sideways = row[:1] in ("A", "P") or column[:1] in ("A", "P")
    if _DECUBITUS.search(view):  # "left lateral decubitus" is a frontal view of someone lying on the side
        warnings.append(f"The view is a decubitus ({view}): XFlow knows upright and supine ones.")
    elif _SIDEWAYS.search(view):
        refusals.append(f"Its header says that it is a lateral view ({view}).")
    elif _OBLIQUE.search(view):
        refusals.append(f"Its header says that it is an oblique view ({view}).")
    elif sideways:
        refusals.append(f"Its Patient Orientation ({row}\\{column}) is that of a lateral view.")
    elif not view:
        warnings.append("The header does not name the view; it is taken for frontal.")
    elif not _FRONTAL.search(view):
        warnings.append(f"The header names a view that XFlow does not know ({view}); it is taken for frontal.")
    if row and not sideways and (row[0], column[0]) != ("L", "F"):
        if (row[0], column[0]) == ("R", "F"):
            warnings.append(
                "Patient Orientation (R\\F) says that the picture is mirrored: left and right may be exchanged."
            )
        else:
            warnings.append(
                f"Patient Orientation ({row}\\{column}) says that the picture is turned; XFlow expects the head at the "
                "top and the patient's right on the left."
            )


def _of_pixels(radiograph: Radiograph) -> list[str]:
    """Refusals by simple measures of the picture, stretched to 0 .. 255 as the engine sees it."""
    rows, columns = radiograph.values.shape
    row_mm, column_mm = radiograph.record.spacing_mm or (1.0, 1.0)
    height, width = rows * row_mm, columns * column_mm
    if max(height, width) > MAX_ASPECT * min(height, width):
        return [f"It is {columns} x {rows} pixels, far from the shape of a chest."]
    if radiograph.padding is not None and radiograph.padding.mean() > MAX_PADDING_SHARE:
        return ["Nearly all of it is padding."]
    if radiograph.values.min() == radiograph.values.max():
        return ["It is blank: all pixels are alike."]

    # About 512 pixels a side in blocks of 4 x 4, whatever the size, so that the measures mean the same everywhere.
    step = max(1, min(rows, columns) // 512)
    grey = stretch(radiograph.values[::step, ::step], *grey_range(radiograph))
    side = max(1, min(grey.shape) // 128)
    blocks = _in_blocks(grey, side)
    means = blocks.mean(axis=(1, 3))
    levels = np.bincount((grey * 255.0).astype(np.uint8).reshape(-1), minlength=256)[1:255]
    if levels.sum() < MIN_GREY_SHARE * grey.size or _effective(levels) < MIN_GREY_LEVELS:
        return ["It has only a few grey levels, as a drawing, a text or a test pattern has."]
    shaded = (means > 0.02) & (means < 0.98)
    flat = blocks.max(axis=(1, 3)) == blocks.min(axis=(1, 3))
    if side > 1 and shaded.any() and flat[shaded].mean() > MAX_FLAT_SHARE:
        return ["Large parts of it are of one even grey, as in a drawing or a test pattern."]
    if float(_in_blocks(means, 2).mean(axis=(1, 3)).var()) < MIN_STRUCTURE * float(grey.var()):
        return ["It has no large shapes, only noise or a fine pattern: no anatomy can be seen."]
    return []


def _in_blocks(grey: np.ndarray, side: int) -> np.ndarray:
    """``[rows of blocks, side, columns of blocks, side]``; what is left over at the edges is cut."""
    rows, columns = grey.shape[0] // side, grey.shape[1] // side
    return grey[: rows * side, : columns * side].reshape(rows, side, columns, side)


def _effective(counts: np.ndarray) -> float:
    """How many levels are really used: the exponential of the histogram's entropy."""
    shares = counts[counts > 0] / counts.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
