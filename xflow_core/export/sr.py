"""The answers as a DICOM Comprehensive SR (PS3.3 A.35.3) by TID 1500 "Measurement Report" (PS3.16).

A measurement group stands for one finding in one region. It states presence or absence, how certain the model was, and
for a present finding the area, the lesion boxes, the clicks, and the segment that holds the pixels. Where there was no
answer (refused, unsupported, failed) there is no group: the reason stands as text among the qualitative
evaluations, beside the instruction and the answers in words, so that it can't be read as an absence.

- Coordinates (SCOORD) are ``column\\row`` as PS3.3 C.18.6 has them: the outer corner of the top left pixel is 0\\0, the
  centre of that pixel 0.5\\0.5, and the opposite corner of the image Columns\\Rows.
- An area is given in pixels, and in mm2 only with a spacing of the source's own. Its method says in which plane it was
  measured: at the detector everything is magnified. The synthetic geometry of a SEG is never used.
- The certainty is the model's probability of what is stated, in percent; a decision of the user's has none.
- What the standard has no code for (a click's polarity, the plane of an area) has one of the scheme 99XFLOW.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
from highdicom.coding_schemes import CodingSchemeIdentificationItem
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code as DicomCode
from pydicom.uid import generate_uid

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.codes import ABSENT, FINDING_CODES, PRESENCE, PRESENT, Code, region_codes
from xflow_core.domain.errors import ExportError
from xflow_core.domain.findings import verdict_regions
from xflow_core.domain.geometry import Box, Point
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.trace import BoxesStep, BundleIdentity, ClickStep, MaskStep, PresenceStep, ResultStep, Trace

from .dicom_source import SourceInstance, check_traces, unusable, write_object
from .equipment import MANUFACTURER, REVIEW_STATES, dicom_code, equipment
from .seg import SegSegment, WrittenSeg
from .words import decided_by_user, result_area, result_in_words

SERIES_NUMBER = 9002

PRIVATE_SCHEME = "99XFLOW"
CERTAINTY = Code("111012", "DCM", "Certainty of Finding")
AREA = Code("42798000", "SCT", "Area")
LESION_BOX = Code("75958009", "SCT", "Bounded by")  # CID 219
CLICKS = {
    "positive": Code("positive-click", PRIVATE_SCHEME, "Positive click"),
    "negative": Code("negative-click", PRIVATE_SCHEME, "Negative click"),
}
PIXEL_COUNT = Code("pixel-count", PRIVATE_SCHEME, "Pixels of the mask")
PLANES = {
    "detector": Code("detector-plane", PRIVATE_SCHEME, "Detector plane, uncalibrated"),
    "patient": Code("patient-plane", PRIVATE_SCHEME, "Patient-calibrated pixel spacing"),
}
MODEL_PROBABILITY = Code("probability", PRIVATE_SCHEME, "The model's probability of what is stated")

_PIXELS = Code("{pixels}", "UCUM", "pixels")
_MM2 = Code("mm2", "UCUM", "square millimeter")
_PERCENT = Code("%", "UCUM", "Percent")
_REPORT = Code("126000", "DCM", "Imaging Measurement Report")  # CID 7021
_RADIOGRAPHY = Code("43468-8", "LN", "XR unspecified body region")  # CID 100
_ENGLISH = Code("en", "RFC5646", "English")  # CID 5000
_QUALITATIVE = Code("C0034375", "UMLS", "Qualitative Evaluations")  # TID 1500, row 12
_RADIOGRAPHIC_IMAGING = Code("RG", "DCM", "Radiographic imaging")
_MODALITIES = {
    "CR": Code("CR", "DCM", "Computed Radiography"),
    "DX": Code("DX", "DCM", "Digital Radiography"),
}  # CID 29
_SOURCE = Code("260753009", "SCT", "Source")

_CONTAINS = hd.sr.RelationshipTypeValues.CONTAINS
_HAS_ACQ_CONTEXT = hd.sr.RelationshipTypeValues.HAS_ACQ_CONTEXT


def write_sr(
    path: str | Path,
    traces: Sequence[Trace],
    source: SourceInstance,
    *,
    seg: WrittenSeg | None,
    reviewed: bool = False,
    uids: Callable[[], str] = generate_uid,
) -> Path:
    """Write the report of a call.

    Args:
        traces: one per finding, all of the source image; answers, and questions that got none.
        seg: the segmentation of the same call; None when nothing was present, or none was written.
        reviewed: whether a person has looked at the result and stands by it.
        uids: where new UIDs come from.

    Raises:
        ExportError: the traces are not of the source image, or its header cannot be used.
        CallError: the file cannot be written.
    """
    check_traces(traces, source)
    path = Path(path)
    texts = [text for trace in traces for text in (trace.instruction.text, *trace.image.warnings, _answer(trace))]
    if not all(text.isascii() for text in texts):
        source = _in_utf8(source)
    evidence = [source.dataset] if seg is None else [source.dataset, _evidence(seg, source)]
    try:
        with quiet_python():
            made = hd.sr.ComprehensiveSR(
                evidence=evidence,
                content=_report(traces, source, seg, reviewed, uids),
                series_instance_uid=uids(),
                series_number=SERIES_NUMBER,
                sop_instance_uid=uids(),
                instance_number=1,
                manufacturer=MANUFACTURER,
                is_complete=all(trace.result is not None and trace.result.present is not None for trace in traces),
                series_description=f"XFlow AI report, {NOT_FOR_CLINICAL_USE}",
                coding_schemes=[CodingSchemeIdentificationItem(PRIVATE_SCHEME, responsible_organization=MANUFACTURER)],
                **equipment(traces[0].bundle),
            )
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise unusable(source, problem) from problem
    write_object(path, made, source)
    return path


def _report(
    traces: Sequence[Trace],
    source: SourceInstance,
    seg: WrittenSeg | None,
    reviewed: bool,
    uids: Callable[[], str],
) -> hd.sr.ContainerContentItem:
    """TID 1500. highdicom's own MeasurementReport needs a measurement, and a report of refusals has none."""
    items: list[pydicom.Dataset] = [*hd.sr.LanguageOfContentItemAndDescendants(dicom_code(_ENGLISH))]
    for bundle in dict.fromkeys(trace.bundle for trace in traces):
        items += _observer(bundle)
    items.append(
        hd.sr.CodeContentItem(
            codes.DCM.ProcedureReported, dicom_code(_RADIOGRAPHY), hd.sr.RelationshipTypeValues.HAS_CONCEPT_MOD
        )
    )
    items.append(_image_library(source))
    segments = _segments(traces, seg)
    groups = [
        group
        for trace, segment in zip(traces, segments, strict=True)
        for group in _groups(trace, source, seg, segment, uids)
    ]
    if groups:
        items.append(_container(codes.DCM.ImagingMeasurements, groups))
    items.append(_container(dicom_code(_QUALITATIVE), [_comment(text) for text in _comments(traces, reviewed)]))
    report = hd.sr.ContainerContentItem(dicom_code(_REPORT), template_id="1500")
    report.ContentSequence = hd.sr.ContentSequence(items)
    return report


