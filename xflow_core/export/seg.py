"""Masks as a DICOM Segmentation (PS3.3 A.51): one object for all present findings of an image.

The masks lie in the source's own pixel matrix, bit for bit (BINARY, overlaps allowed). Where in space that matrix lies
is another question, and nearly no CR or DX answers it: it has no Frame of Reference. Three cases:

- The source has a Frame of Reference, a position, an orientation and a spacing: the SEG has the same.
- ``geometry="none"``: the SEG has none either, as the standard allows. highdicom reads it; many viewers cannot.
- ``geometry="synthetic"``: a Frame of Reference of the SEG's own, position 0\\0\\0, identity orientation and the
  spacing of the header (1 mm where there is none). OHIF, dcmqi and 3D Slicer open this one. It is invented, so the
  series description says so, and nothing in XFlow measures by it. The reference to the real source is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
from pydicom.uid import ExplicitVRLittleEndian, SegmentationStorage, generate_uid

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.codes import FINDING_CODES, place_codes
from xflow_core.domain.errors import CallError, ExportError, NotWritten
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.trace import Mask, PresenceStep, ResultStep, Trace

from .dicom_source import SourceInstance, check_traces, decimal_string, unusable, write_object
from .equipment import MANUFACTURER, REVIEW_STATES, algorithm, dicom_code, equipment, long_string
from .words import decided_by_user

GEOMETRIES = ("synthetic", "none")
SERIES_NUMBER = 9001
UNKNOWN_SPACING_MM = 1.0
NO_THICKNESS_MM = 1.0


@dataclass(frozen=True)
class SegSegment:
    """A segment: its number in the file, the finding, where it was found, and the identity that other objects use."""

    number: int
    finding: str
    region: str
    tracking_id: str
    tracking_uid: str


@dataclass(frozen=True)
class WrittenSeg:
    """A SEG on disk, as the report and the viewer refer to it.

    Attributes:
        warnings: sentences for the reader, such as an invented spacing.
    """

    path: Path
    sop_class_uid: str
    sop_instance_uid: str
    series_uid: str
    segments: tuple[SegSegment, ...]
    warnings: tuple[str, ...] = ()

    def segment_of(self, finding: str) -> SegSegment | None:
        """The finding's segment; None when it is not in the file."""
        return next((segment for segment in self.segments if segment.finding == finding), None)


def write_seg(
    path: str | Path,
    traces: Sequence[Trace],
    source: SourceInstance,
    *,
    geometry: str = "synthetic",
    reviewed: bool = False,
    uids: Callable[[], str] = generate_uid,
) -> WrittenSeg | None:
    """Write the masks of all present findings as one SEG; without a present finding there is no file.

    Args:
        traces: one per finding, all of the source image. Those that are absent or have no answer make no segment.
        geometry: what a source without a Frame of Reference gets; one that has it is not affected.
        reviewed: whether a person has looked at the result and stands by it.
        uids: where new UIDs come from.

    Returns:
        What was written. None when no finding is present: then an older file of that name is removed, since an empty
        segment makes several viewers fail, and absence is the report's to state.

    Raises:
        ExportError: the traces are not of the source image, or its header cannot be used.
        CallError: the geometry has another name.
        NotWritten: the file cannot be written.
    """
    check_geometry(geometry)
    check_traces(traces, source)
    path = Path(path)
    found = [(trace, mask) for trace in traces if (mask := _mask_of(trace)) is not None]
    if not found:
        _remove(path)
        return None
    segments = [_segment(number, trace, uids()) for number, (trace, _) in enumerate(found, start=1)]
    header, label, warnings = _placed(source, geometry, uids)
    # [1, H, W, S] with each segment's pixels together.
    pixels = np.moveaxis(np.stack([mask.array for _, mask in found]), 0, -1)[None]
    try:
        with quiet_python():
            made = hd.seg.Segmentation(
                source_images=[header],
                pixel_array=pixels,
                segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
                segment_descriptions=[
                    _description(segment, trace) for segment, (trace, _) in zip(segments, found, strict=True)
                ],
                series_instance_uid=uids(),
                series_number=SERIES_NUMBER,
                sop_instance_uid=uids(),
                instance_number=1,
                manufacturer=MANUFACTURER,
                content_label="XFLOW",
                content_description=REVIEW_STATES[reviewed],
                series_description=label,
                transfer_syntax_uid=ExplicitVRLittleEndian,
                **equipment(found[0][0].bundle),
            )
            made.ContentCreatorName = ""  # type 2; no person made it
            if made.get("FrameOfReferenceUID") is None:
                # Type 2C of General Image: wanted where no position and orientation tell it.
                made.PatientOrientation = source.dataset.get("PatientOrientation") or ""
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise unusable(source, problem) from problem
    write_object(path, made, source)
    return WrittenSeg(
        path=path,
        sop_class_uid=str(SegmentationStorage),
        sop_instance_uid=str(made.SOPInstanceUID),
        series_uid=str(made.SeriesInstanceUID),
        segments=tuple(segments),
        warnings=warnings,
    )


