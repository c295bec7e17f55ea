"""What comes back into Slicer: segmentations of radiographs (DICOM SEG with or without a geometry, PNG masks), and
XFlow's reports.

A mask lies where its image's pixels lie, whatever the file says of positions in space: Slicer's own reader asks for a
Frame of Reference, which a CR or DX hardly ever has, and fails without one. Each file becomes a segmentation node of
its own; what is in the scene stays as it is.

Functions that begin with ``read_`` touch neither MRML nor Qt and may run in any thread; those that begin with ``load_``
belong to the UI thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import slicer
from PIL import Image, UnidentifiedImageError
from pydicom.uid import (
    ComprehensiveSRStorage,
    ComputedRadiographyImageStorage,
    DigitalMammographyXRayImageStorageForPresentation,
    DigitalMammographyXRayImageStorageForProcessing,
    DigitalXRayImageStorageForPresentation,
    DigitalXRayImageStorageForProcessing,
    SecondaryCaptureImageStorage,
    SegmentationStorage,
)

from xflow_core import NOT_FOR_CLINICAL_USE
from xflow_core.domain.codes import FINDING_CODES, MORPHOLOGICALLY_ABNORMAL, PRESENCE, PRESENT, Code
from xflow_core.domain.errors import CallError, ExportError, RadiographError
from xflow_core.domain.findings import CHEST, FINDINGS
from xflow_core.domain.quiet import quiet_python
from xflow_core.domain.trace import PresenceStep
from xflow_core.export import read_trace
from xflow_core.export.dicom_source import SourceInstance, read_source, source_instance

from . import nodes, terminology, volumes
from .image_frame import ImageFrame
from .segments import add_mask

IMPORTED, REPORT = "imported", "report"
"""Values of the attribute ``XFlow.role`` of the nodes that are made here."""

RADIOGRAPHS = frozenset(
    (
        ComputedRadiographyImageStorage,
        DigitalXRayImageStorageForPresentation,
        DigitalXRayImageStorageForProcessing,
        DigitalMammographyXRayImageStorageForPresentation,
        DigitalMammographyXRayImageStorageForProcessing,
        SecondaryCaptureImageStorage,
    )
)
"""Image classes of one frame that seldom lie in a Frame of Reference; secondary capture holds digitised films."""

MOST_LABELS = 64
"""Of a PNG mask. A picture with more different values is a photograph, or a mask with blurred edges."""

_INSTANCE_UIDS = "DICOM.instanceUIDs"
_TRACKED = re.compile(rf"XFlow ({'|'.join(FINDINGS)}): (.+?)(?: \((.+)\))?")


# --- DICOM segmentations --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SegHeader:
    """What a DICOM SEG is and belongs to.

    Attributes:
        name: its series description.
        images: SOP Instance UIDs of the images that it is of, in its order.
        image_classes: their SOP classes.
    """

    name: str
    instance_uid: str
    study_uid: str
    series_uid: str
    images: tuple[str, ...]
    image_classes: frozenset[str]

    @property
    def of_radiographs(self) -> bool:
        """Whether all its images are radiographs."""
        return bool(self.images) and self.image_classes <= RADIOGRAPHS


def read_seg_header(path: str | Path) -> SegHeader | None:
    """The header of a DICOM SEG, without its pixels; None for any other file.

    Raises:
        ExportError: the file cannot be opened.
    """
    wanted = [
        "SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "Modality", "SeriesDescription",
        "ReferencedSeriesSequence", "SharedFunctionalGroupsSequence", "SourceImageSequence", "ReferencedImageSequence",
    ]  # fmt: skip
    try:
        with quiet_python():
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted)
            if header.get("Modality") != "SEG":
                return None
            images = dict(_images(header))
            if not images:
                # The last place to look, and with many frames the slowest.
                header = pydicom.dcmread(path, stop_before_pixels=True)
                images = dict(_images(header))
            return SegHeader(
                name=str(header.get("SeriesDescription") or "Segmentation"),
                instance_uid=str(header.get("SOPInstanceUID", "")),
                study_uid=str(header.get("StudyInstanceUID", "")),
                series_uid=str(header.get("SeriesInstanceUID", "")),
                images=tuple(images),
                image_classes=frozenset(images.values()),
            )
    except OSError as problem:
        raise _unreadable(path, problem) from None
    except Exception:  # noqa: BLE001  a file that is damaged, or none of DICOM, raises whatever the parser runs into
        return None


def load_segmentation(path: str | Path, volume: Any | None = None) -> list[Any]:
    """Load a DICOM SEG onto its radiograph, which is taken from the scene, else from Slicer's DICOM database.

    Every segment keeps its pixels, overlaps included, its name, codes and colour; an empty one stays as an empty one.
    What the report of the same export states as absent stands in the node's description, and the report itself is
    loaded as a text.

    Args:
        volume: the radiograph, where the caller knows it.

    Returns:
        The new ``vtkMRMLSegmentationNode``, or one for each radiograph of a SEG of several.

    Raises:
        ExportError: the file is no SEG, is damaged, is of another image than ``volume``, or its radiograph cannot be
            found; the sentence names it.
    """
    path = Path(path)
    header = read_seg_header(path)
    if header is None:
        raise ExportError(f"{path.name} is not a DICOM Segmentation.")
    if volume is not None:
        uid = _instance_of(volume)
        if uid is None:
            raise ExportError(
                f"{path.name} belongs to a DICOM image, and {volume.GetName()} was not loaded from one; load the "
                "radiograph from its DICOM file."
            )
        radiographs = {uid: volume}
    else:
        radiographs = {uid: found for uid in header.images if (found := _radiograph(uid)) is not None}
    if not radiographs:
        if not header.images:
            raise ExportError(f"{path.name} does not say which image it is a segmentation of; choose the radiograph.")
        more = f" (and {len(header.images) - 1} more)" if len(header.images) > 1 else ""
        raise ExportError(
            f"{path.name} is a segmentation of the image {header.images[0]}{more}, which is neither in the scene nor "
            "in Slicer's DICOM database; load that radiograph first."
        )
    # Everything is read and checked before anything is added to the scene.
    read = [(image, _read_seg(path, _source(uid, image, header))) for uid, image in radiographs.items()]
    for image, seg in read:
        shown, masked = image.GetImageData().GetDimensions()[1::-1], seg.segments[0].mask.shape
        if shown != masked:
            raise ExportError(
                f"{path.name} holds masks of {masked[1]} x {masked[0]} pixels, and the volume {image.GetName()} has "
                f"{shown[1]} x {shown[0]}; load the whole radiograph from its DICOM file."
            )
    codes = _segment_codes(path)
    report = _report_of(header)
    made = [_show_seg(header, image, seg, codes, report) for image, seg in read]
    if report is not None:
        _show_report(report)
    return made


def find_radiograph(instance_uid: str) -> Any | None:
    """The scene's volume of this one DICOM image, of several the whole and unchanged one; None without one."""
    found = [
        volume
        for volume in slicer.util.getNodesByClass("vtkMRMLScalarVolumeNode")
        if volume.GetImageData() is not None and _instance_of(volume) == instance_uid
    ]
    whole = [volume for volume in found if volumes.source_file(volume) is not None]
    return next(iter(whole or found), None)


