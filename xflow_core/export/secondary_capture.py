"""The overlay as a Secondary Capture (PS3.3 A.8.1) in the source's study, for viewers that show no segmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.errors import ValueRefused
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.trace import BundleIdentity

from .dicom_source import SourceInstance, unusable, write_object
from .equipment import MANUFACTURER, REVIEW_STATES, equipment

SERIES_NUMBER = 9004


def write_secondary_capture(
    path: str | Path,
    overlay: np.ndarray,
    source: SourceInstance,
    *,
    bundle: BundleIdentity,
    reviewed: bool = False,
    uids: Callable[[], str] = generate_uid,
) -> Path:
    """Write a picture of the result. It carries no measure: a picture of a radiograph has no pixel spacing.

    Args:
        overlay: uint8 ``[H, W, 3]``, RGB, as :func:`xflow_core.export.overlay.draw_overlay` makes it; see
            :func:`stacked` for several.
        bundle: what made the result.
        reviewed: whether a person has looked at the result and stands by it.

    Raises:
        ValueRefused: no such picture.
        ExportError: the source's header cannot be used.
        NotWritten: the file cannot be written.
    """
    if overlay.dtype != np.uint8 or overlay.ndim != 3 or overlay.shape[2] != 3 or overlay.size == 0:
        raise ValueRefused(f"An overlay is an RGB picture, uint8 [H, W, 3], not {overlay.dtype} of {overlay.shape}.")
    path = Path(path)
    try:
        with quiet_python():
            made = hd.sc.SCImage.from_ref_dataset(
                ref_dataset=source.dataset,
                pixel_array=np.ascontiguousarray(overlay),
                photometric_interpretation="RGB",
                bits_allocated=8,
                coordinate_system="PATIENT",
                # highdicom wants two of its letters; what the source states, or nothing, is set below.
                patient_orientation=("L", "F"),
                series_instance_uid=uids(),
                series_number=SERIES_NUMBER,
                sop_instance_uid=uids(),
                instance_number=1,
                manufacturer=MANUFACTURER,
                series_description=f"XFlow AI overlay, {NOT_FOR_CLINICAL_USE}",
                transfer_syntax_uid=ExplicitVRLittleEndian,
                **equipment(bundle),
            )
            made.copy_patient_and_study_information(source.dataset)
            made.PatientOrientation = source.dataset.get("PatientOrientation") or ""
            made.Laterality = source.dataset.get("Laterality") or ""  # type 2C; the chest is not paired
            made.BurnedInAnnotation = "NO"
            made.DerivationDescription = f"{REVIEW_STATES[reviewed]} (bundle sha256 {bundle.sha256})"
            reference = pydicom.Dataset()
            reference.ReferencedSOPClassUID = source.sop_class_uid
            reference.ReferencedSOPInstanceUID = source.sop_instance_uid
            made.SourceImageSequence = [reference]
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise unusable(source, problem) from problem
    write_object(path, made, source)
    return path


def stacked(overlays: Sequence[np.ndarray]) -> np.ndarray:
    """Several overlays one below the other, uint8 ``[H, W, 3]``, black beside the narrower ones.

    Raises:
        ValueRefused: there is none.
    """
    if not overlays:
        raise ValueRefused("There is no overlay to show.")
    width = max(overlay.shape[1] for overlay in overlays)
    return np.concatenate([np.pad(o, ((0, 0), (0, width - o.shape[1]), (0, 0))) for o in overlays])
