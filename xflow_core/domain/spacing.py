"""The pixel spacing of a radiograph, and in which plane it holds (PS3.3 10.7.1): never invented."""

from __future__ import annotations

import math
from collections.abc import Sequence

Spacing = tuple[float, float]

MAX_FIELD_MM = 1000.0
"""No chest detector is a metre high. A wider field means a spacing that was filled in (1 mm, mostly), not measured."""

MIN_FIELD_MM = 20.0


def _valid(values: Sequence[float] | None) -> Spacing | None:
    """``(row, column)`` in mm when both are positive: the standard allows no zero here, and real files hold it."""
    if values is None or len(values) != 2:
        return None
    row, column = (float(value) for value in values)
    if not (math.isfinite(row) and math.isfinite(column) and row > 0.0 and column > 0.0):
        return None
    return row, column


def _plausible(spacing: Spacing, size: tuple[int, int]) -> bool:
    fields = (spacing[0] * size[0], spacing[1] * size[1])
    return max(fields) <= MAX_FIELD_MM and min(fields) >= MIN_FIELD_MM


def _equal(one: Spacing, other: Spacing) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(one, other, strict=True))


def dicom_spacing(
    size: tuple[int, int],
    *,
    pixel: Sequence[float] | None,
    imager: Sequence[float] | None,
    nominal: Sequence[float] | None,
    calibration: str | None,
) -> tuple[Spacing | None, str, list[str]]:
    """The spacing of a projection radiograph: ``(row, column)`` in mm, its kind, and warnings.

    ``pixel`` is Pixel Spacing (0028,0030), ``imager`` Imager Pixel Spacing (0018,1164), ``nominal`` Nominal Scanned
    Pixel Spacing (0018,2010, of a digitised film), ``calibration`` Pixel Spacing Calibration Type (0028,0A02).

    - "patient": Pixel Spacing with a calibration type, or other than Imager Pixel Spacing: by the standard the
      image has then been corrected for magnification (GEOMETRY) or by an object of known size (FIDUCIAL).
    - "detector": the spacing at the detector's or the film's plane; in the patient everything is smaller, by a
      magnification that the file does not give. Pixel Spacing alone, with no calibration type, does not say what it is:
      it is taken as this weaker kind, with a warning.
    - "none": nothing usable is stated. Zeros, and values that make the image over a metre wide, are not usable.
    """
    warnings: list[str] = []
    found: dict[str, Spacing] = {}
    named = (("Pixel Spacing", pixel), ("Imager Pixel Spacing", imager), ("Nominal Scanned Pixel Spacing", nominal))
    for name, values in named:
        if values is None or len(values) == 0:
            continue
        spacing = _valid(values)
        if spacing is None:
            warnings.append(f"{name} in the header is not a pair of positive numbers and was ignored.")
        elif not _plausible(spacing, size):
            warnings.append(f"{name} in the header cannot be that of a chest radiograph and was ignored.")
        else:
            found[name] = spacing
    in_patient, at_detector = found.get("Pixel Spacing"), found.get("Imager Pixel Spacing")
    if in_patient is not None:
        if calibration:
            return in_patient, "patient", warnings
        if at_detector is None:
            warnings.append(
                "The header does not say in which plane Pixel Spacing holds; the detector's was taken, uncalibrated."
            )
            return in_patient, "detector", warnings
        return in_patient, "detector" if _equal(in_patient, at_detector) else "patient", warnings
    spacing = at_detector or found.get("Nominal Scanned Pixel Spacing")
    return spacing, "none" if spacing is None else "detector", warnings


def volume_spacing(size: tuple[int, int], spacing: Sequence[float]) -> tuple[Spacing | None, str, list[str]]:
    """The same for NIfTI, NRRD and MHA, whose ``spacing`` is ``(row, column)`` in mm.

    These formats cannot say in which plane a spacing holds, and their writers put 1 where none is known. So 1 means
    none, and anything else is taken as the detector's, with a warning.
    """
    found = _valid(spacing)
    if found is None or found == (1.0, 1.0):
        return None, "none", []
    if not _plausible(found, size):
        return None, "none", ["The pixel spacing in the header cannot be that of a chest radiograph and was ignored."]
    return (
        found,
        "detector",
        ["The header does not say in which plane its pixel spacing holds; the detector's was taken, uncalibrated."],
    )