def radiograph_is_known(instance_uid: str) -> bool:
    """Whether the radiograph is in the scene or in Slicer's DICOM database."""
    return find_radiograph(instance_uid) is not None or _file_of(instance_uid) is not None


def _images(header: pydicom.Dataset) -> Iterator[tuple[str, str]]:
    """The images that a SEG says it is of: SOP Instance UID and class."""
    for group in (
        *(header.get("SharedFunctionalGroupsSequence") or ()),
        *(header.get("PerFrameFunctionalGroupsSequence") or ()),
    ):
        for derivation in group.get("DerivationImageSequence") or ():
            yield from _references(derivation.get("SourceImageSequence"))
    for series in header.get("ReferencedSeriesSequence") or ():
        yield from _references(series.get("ReferencedInstanceSequence"))
    for keyword in ("SourceImageSequence", "ReferencedImageSequence"):
        yield from _references(header.get(keyword))


def _references(sequence: Any) -> Iterator[tuple[str, str]]:
    for item in sequence or ():
        yield str(item.ReferencedSOPInstanceUID), str(item.ReferencedSOPClassUID)


def _instance_of(volume: Any) -> str | None:
    """The SOP Instance UID of a volume of one DICOM image, loaded by the DICOM module or as a file."""
    uids = (volume.GetAttribute(_INSTANCE_UIDS) or "").split()
    if uids:
        return uids[0] if len(uids) == 1 else None
    file = volumes.source_file(volume)
    if file is None:
        return None
    header = pydicom.dcmread(file, force=True, stop_before_pixels=True, specific_tags=["SOPInstanceUID"])
    return str(header.get("SOPInstanceUID") or "") or None