def _observer(bundle: BundleIdentity) -> hd.sr.ObserverContext:
    """The bundle as an observing device (TID 1004); the same bundle always has the same UID."""
    return hd.sr.ObserverContext(
        observer_type=codes.DCM.Device,
        observer_identifying_attributes=hd.sr.DeviceObserverIdentifyingAttributes(
            uid=generate_uid(entropy_srcs=[bundle.name, bundle.version, bundle.sha256]),
            name=f"XFlow {bundle.name}",
            manufacturer_name=MANUFACTURER,
            model_name=f"{bundle.name} {bundle.version}",
            serial_number=bundle.sha256,
        ),
    )


def _image_library(source: SourceInstance) -> hd.sr.ContainerContentItem:
    """TID 1600 with the source image. highdicom's needs an orientation and a spacing, which many sources lack."""
    image = hd.sr.ImageContentItem(
        dicom_code(_SOURCE), source.sop_class_uid, source.sop_instance_uid, relationship_type=_CONTAINS
    )
    modality = _MODALITIES.get(str(source.dataset.get("Modality", "")), _RADIOGRAPHIC_IMAGING)
    rows, columns = source.size
    image.ContentSequence = hd.sr.ContentSequence(
        [
            hd.sr.CodeContentItem(codes.DCM.Modality, dicom_code(modality), _HAS_ACQ_CONTEXT),
            hd.sr.NumContentItem(codes.DCM.PixelDataRows, rows, dicom_code(_PIXELS), None, _HAS_ACQ_CONTEXT),
            hd.sr.NumContentItem(codes.DCM.PixelDataColumns, columns, dicom_code(_PIXELS), None, _HAS_ACQ_CONTEXT),
        ]
    )
    return _container(codes.DCM.ImageLibrary, [_container(codes.DCM.ImageLibraryGroup, [image])])