def check_geometry(geometry: str) -> str:
    if geometry not in GEOMETRIES:
        raise CallError(f"{geometry!r} is no DICOM geometry of XFlow; choose one of {', '.join(GEOMETRIES)}.")
    return geometry


def segment_label(finding: str, region: str) -> str:
    """``Effusion, left lung``, at most 64 characters; it begins with the finding, which codes cannot always say."""
    return long_string(f"{finding.capitalize()}, {region}")


def found_in(trace: Trace) -> tuple[str, ...]:
    """The regions that the finding was found in, or before any such verdict those asked about."""
    step: PresenceStep | None = trace.last(PresenceStep)
    regions = () if step is None else tuple(verdict.region for verdict in step.verdicts if verdict.present)
    return regions or trace.instruction.regions


def _mask_of(trace: Trace) -> Mask | None:
    if trace.result is None or trace.result.status != "present":
        return None
    step: ResultStep | None = trace.last(ResultStep)
    if step is None or step.mask is None:
        raise ExportError("A trace states that the finding is present and holds no mask of it.")
    if step.mask.size != trace.image.size:
        raise ExportError(f"A mask has {step.mask.size} pixels (rows, columns), and its image {trace.image.size}.")
    return step.mask


def _segment(number: int, trace: Trace, uid: str) -> SegSegment:
    finding, region = trace.instruction.finding, ", ".join(found_in(trace))
    return SegSegment(number, finding, region, tracking_id=f"XFlow {finding}: {region}", tracking_uid=str(uid))


def _description(segment: SegSegment, trace: Trace) -> hd.seg.SegmentDescription:
    coded, place = FINDING_CODES[segment.finding], place_codes(found_in(trace))
    by_user = decided_by_user(trace)
    description = hd.seg.SegmentDescription(
        segment_number=segment.number,
        segment_label=segment_label(segment.finding, segment.region),
        segmented_property_category=dicom_code(coded.category),
        segmented_property_type=dicom_code(coded.code),
        algorithm_type="SEMIAUTOMATIC" if by_user else "AUTOMATIC",
        algorithm_identification=algorithm(trace.bundle),
        tracking_uid=segment.tracking_uid,
        tracking_id=segment.tracking_id,
        anatomic_regions=[dicom_code(place.anatomy)],
        display_color=hd.color.CIELabColor.from_rgb(*coded.colour),
    )
    # What makes the side or the mask doubtful (a mirrored picture, ..) travels with it; many readers open no report.
    words = f"{segment.finding.capitalize()} in: {segment.region}. AI result, {NOT_FOR_CLINICAL_USE}."
    edited = (f"Decided by the user: {by_user}.",) if by_user else ()
    words = " ".join((words, *edited, *trace.image.warnings)).encode("ascii", "replace").decode()
    description.SegmentDescription = words[:1024]  # ST
    if place.all_modifiers:
        description.AnatomicRegionSequence[0].AnatomicRegionModifierSequence = [
            hd.sr.CodedConcept.from_code(dicom_code(code)) for code in place.all_modifiers
        ]
    return description


def _placed(
    source: SourceInstance, geometry: str, uids: Callable[[], str]
) -> tuple[pydicom.Dataset, str, tuple[str, ...]]:
    """The source's header with the geometry that the SEG shall have, the series description, and warnings."""
    plain = f"XFlow AI segmentation, {NOT_FOR_CLINICAL_USE}"
    header = copy.deepcopy(source.dataset)
    if source.frame_of_reference is not None:
        # Where there is a Frame of Reference a SEG wants a thickness (PS3.3 C.7.6.16.2.1); a projection has none.
        header.SliceThickness = source.dataset.get("SliceThickness") or NO_THICKNESS_MM
        return header, plain, ()
    for keyword in ("FrameOfReferenceUID", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
        if keyword in header:
            delattr(header, keyword)
    if geometry == "none":
        return header, plain, ()
    spacing = source.spacing_mm or (UNKNOWN_SPACING_MM, UNKNOWN_SPACING_MM)
    header.FrameOfReferenceUID = uids()
    header.PositionReferenceIndicator = ""
    header.ImagePositionPatient = [0, 0, 0]
    header.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    header.PixelSpacing = [decimal_string(value) for value in spacing]
    header.SliceThickness = NO_THICKNESS_MM
    warnings = (
        () if source.spacing_mm else ("The header gives no pixel spacing: the SEG's synthetic geometry has 1 mm.",)
    )
    return header, f"XFlow AI segmentation, synthetic geometry, {NOT_FOR_CLINICAL_USE}", warnings


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as problem:
        raise NotWritten(f"{path} is out of date and cannot be removed: {problem.strerror or problem}.") from problem