def _radiograph(instance_uid: str) -> Any | None:
    found = find_radiograph(instance_uid)
    if found is not None:
        return found
    file = _file_of(instance_uid)
    if file is None:
        return None
    try:
        from DICOMLib import DICOMUtils
    except ImportError:
        pass
    else:
        DICOMUtils.loadByInstanceUID(instance_uid)
        found = find_radiograph(instance_uid)
    # Slicer may have offered all images of the series as one volume, which is no radiograph.
    return found or _loaded(file, instance_uid)


def _loaded(file: Path, instance_uid: str) -> Any | None:
    single_file, window_level = 4, 8
    logic = slicer.modules.volumes.logic()
    volume = logic.AddArchetypeVolume(str(file), file.stem, single_file | window_level)
    if volume is not None:
        volume.SetAttribute(_INSTANCE_UIDS, instance_uid)
    return volume


def _file_of(instance_uid: str) -> Path | None:
    database = getattr(slicer, "dicomDatabase", None)
    if database is None or not database.isOpen:
        return None
    file = database.fileForInstance(instance_uid)
    return Path(file) if file and Path(file).is_file() else None


def _source(instance_uid: str, volume: Any, header: SegHeader) -> SourceInstance:
    """The radiograph's header; where its file is gone, what the scene and the SEG know of it."""
    file = _file_of(instance_uid)
    if file is not None:
        return read_source(file)
    columns, rows, _ = volume.GetImageData().GetDimensions()
    known = pydicom.Dataset()
    known.SOPClassUID = next(iter(header.image_classes), DigitalXRayImageStorageForPresentation)
    known.SOPInstanceUID, known.StudyInstanceUID = instance_uid, header.study_uid
    known.SeriesInstanceUID = header.series_uid  # of the image it is not known, and not asked for
    known.Rows, known.Columns = rows, columns
    return source_instance(known, file=volume.GetName())


def _read_seg(path: Path, source: SourceInstance) -> Any:
    # Loads highdicom, which takes its time: not before there is a segmentation to read.
    from xflow_core.export.seg_reading import read_seg

    return read_seg(path, source)


@dataclass(frozen=True)
class _Codes:
    """What a segment is and how it was made, in the file's own terms."""

    category: Code | None
    kind: Code | None
    modifier: Code | None
    region: Code | None
    region_modifier: Code | None
    tags: tuple[tuple[str, str], ...]


def _segment_codes(path: Path) -> dict[int, _Codes]:
    with quiet_python():
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=["SegmentSequence"])
        return {int(item.SegmentNumber): _codes_of(item) for item in header.get("SegmentSequence") or ()}


def _codes_of(item: pydicom.Dataset) -> _Codes:
    kinds, regions = item.get("SegmentedPropertyTypeCodeSequence"), item.get("AnatomicRegionSequence")
    tags = {
        "DICOM.SegmentAlgorithmType": item.get("SegmentAlgorithmType"),
        "DICOM.SegmentAlgorithmName": item.get("SegmentAlgorithmName"),
        "TrackingUniqueIdentifier": item.get("TrackingUID"),
        "Description": item.get("SegmentDescription"),
    }
    return _Codes(
        category=_code(item.get("SegmentedPropertyCategoryCodeSequence")),
        kind=_code(kinds),
        modifier=_code(kinds[0].get("SegmentedPropertyTypeModifierCodeSequence")) if kinds else None,
        region=_code(regions),
        region_modifier=_code(regions[0].get("AnatomicRegionModifierSequence")) if regions else None,
        tags=tuple((name, str(value)) for name, value in tags.items() if value),
    )