# --- what is stated -------------------------------------------------------------------------------------------------


def _comments(traces: Sequence[Trace], reviewed: bool) -> list[str]:
    """The notice, the instructions, the answers in words, what of them is the user's, and what to know of the image."""
    asked = [f'Instruction: "{trace.instruction.text}"' for trace in traces]
    by_user = [
        f"{trace.instruction.finding.capitalize()}: decided by the user: {made}."
        for trace in traces
        if (made := decided_by_user(trace))
    ]
    warnings = [f"Image: {warning}" for trace in traces for warning in trace.image.warnings]
    return list(dict.fromkeys([f"{REVIEW_STATES[reviewed]}.", *asked, *map(_answer, traces), *by_user, *warnings]))


def _answer(trace: Trace) -> str:
    words = result_in_words(trace).replace("mm²", "mm2")
    if trace.result is None or trace.result.present is not None:
        return words
    return f"{trace.instruction.finding.capitalize()}: {trace.result.status}. {words}"


def _segments(traces: Sequence[Trace], seg: WrittenSeg | None) -> list[SegSegment | None]:
    """Each trace's segment: a SEG has one for each present trace, in their order."""
    left = iter(() if seg is None else seg.segments)
    segments = [next(left, None) if trace.result is not None and trace.result.present else None for trace in traces]
    pairs = [(segment, trace) for segment, trace in zip(segments, traces, strict=True) if segment is not None]
    if next(left, None) is not None or any(one.finding != trace.instruction.finding for one, trace in pairs):
        raise ExportError("The segmentation is not of the report's traces; write both from the same ones.")
    return segments


def _groups(
    trace: Trace,
    source: SourceInstance,
    seg: WrittenSeg | None,
    segment: SegSegment | None,
    uids: Callable[[], str],
) -> Iterable[hd.sr.MeasurementsAndQualitativeEvaluations | hd.sr.PlanarROIMeasurementsAndQualitativeEvaluations]:
    """A group per region with a verdict; none without an answer."""
    if trace.result is None or trace.result.present is None:
        return
    step: PresenceStep | None = trace.last(PresenceStep)
    if step is None:
        regions = verdict_regions(trace.instruction.regions)
        verdicts = [(regions, trace.result.present, trace.result.confidence)]
    else:
        verdicts = [((verdict.region,), verdict.present, verdict.confidence) for verdict in step.verdicts]
    areas = _areas(trace, [regions for regions, present, _ in verdicts if present])
    alone = sum(present for _, present, _ in verdicts) == 1
    for regions, present, confidence in verdicts:
        measured = [] if confidence is None else [_certainty(confidence)]
        if not present:
            yield _group(trace, regions, False, measured, source, uids)
            continue
        area = areas.get(regions)
        if area is not None:
            measured += _area(trace, area)
        group = _group(trace, regions, True, measured, source, uids, seg, segment, alone)
        group[0].ContentSequence.extend(_coordinates(trace, regions, len(areas) > 1, source))
        yield group