def _code(sequence: Any) -> Code | None:
    """The first code of a sequence, in the form that Slicer's terminologies can hold; None without one."""
    if not sequence:
        return None
    value = str(sequence[0].get("CodeValue") or "")
    scheme = str(sequence[0].get("CodingSchemeDesignator") or "")
    meaning = str(sequence[0].get("CodeMeaning") or value)
    # "^" and "~" part the fields of a serialised entry.
    if not value or not scheme or any(mark in value + scheme for mark in "^~") or max(len(value), len(scheme)) > 16:
        return None
    return Code(value, scheme, meaning.translate({ord("^"): " ", ord("~"): " "})[:64])


def _show_seg(header: SegHeader, volume: Any, seg: Any, codes: dict[int, _Codes], report: Report | None) -> Any:
    # The volume's matrix of pixels is the file's here: Slicer reads DICOM so.
    frame = ImageFrame.stored(volumes.place_of(volume), volume.GetImageData().GetDimensions())
    node = _new_segmentation(header.name, volume)
    node.SetAttribute(_INSTANCE_UIDS, header.instance_uid)
    for segment in seg.segments:
        stated = codes.get(segment.number)
        name = segment.label or (segment.code.meaning if segment.code else f"Segment {segment.number}")
        colour = segment.colour or _shade(segment.number)
        made = _add(node, frame, None if segment.empty else segment.mask, name, colour)
        if segment.finding is not None:
            terminology.apply(made, segment.finding, segment.regions or (CHEST,))
            if segment.colour is not None:
                made.SetColor(*(channel / 255 for channel in colour))
        elif stated is not None and stated.kind is not None:
            category = stated.category or MORPHOLOGICALLY_ABNORMAL
            made.SetTerminology(
                terminology.entry_of_codes(
                    category, stated.kind, stated.modifier, stated.region, stated.region_modifier
                )
            )
        for tag, value in stated.tags if stated is not None else ():
            made.SetTag(tag, value)
    reviewed = {segment.review for segment in seg.segments}
    of_xflow = [f"AI result, {next(iter(reviewed))}; {NOT_FOR_CLINICAL_USE}."] if reviewed != {"unknown"} else []
    absent = [] if report is None else [report.absent]
    node.SetDescription(" ".join(filter(None, (*of_xflow, *absent, *seg.warnings))))
    return node


# --- reports --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stated:
    """Presence or absence of a finding in a region, as a report states it."""

    finding: str
    region: str
    present: bool


@dataclass(frozen=True)
class Report:
    """An XFlow report.

    Attributes:
        images: SOP Instance UIDs of the radiographs that it is of.
        segmentations: of the segmentations that it refers to.
        sentences: its text: what was asked, the answers in words, what to know of the image.
        verdicts: for each finding and region.
    """

    instance_uid: str
    images: tuple[str, ...]
    segmentations: tuple[str, ...]
    sentences: tuple[str, ...]
    verdicts: tuple[Stated, ...]

    @property
    def absent(self) -> str:
        """What is absent, in one sentence; nothing when nothing is."""
        regions: dict[str, list[str]] = {}
        for verdict in self.verdicts:
            if not verdict.present:
                regions.setdefault(verdict.finding, []).append(verdict.region)
        named = [f"{finding} ({', '.join(dict.fromkeys(places))})" for finding, places in regions.items()]
        return f"Absent: {'; '.join(named)}." if named else ""


def read_report(path: str | Path) -> Report | None:
    """The report in a DICOM SR that XFlow wrote; None for any other file.

    Raises:
        ExportError: the file cannot be opened.
    """
    try:
        with quiet_python():
            dataset = pydicom.dcmread(path)
            if dataset.get("SOPClassUID") != ComprehensiveSRStorage or dataset.get("Manufacturer") != "XFlow":
                return None
            images, segmentations = [], []
            for study in dataset.get("CurrentRequestedProcedureEvidenceSequence") or ():
                for series in study.ReferencedSeriesSequence:
                    for uid, kind in _references(series.ReferencedSOPSequence):
                        (segmentations if kind == SegmentationStorage else images).append(uid)
            items = list(_content(dataset))
            sentences = [str(item.TextValue) for item in items if item.ValueType == "TEXT" and _is(item, "121106")]
            verdicts = [verdict for item in items if item.ValueType == "CONTAINER" for verdict in _verdicts_of(item)]
            return Report(
                instance_uid=str(dataset.SOPInstanceUID),
                images=tuple(images),
                segmentations=tuple(segmentations),
                sentences=tuple(sentences),
                verdicts=tuple(verdicts),
            )
    except OSError as problem:
        raise _unreadable(path, problem) from None
    except Exception:  # noqa: BLE001  as above
        return None


def load_report(path: str | Path) -> Any:
    """Load XFlow's DICOM SR as a text: what was asked, what was found present, what absent, what got no answer.

    Returns:
        The ``vtkMRMLTextNode``; one that holds the same report already is not made again.

    Raises:
        ExportError: the file is no report of XFlow's.
    """
    report = read_report(path)
    if report is None:
        raise ExportError(f"{Path(path).name} is not a DICOM report of XFlow.")
    return _show_report(report)


def _content(item: pydicom.Dataset) -> Iterator[pydicom.Dataset]:
    """All items below one, parents first."""
    for child in item.get("ContentSequence") or ():
        yield child
        yield from _content(child)


def _is(item: pydicom.Dataset, value: str) -> bool:
    names = item.get("ConceptNameCodeSequence")
    return bool(names) and names[0].get("CodeValue") == value and names[0].get("CodingSchemeDesignator") == "DCM"


def _verdicts_of(group: pydicom.Dataset) -> Iterator[Stated]:
    """A measurement group's verdict, for each of its regions: its tracking identifier names them."""
    tracked = presence = None
    for item in group.get("ContentSequence") or ():
        if _is(item, "112039"):
            tracked = _TRACKED.fullmatch(str(item.TextValue))
        elif _is(item, PRESENCE.value):
            presence = str(item.ConceptCodeSequence[0].CodeValue)
    if tracked is None or presence is None:
        return
    finding, regions, some = tracked.groups()
    for region in (some or regions).split(", "):
        yield Stated(finding, region, presence == PRESENT.value)


def _report_of(header: SegHeader) -> Report | None:
    """The report in the DICOM database that was exported with a segmentation."""
    database = getattr(slicer, "dicomDatabase", None)
    if database is None or not database.isOpen:
        return None
    for series in database.seriesForStudy(header.study_uid):
        for file in database.filesForSeries(series):
            if database.fileValue(file, "0008,0060") == "SR":
                report = read_report(file)
                if report is not None and header.instance_uid in report.segmentations:
                    return report
    return None


def _show_report(report: Report) -> Any:
    for node in slicer.util.getNodesByClass("vtkMRMLTextNode"):
        if node.GetAttribute(_INSTANCE_UIDS) == report.instance_uid:
            return node
    node = slicer.mrmlScene.AddNewNodeByClass("vtkMRMLTextNode", f"XFlow report, {NOT_FOR_CLINICAL_USE}")
    node.SetAttribute(nodes.ROLE, REPORT)
    node.SetAttribute(_INSTANCE_UIDS, report.instance_uid)
    node.SetDescription(report.absent)
    node.SetText("\n".join(filter(None, (*report.sentences, report.absent))))
    return node


# --- PNG masks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MaskLabel:
    """One label of a PNG mask: its number (for a colour picture 0xRRGGBB), bool ``[H, W]``, and its colour if any."""

    value: int
    mask: np.ndarray
    colour: tuple[int, int, int] | None = None