def _group(
    trace: Trace,
    regions: tuple[str, ...],
    present: bool,
    measured: Sequence[hd.sr.Measurement],
    source: SourceInstance,
    uids: Callable[[], str],
    seg: WrittenSeg | None = None,
    segment: SegSegment | None = None,
    alone: bool = True,
) -> hd.sr.MeasurementsAndQualitativeEvaluations | hd.sr.PlanarROIMeasurementsAndQualitativeEvaluations:
    """TID 1410 with a segment, else TID 1501 with the image.

    A group that is ``alone`` in describing its segment shares its tracking UID. Two regions of one segment get
    an identity each: OHIF 3.13 puts groups of one UID together, and wrote both lungs' areas beside one box.
    """
    finding, bundle = trace.instruction.finding, trace.bundle
    stated = {
        "finding_type": dicom_code(_finding_code(finding, present)),
        "finding_category": dicom_code(FINDING_CODES[finding].category),
        "finding_sites": [_site(region) for region in regions],
        "algorithm_id": hd.sr.AlgorithmIdentification(
            name=f"XFlow {bundle.name}",
            version=bundle.version,
            parameters=[
                f"instruction: {trace.instruction.text}",
                f"stages: {trace.stages}",
                f"seed: {trace.seed}",
                f"sha256: {bundle.sha256}",
            ],
        ),
        "measurements": measured,
        "qualitative_evaluations": [
            hd.sr.QualitativeEvaluation(dicom_code(PRESENCE), dicom_code(PRESENT if present else ABSENT))
        ],
    }
    if seg is None or segment is None:
        return hd.sr.MeasurementsAndQualitativeEvaluations(
            tracking_identifier=hd.sr.TrackingIdentifier(uids(), f"XFlow {finding}: {', '.join(regions)}"),
            source_images=[hd.sr.SourceImageForMeasurementGroup(source.sop_class_uid, source.sop_instance_uid)],
            **stated,
        )
    reference = hd.sr.ReferencedSegmentationFrame(
        sop_class_uid=seg.sop_class_uid,
        sop_instance_uid=seg.sop_instance_uid,
        frame_number=segment.number,
        segment_number=segment.number,
        source_image=hd.sr.SourceImageForSegmentation(source.sop_class_uid, source.sop_instance_uid),
    )
    # The standard has one or the other (PS3.3 10-3), and highdicom writes both.
    del reference[0].ReferencedSOPSequence[0].ReferencedFrameNumber
    own = hd.sr.TrackingIdentifier(uids(), f"{segment.tracking_id} ({', '.join(regions)})")
    return hd.sr.PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=hd.sr.TrackingIdentifier(segment.tracking_uid, segment.tracking_id) if alone else own,
        referenced_segment=reference,
        **stated,
    )


def _finding_code(finding: str, present: bool) -> Code:
    """The finding's code. A wider one in its place is true of what is present, and not of what is absent: who has no
    pneumonia may have another disorder of the lung."""
    coded = FINDING_CODES[finding]
    return coded.code if present or coded.verified else Code(finding, PRIVATE_SCHEME, finding.capitalize())


def _site(region: str) -> hd.sr.FindingSite:
    coded = region_codes(region)
    return hd.sr.FindingSite(
        anatomic_location=dicom_code(coded.anatomy),
        laterality=None if coded.laterality is None else dicom_code(coded.laterality),
        topographical_modifier=dicom_code(coded.modifiers[0]) if coded.modifiers else None,
    )


# --- what is measured -----------------------------------------------------------------------------------------------


def _certainty(confidence: float) -> hd.sr.Measurement:
    return hd.sr.Measurement(
        dicom_code(CERTAINTY), round(100 * confidence, 4), dicom_code(_PERCENT), method=dicom_code(MODEL_PROBABILITY)
    )


def _area(trace: Trace, pixels: int) -> list[hd.sr.Measurement]:
    measured = [hd.sr.Measurement(dicom_code(AREA), pixels, dicom_code(_PIXELS), method=dicom_code(PIXEL_COUNT))]
    area = trace.image.area_mm2(pixels)
    if area is not None:
        plane = dicom_code(PLANES[trace.image.spacing_kind])
        measured.append(hd.sr.Measurement(dicom_code(AREA), round(area, 4), dicom_code(_MM2), method=plane))
    return measured