def read_mask(path: str | Path, size: tuple[int, int]) -> tuple[MaskLabel, ...]:
    """The labels of a PNG mask, by value: black is the background, every other grey value or colour a label.

    Args:
        size: ``(rows, columns)`` of the radiograph.

    Raises:
        ExportError: no PNG, of another size, without a set pixel, or with more than 64 values.
    """
    path = Path(path)
    with _png(path) as picture:
        columns, rows = picture.size
        if (rows, columns) != size:
            raise ExportError(
                f"{path.name} has {columns} x {rows} pixels, and the radiograph {size[1]} x {size[0]}; a mask has a "
                "pixel for each of the radiograph's."
            )
        values, coloured = _values(picture)
    found = [int(value) for value in _distinct(values) if value != 0]
    if not found:
        raise ExportError(f"No pixel of {path.name} is set, so there is nothing to load.")
    if len(found) > MOST_LABELS:
        raise ExportError(
            f"{path.name} has {len(found)} different values, so it is no mask: a mask is 0 and 255, 0 and 1, or a "
            "number for each label, without smoothed edges."
        )
    return tuple(
        MaskLabel(value, values == value, (value >> 16, value >> 8 & 255, value & 255) if coloured else None)
        for value in found
    )


def load_mask(path: str | Path, volume: Any) -> Any:
    """Load a PNG mask onto a radiograph of the same size: a segment for each label.

    A mask that XFlow exported (``effusion/mask.png`` beside its trace) gets its finding's name, codes and colour; any
    other the file's name, and its label's number where it has several.

    Returns:
        The new ``vtkMRMLSegmentationNode``.

    Raises:
        ExportError: the picture is no mask of this radiograph; the sentence says why.
        XFlowError: the volume is no radiograph.
    """
    path = Path(path)
    frame = volumes.frame_of(volume)
    labels = read_mask(path, frame.size)
    finding, regions = _said_of(path, volume, frame.size)
    node = _new_segmentation(path.stem, volume)
    for number, label in enumerate(labels, start=1):
        if finding is not None and len(labels) == 1:
            name = ", ".join((finding.capitalize(), *regions))
            segment = _add(node, frame, label.mask, name, FINDING_CODES[finding].colour)
            terminology.apply(segment, finding, regions or (CHEST,))
        else:
            name = path.stem if len(labels) == 1 else f"{path.stem} {number if label.colour else label.value}"
            _add(node, frame, label.mask, name, label.colour or _shade(number))
    return node


def radiograph_of_mask(path: str | Path) -> Any:
    """The scene's radiograph that a PNG mask is meant for: of those of its size the only one, or the active volume.

    Raises:
        ExportError: there is none of its size, or there are several and none of them is active; or it is no PNG.
    """
    path = Path(path)
    size = _size_of(path)
    radiographs = []
    for volume in slicer.util.getNodesByClass("vtkMRMLScalarVolumeNode"):
        try:
            radiographs.append((volume, volumes.frame_of(volume).size))
        except RadiographError:
            continue
    fitting = [volume for volume, other in radiographs if other == size]
    selection = slicer.app.applicationLogic().GetSelectionNode()
    active = None if selection is None else selection.GetActiveVolumeID()
    chosen = fitting if len(fitting) == 1 else [volume for volume in fitting if volume.GetID() == active]
    if chosen:
        return chosen[0]
    if fitting:
        raise ExportError(
            f"{len(fitting)} radiographs have the size of {path.name}; show the one that it belongs to in the slice "
            "views, and load it again."
        )
    there = ", ".join(f"{columns} x {rows}" for _, (rows, columns) in radiographs) or "none is loaded"
    raise ExportError(f"{path.name} has {size[1]} x {size[0]} pixels, and no radiograph in the scene has ({there}).")


def mask_confidence(path: str | Path) -> float:
    """How sure it is, from 0 to 1, that a PNG is a mask of a radiograph in the scene and not a picture of its own.

    Slicer's reader of pictures has 0.54. Below it the user can choose the mask; above it, it is the default.
    """
    try:
        volume = radiograph_of_mask(path)
        read_mask(path, volumes.frame_of(volume).size)
    except ExportError:
        return 0.2
    return 0.7


def _size_of(path: Path) -> tuple[int, int]:
    """``(rows, columns)`` of a PNG, by its header."""
    with _png(path) as picture:
        columns, rows = picture.size
    return rows, columns