def _areas(trace: Trace, present: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], int | None]:
    """The mask's pixels by region: those of the components found there. None where the components, taken together, are
    not the result's mask; then only the words give an area, that of all regions."""
    if len(present) < 2:
        return dict.fromkeys(present, result_area(trace))
    result: ResultStep | None = trace.last(ResultStep)
    boxes: BoxesStep | None = trace.last(BoxesStep)
    if result is None or result.mask is None or boxes is None:
        return dict.fromkeys(present)
    masks = {regions: np.zeros(result.mask.size, bool) for regions in present}
    last = {step.component: step.mask for step in trace.steps if isinstance(step, MaskStep)}
    for box in boxes.boxes:
        if box.component in last and (box.region,) in masks:
            masks[box.region,] |= last[box.component].array
    if not np.array_equal(np.logical_or.reduce(list(masks.values())), result.mask.array):
        return dict.fromkeys(present)
    return {regions: int(np.count_nonzero(mask)) for regions, mask in masks.items()}


def _coordinates(
    trace: Trace, regions: tuple[str, ...], several: bool, source: SourceInstance
) -> list[hd.sr.ScoordContentItem]:
    """The lesion boxes of a region and the clicks on them, component by component."""
    step: BoxesStep | None = trace.last(BoxesStep)
    boxes = () if step is None else step.boxes
    if several:
        boxes = tuple(box for box in boxes if box.region in regions)
    height, width = source.size

    def scoord(name: Code, kind: str, points: Sequence[Point]) -> hd.sr.ScoordContentItem:
        pixels = np.array([(point.x * width, point.y * height) for point in points])
        item = hd.sr.ScoordContentItem(dicom_code(name), kind, pixels, relationship_type=_CONTAINS)
        item.ContentSequence = [hd.sr.SourceImageForRegion(source.sop_class_uid, source.sop_instance_uid)]
        return item

    items = [scoord(LESION_BOX, "POLYLINE", _corners(box.box)) for box in boxes]
    for box in boxes:
        for click in trace.steps:
            if isinstance(click, ClickStep) and click.component == box.component:
                items.append(scoord(CLICKS[click.click.polarity], "POINT", [click.click.point]))
    return items


def _corners(box: Box) -> list[Point]:
    """Clockwise from the top left, which stands at the end again: a closed line."""
    corners = [Point(box.x1, box.y1), Point(box.x2, box.y1), Point(box.x2, box.y2), Point(box.x1, box.y2)]
    return [*corners, corners[0]]


# --- the tree -------------------------------------------------------------------------------------------------------


def _container(
    name: DicomCode, items: Iterable[pydicom.Dataset | Sequence[pydicom.Dataset]]
) -> hd.sr.ContainerContentItem:
    """A container of content items, or of templates, which are sequences of them."""
    container = hd.sr.ContainerContentItem(name, relationship_type=_CONTAINS)
    flat = chain.from_iterable([item] if isinstance(item, pydicom.Dataset) else item for item in items)
    container.ContentSequence = hd.sr.ContentSequence(flat)
    return container


def _comment(text: str) -> hd.sr.TextContentItem:
    return hd.sr.TextContentItem(codes.DCM.Comment, text, _CONTAINS)


def _evidence(seg: WrittenSeg, source: SourceInstance) -> pydicom.Dataset:
    """What a report says of a SEG that it refers to."""
    evidence = pydicom.Dataset()
    evidence.StudyInstanceUID = source.study_uid
    evidence.SeriesInstanceUID = seg.series_uid
    evidence.SOPClassUID = seg.sop_class_uid
    evidence.SOPInstanceUID = seg.sop_instance_uid
    return evidence


def _in_utf8(source: SourceInstance) -> SourceInstance:
    """The source in a character set that holds every instruction; its own may be of another language."""
    dataset = copy.deepcopy(source.dataset)
    dataset.SpecificCharacterSet = "ISO_IR 192"
    return replace(source, dataset=dataset)