@contextmanager
def _png(path: Path) -> Iterator[Image.Image]:
    """An open PNG; what is wrong with it becomes one sentence."""
    try:
        with Image.open(path, formats=("PNG",)) as picture:
            yield picture
    except UnidentifiedImageError:
        raise ExportError(f"{path.name} is not a PNG picture.") from None
    except OSError as problem:
        raise _unreadable(path, problem) from None
    except (SyntaxError, ValueError):
        raise ExportError(f"{path.name} is a damaged PNG picture.") from None
    except Image.DecompressionBombError:
        raise ExportError(f"{path.name} is far larger than a radiograph, so it is no mask of one.") from None


def _values(picture: Image.Image) -> tuple[np.ndarray, bool]:
    """Grey values, or of a picture in colour 0xRRGGBB; and whether it is one."""
    if picture.mode == "P":
        indices = np.asarray(picture)
        used = _distinct(indices)
        colours = np.array(picture.getpalette("RGB") or [], np.int64).reshape(-1, 3)
        if used[-1] >= len(colours) or len(np.unique(colours[used], axis=0)) < len(used):
            return indices.astype(np.int32), False  # the palette does not tell the labels apart
    elif picture.mode not in ("RGB", "RGBA", "LA"):
        return np.asarray(picture).astype(np.int32), False
    red, green, blue, alpha = np.moveaxis(np.asarray(picture.convert("RGBA")).astype(np.int32), -1, 0)
    grey = bool(np.array_equal(red, green) and np.array_equal(green, blue))
    values = red if grey else red << 16 | green << 8 | blue
    return np.where(alpha == 0, 0, values), not grey


def _distinct(values: np.ndarray) -> np.ndarray:
    """The different values, in order; of small ones without sorting millions."""
    return np.flatnonzero(np.bincount(values.ravel())) if values.max() < 2**16 else np.unique(values)


def _said_of(path: Path, volume: Any, size: tuple[int, int]) -> tuple[str | None, tuple[str, ...]]:
    """The finding and regions of a mask, by the trace beside it, else by the name of the file or its folder."""
    beside = path.parent / "trace.json"
    if beside.is_file():
        try:
            trace = read_trace(beside)
        except CallError:
            trace = None
        if trace is not None and trace.result is not None and trace.result.mask_file == path.name:
            made_of, shown = trace.image.sop_instance_uid, _instance_of(volume)
            if made_of is not None and shown is not None and made_of != shown:
                raise ExportError(f"{path.name} is a mask of the image {made_of}, not of {shown}.")
            if trace.image.size == size:
                verdicts: PresenceStep | None = trace.last(PresenceStep)
                found = () if verdicts is None else tuple(v.region for v in verdicts.verdicts if v.present)
                return trace.instruction.finding, found or trace.instruction.regions
    for name in (path.stem, path.parent.name):
        finding = re.sub(r"[-_ ]?\d*$", "", name).casefold()
        if finding in FINDINGS:
            return finding, ()
    return None, ()


def _unreadable(path: str | Path, problem: OSError) -> ExportError:
    return ExportError(f"{path} cannot be read: {problem.strerror or 'the file is damaged'}.")


# --- the scene ------------------------------------------------------------------------------------------------------


def _new_segmentation(name: str, volume: Any) -> Any:
    node = nodes.add(volume, "vtkMRMLSegmentationNode", IMPORTED, name)
    node.CreateDefaultDisplayNodes()
    node.SetReferenceImageGeometryParameterFromVolumeNode(volume)
    return node


def _add(node: Any, frame: ImageFrame, mask: np.ndarray | None, name: str, colour: Sequence[int]) -> Any:
    """A new segment, an empty one without a mask; the ``vtkSegment``."""
    red, green, blue = (channel / 255 for channel in colour)
    segmentation = node.GetSegmentation()
    if mask is None:
        identity = segmentation.AddEmptySegment("", name, (red, green, blue))
    else:
        identity = add_mask(node, frame, mask, name, (red, green, blue))
    segment = segmentation.GetSegment(identity)
    segment.SetNameAutoGenerated(False)
    segment.SetColorAutoGenerated(False)
    return segment


def _shade(number: int) -> tuple[int, int, int]:
    """A colour for a segment whose file names none: those of the findings in turn."""
    shades = [coded.colour for coded in FINDING_CODES.values()]
    return shades[(number - 1) % len(shades)]
